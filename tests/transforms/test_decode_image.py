"""Encoded images: the pixels are Pillow's; what is cut short, damaged or too large is refused."""

import gc
import io
import struct
import sys
import zlib

import imagecodecs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ray_h5.transforms.decode_image import HeaderError, decode_image

IMAGECODECS_IS_OLD = imagecodecs.__version__ < "2025.8"
"""The last release for Python 3.10 neither decodes TIFF of single bits nor encodes TIFF."""

encodes_tiff = pytest.mark.skipif(IMAGECODECS_IS_OLD, reason="imagecodecs does not encode TIFF")

RNG = np.random.default_rng(0)


def picture(height=60, width=80):
    small = Image.fromarray(RNG.integers(0, 255, (8, 8, 3), dtype="u1"))
    return small.resize((width, height), Image.Resampling.BICUBIC)


def encoded(image, kind, **options):
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def with_alpha(image):
    image = image.convert("RGBA")
    image.putalpha(image.convert("L"))
    return image


def cases():
    rgb = picture()
    found = {}
    bits = () if IMAGECODECS_IS_OLD else ("1",)
    for mode in ("1", "L", "LA", "RGB", "RGBA"):
        found[f"png {mode}"] = encoded(with_alpha(rgb) if mode == "RGBA" else rgb.convert(mode), "PNG")
    found["png palette"] = encoded(rgb.quantize(16), "PNG")
    found["png palette of 2 bits"] = encoded(rgb.quantize(4), "PNG", bits=2)
    found["png palette, transparent"] = encoded(rgb.quantize(16), "PNG", transparency=3)
    found["png RGB, transparent"] = encoded(rgb, "PNG", transparency=(1, 2, 3))
    found["png grey, transparent"] = encoded(rgb.convert("L"), "PNG", transparency=7)
    for mode in ("L", "RGB", "CMYK"):
        for progressive in (False, True):
            found[f"jpeg {mode} {progressive}"] = encoded(rgb.convert(mode), "JPEG", progressive=progressive)
    found["jpeg 4:2:0"] = encoded(rgb, "JPEG", subsampling=2)
    preview = encoded(picture(8, 8), "JPEG")
    found["jpeg with a preview"] = encoded(rgb, "JPEG", exif=b"Exif\0\0" + preview)
    for lossless in (False, True):
        found[f"webp {lossless}"] = encoded(rgb, "WEBP", lossless=lossless)
        found[f"webp RGBA {lossless}"] = encoded(with_alpha(rgb), "WEBP", lossless=lossless)
    for mode in (*bits, "L", "LA", "RGB", "RGBA", "CMYK"):
        found[f"tiff {mode}"] = encoded(rgb.convert(mode), "TIFF")
    found["tiff palette"] = encoded(rgb.quantize(16), "TIFF")
    for how in ("tiff_lzw", "tiff_adobe_deflate"):
        found[how] = encoded(rgb, "TIFF", compression=how)
    for mode in bits:
        found["tiff group4"] = encoded(rgb.convert(mode), "TIFF", compression="group4")
    return found


CASES = cases()


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("name", CASES)
def test_pixels_are_those_of_pillow(name, mode):
    image = Image.open(io.BytesIO(CASES[name]))
    expected = np.array(image.convert(mode)).reshape(60, 80, -1)
    assert np.array_equal(decode_image(CASES[name], mode), expected)
    assert np.array_equal(decode_image(CASES[name] + bytes(100), mode), expected)  # padded


