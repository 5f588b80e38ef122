"""What a repack did."""

from __future__ import annotations

from dataclasses import dataclass

from ray_h5.messages import counted, few


@dataclass(frozen=True, slots=True)
class Repacked:
    """What a repack did.

    Attributes
    ----------
    paths : list of str
        The outputs.
    kept : list of str
        Those that an earlier repack had written.
    bytes_before, bytes_after : int
        Size of the files.
    chunks_before, chunks_after : int
        Chunks of all arrays; 0 if they are not known.
    rate_before, rate_after : float
        Rows a second of a shuffled epoch, measured on a sample; 0 if it was not measured.
    not_measured : str
        Why these are 0, if the files cannot be read without more options.
    dropped : tuple of str
        What was left out.
    rewritten : int
        Arrays that got another layout.
    """

    paths: list[str]
    kept: list[str]
    bytes_before: int
    bytes_after: int
    chunks_before: int = 0
    chunks_after: int = 0
    rate_before: float = 0.0
    rate_after: float = 0.0
    not_measured: str = ""
    dropped: tuple[str, ...] = ()
    rewritten: int = 0

    @property
    def gains_nothing(self) -> bool:
        """Whether all arrays were copied as they are."""
        return self.rewritten == 0 and not self.kept

    def __str__(self) -> str:
        """Return what was gained, in lines."""
        lines = [
            f"{counted(len(self.paths), 'file')}, {_size(self.bytes_before)} before, {_size(self.bytes_after)} after"
        ]
        if self.kept:
            lines[0] += f"; {len(self.kept)} of them were there"
        if self.chunks_before:
            lines.append(f"chunks: {self.chunks_before} before, {self.chunks_after} after")
        if self.gains_nothing:
            lines.append(
                "no array changed: from the layouts that they have, other chunks make a shuffled epoch no faster. "
                "chunk_rows, chunk_bytes or codec write others; lz4 decodes fastest."
            )
        if self.rate_before and self.rate_after:
            gain = self.rate_after / self.rate_before
            lines.append(
                f"shuffled epoch, on a sample: {self.rate_before:.0f} rows/s before, {self.rate_after:.0f} after "
                f"({gain:.1f}x)"
            )
        if self.not_measured:
            lines.append(
                f"a shuffled epoch was not measured, as files need more options to be read: {self.not_measured}. "
                "ray-h5 bench takes such options, and measures inputs and outputs."
            )
        if self.dropped:
            lines.append(f"left out: {few(list(self.dropped))}")
        return "\n".join(lines)


def _size(nbytes: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1000
    return f"{nbytes:.1f} TB"
