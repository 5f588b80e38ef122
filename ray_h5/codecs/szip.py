"""Szip, which libhdf5 brings and few files have."""

from __future__ import annotations

import imagecodecs
import numpy as np

from ray_h5.codecs.codec import Bytes, Codec, DecodeError, check_header, fill, unshuffle
from ray_h5.manifest.layout import FilterStep


class Szip(Codec):
    """Szip, by libaec: four bytes with the decoded size, then the coded pixels.

    libaec could also drop the padding of scanlines and assemble byte planes. If the stream ends early, it
    does that with uninitialised memory. So libaec only decodes, and the rest is done here.
    """

    def __init__(self, step: FilterStep) -> None:
        self._options, self._block, bits, line = step.client_data
        # Pixels of 32 and 64 bits are coded as planes of bytes.
        self._planes = bits // 8 if bits > 16 else 1
        self._bits = bits // self._planes
        self._line = line
        self._padded_line = -(-line // self._block) * self._block

    @staticmethod
    def takes(client_data: tuple[int, ...]) -> bool:
        if len(client_data) != 4:
            return False
        _, block, bits, line = client_data
        # The limits of libhdf5 when it writes.
        return bits in {8, 16, 32, 64} and block in range(2, 33, 2) and block <= line <= 128 * block

    def decode(self, data: Bytes, out: Bytes) -> None:
        if len(data) < 4:
            raise DecodeError(f"expected an szip header of 4 bytes, found {len(data)} bytes in all")
        check_header("szip", int.from_bytes(data[:4].tobytes(), "little"), out)
        if len(out) % (self._planes * self._bits // 8):
            raise DecodeError(f"{len(out)} bytes are no whole number of szip pixels")
        if self._planes == 1:
            self._decode_lines(data[4:], out)
        else:
            planes = np.empty(len(out), np.uint8)
            self._decode_lines(data[4:], planes)
            unshuffle(planes, self._planes, out)

    def _decode_lines(self, data: Bytes, out: Bytes) -> None:
        line, padded_line = (pixels * self._bits // 8 for pixels in (self._line, self._padded_line))
        if line == padded_line:
            self._decode_pixels(data, out)
            return
        lines, rest = divmod(len(out), line)
        padded = np.empty(lines * padded_line + rest, np.uint8)
        self._decode_pixels(data, padded)
        out[: lines * line].reshape(-1, line)[:] = padded[: lines * padded_line].reshape(-1, padded_line)[:, :line]
        out[lines * line :] = padded[lines * padded_line :]

    def _decode_pixels(self, data: Bytes, out: Bytes) -> None:
        fill(
            out,
            data,
            "szip",
            imagecodecs.szip_decode,
            imagecodecs.SzipError,
            options_mask=self._options,
            pixels_per_block=self._block,
            bits_per_pixel=self._bits,
            pixels_per_scanline=self._padded_line,
        )