@pytest.mark.parametrize("name", CASES)
def test_an_image_that_is_cut_short_is_refused(name):
    data = CASES[name]
    for length in {0, 1, 7, 20, *range(0, len(data) - 1, max(1, len(data) // 40))}:
        with pytest.raises(HeaderError):
            decode_image(data[:length])


@encodes_tiff
def test_values_of_16_bits_become_their_upper_8():
    wide = RNG.integers(0, 1 << 16, (40, 30, 3), dtype="u2")
    for data in (imagecodecs.png_encode(wide), tiff(wide)):
        assert np.array_equal(decode_image(data), wide >> 8)
        assert np.array_equal(decode_image(data, "unchanged"), wide)
    grey = imagecodecs.png_encode(np.ascontiguousarray(wide[..., 0]))
    assert np.array_equal(decode_image(grey, "L")[..., 0], wide[..., 0] >> 8)
    assert decode_image(grey, "unchanged").shape == (40, 30, 1)


def tiff(array):
    return bytes(imagecodecs.tiff_encode(array))


@encodes_tiff
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_floats_have_no_colours(dtype):
    values = RNG.random((8, 9), dtype=dtype)
    data = tiff(values)
    with pytest.raises(HeaderError, match=rf"{values.dtype}.*mode='unchanged'"):
        decode_image(data)
    assert np.array_equal(decode_image(data, "unchanged")[..., 0], values)


@encodes_tiff
@pytest.mark.parametrize(("dtype", "shape"), [("u1", (8, 9)), ("u2", (8, 9, 4)), ("u4", (8, 9)), ("i2", (8, 9))])
def test_values_of_a_tiff_are_those_of_the_file(dtype, shape):
    values = RNG.integers(0, 100, shape).astype(dtype)
    assert np.array_equal(decode_image(tiff(values), "unchanged").reshape(shape), values)


@encodes_tiff
def test_a_tiff_that_claims_many_channels_takes_no_memory():
    data = bytearray(tiff(RNG.integers(0, 100, (8, 9, 3), dtype="u1")))
    samples = data.index(struct.pack("<HHI", 277, 3, 1))
    data[samples + 8 : samples + 10] = struct.pack("<H", 60_000)
    with pytest.raises(HeaderError, match="60000 channels"):
        decode_image(bytes(data))


def test_white_is_zero():
    data = bytearray(CASES_L)
    photometric = data.index(struct.pack("<HHI", 262, 3, 1))
    data[photometric + 8] = 0
    assert np.array_equal(decode_image(bytes(data), "L"), 255 - decode_image(CASES_L, "L"))


CASES_L = encoded(picture().convert("L"), "TIFF")


def chunk(kind, body):
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def bombs():
    size = struct.pack(">II", 100_000, 100_000)
    png = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size + b"\x08\x02\0\0\0") + chunk(b"IDAT", zlib.compress(bytes(99)))
    jpeg = bytearray(CASES["jpeg RGB False"])
    frame = jpeg.index(b"\xff\xc0")
    jpeg[frame + 5 : frame + 9] = struct.pack(">HH", 65_500, 65_500)
    lossy = bytearray(CASES["webp False"])
    lossy[26:30] = struct.pack("<HH", 16_383, 8_191)
    wide = bytearray(encoded(picture().convert("L"), "TIFF"))
    at = wide.index(struct.pack("<HH", 256, 4) if struct.pack("<HH", 256, 4) in wide else struct.pack("<HH", 256, 3))
    wide[at : at + 12] = struct.pack("<HHII", 256, 4, 1, 1 << 30)
    return {
        "png": png + chunk(b"IEND", b""),
        "jpeg": bytes(jpeg),
        "webp": bytes(lossy),
        "tiff": bytes(wide),
    }


@pytest.mark.parametrize("name", ["png", "jpeg", "webp", "tiff"])
def test_a_bomb_is_refused_by_its_header(name):
    with pytest.raises(HeaderError, match=r"claims \d+ x \d+ pixels; expected at most max_pixels=67108864"):
        decode_image(bombs()[name], "RGB", 1 << 26)


def test_the_frame_of_a_webp_does_not_have_to_be_as_its_canvas_claims():
    data = bytearray(CASES["webp RGBA False"])
    assert data[12:16] == b"VP8X"
    data[24:30] = bytes(6)  # a canvas of 1 x 1
    with pytest.raises(HeaderError):
        decode_image(bytes(data), "RGB", 100)


OTHERS = {
    b"": "it is empty",
    bytes(100): "100 bytes of zeros",
    b"GIF89a" + bytes(20): "it is GIF; JPEG, PNG, WebP and TIFF are decoded",
    b"\0\0\0\x1cftypavif" + bytes(20): "it is AVIF",
    b"hello, world": "of an unknown format, it begins with 68 65 6c 6c 6f 2c 20 77",
    b"\xff\x0a" + bytes(20): "it is JPEG XL; .* Decode others in a function of map_batches",
    b"\xff\xd8\xff\xd9": "its header cannot be read",
}


@pytest.mark.parametrize("data", OTHERS, ids=list(OTHERS.values()))
def test_what_is_no_image(data):
    with pytest.raises(HeaderError, match=OTHERS[data]):
        decode_image(data)


SEEDS = [encoded(picture(16, 24), kind) for kind in ("JPEG", "PNG", "WEBP", "TIFF")] + [
    encoded(picture(16, 24), "TIFF", compression="tiff_lzw"),
    encoded(picture(16, 24).convert("CMYK"), "JPEG"),
]


@given(st.integers(0, len(SEEDS) - 1), st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=4))
def test_damage_is_an_error_or_an_image_of_the_size_in_the_header(seed, changes):
    data = bytearray(SEEDS[seed])
    for at, value in changes:
        data[at % len(data)] = value
    try:
        found = decode_image(bytes(data), "RGB", 1 << 16)
    except HeaderError:
        return
    assert found.shape[0] * found.shape[1] <= 1 << 16
    assert found.shape[2:] == (3,)
    assert found.dtype == np.uint8


def test_a_damaged_png_takes_no_memory_and_no_references():
    # libpng's wrapper loses references after an error; Python ends if None has none left.
    body = zlib.compress(bytes([9]) * (16 * 73))  # there is no such filter
    size = struct.pack(">II", 24, 16) + b"\x08\x02\0\0\0"
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", size) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    gc.collect()  # what earlier tests left holds None, too
    before = sys.getrefcount(None)
    for _ in range(1000):
        with pytest.raises(HeaderError, match="PNG decoder says"):
            decode_image(data)
    gc.collect()
    assert abs(sys.getrefcount(None) - before) < 500
