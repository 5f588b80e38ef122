"""The decoders of the compiled loop against those of Python, which libhdf5 is compared with elsewhere."""

import itertools

import h5py
import hdf5plugin
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ray_h5 import RowReader
from ray_h5.codecs import filter_ids
from ray_h5.codecs.basic_codecs import DecodeError
from ray_h5.codecs.pipeline import ChunkDecoder
from ray_h5.manifest.layout import FilterPipeline, FilterStep
from ray_h5.read.native.job_table import IN_PYTHON, PIPELINES, pipeline_number
from ray_h5.read.native.library import compiled_loop
from tests.kit.files import save

pytestmark = pytest.mark.skipif(compiled_loop() is None, reason="the loop is not compiled")

FILTERS = {
    "lzf": {"compression": "lzf"},
    "gzip": {"compression": "gzip", "compression_opts": 1},
    "gzip, shuffle": {"compression": "gzip", "shuffle": True},
    "gzip, shuffle, fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf, fletcher32": {"compression": "lzf", "fletcher32": True},
    "shuffle": {"shuffle": True},
    "fletcher32": {"fletcher32": True},
    "zstd": dict(hdf5plugin.Zstd()),
    "zstd, shuffle": {**hdf5plugin.Zstd(), "shuffle": True},
    "lz4": dict(hdf5plugin.LZ4()),
    "lz4, small blocks": dict(hdf5plugin.LZ4(nbytes=128)),
    "blosc": dict(hdf5plugin.Blosc(cname="lz4", shuffle=1)),
    "bitshuffle": dict(hdf5plugin.Bitshuffle(cname="none")),
    "bitshuffle, lz4": dict(hdf5plugin.Bitshuffle(cname="lz4")),
    "bitshuffle, zstd, small blocks": dict(hdf5plugin.Bitshuffle(nelems=16, cname="zstd")),
}


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """For each filter and kind of values: the pipeline, the chunk's filter mask, its stored bytes and its values."""
    folder, found = tmp_path_factory.mktemp("stored"), {}
    random = np.random.default_rng(0)
    kinds = {
        "runs": np.repeat(np.arange(40), 25).astype("<f4"),
        "noise": random.integers(0, 2**32, 1000, dtype="<u4"),
        "shorts": random.integers(0, 50, 999).astype("<i2"),
        "doubles": np.round(random.normal(size=777), 1),
        "bytes": random.integers(0, 3, 1003).astype("u1"),
        "complex": random.integers(0, 3, 101).astype("<c16"),
    }
    for name, options in FILTERS.items():
        for kind, values in kinds.items():
            path = save(folder / f"{name}{kind}.h5", {"x": values}, chunks=(len(values),), **options)
            layout = RowReader(path).column("x")
            with h5py.File(path) as file:
                mask, data = file["x"].id.read_direct_chunk((0,))
            found[name, kind] = layout.pipeline, mask, data, values
    return found


def decoded(pipeline, mask, data, nbytes):
    """Return what the compiled loop makes of a chunk, or None if it declines; nothing is written beyond it."""
    loop, number = compiled_loop(), pipeline_number(pipeline)
    assert number != IN_PYTHON
    stored = np.frombuffer(bytes(data), np.uint8)
    out = np.full(nbytes + 64, 0xA5, np.uint8)
    row, context = PIPELINES.value.rows[number].ctypes.data, loop.of_thread.value.address
    done = loop.library.ray_h5_decode(context, row, mask, stored.ctypes.data, len(stored), out.ctypes.data, nbytes)
    assert (out[nbytes:] == 0xA5).all()
    return out[:nbytes].tobytes() if done else None


def decoded_in_python(pipeline, mask, data, nbytes):
    out = np.empty(nbytes, np.uint8)
    try:
        stored = np.frombuffer(bytes(data), np.uint8)
        ChunkDecoder(pipeline, nbytes).decode(stored, mask, out)
    except DecodeError:
        return None
    return out.tobytes()


def test_all_libraries_of_imagecodecs_are_found():
    assert compiled_loop().decodes >= {
        filter_ids.DEFLATE,
        filter_ids.LZF,
        filter_ids.ZSTD,
        filter_ids.LZ4,
        filter_ids.BLOSC,
    }


@pytest.mark.parametrize("name", FILTERS)
def test_chunks_decode_to_what_was_written(stored, name):
    for (filters_of, _), (pipeline, mask, data, values) in stored.items():
        if filters_of == name:
            assert decoded(pipeline, mask, data, values.nbytes) == values.tobytes()


@given(st.data())
def test_damaged_chunks_are_declined_or_equal_to_python(stored, data):
    pipeline, mask, chunk, values = stored[data.draw(st.sampled_from(sorted(stored)))]
    damaged = bytearray(chunk)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.one_of(st.integers(0, min(40, len(damaged) - 1)), st.integers(0, len(damaged) - 1)))
        damaged[at] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.one_of(st.just(len(damaged)), st.integers(0, len(damaged))))]
    nbytes = values.nbytes + data.draw(st.sampled_from([0, 0, 0, -1, 1, 7]))
    found = decoded(pipeline, mask, damaged, nbytes)
    # What the loop declines runs again in Python: only what it takes has to be the same.
    if found is not None:
        assert found == decoded_in_python(pipeline, mask, damaged, nbytes)


@pytest.mark.parametrize("element", [1, 2, 3, 4, 5, 8, 12, 16, 100])
def test_unshuffle(element):
    step = FilterStep(filter_ids.SHUFFLE, "shuffle", (element,))
    for length, rest in itertools.product([0, 1, 15, 16, 17, 100, 1000], [0, 1]):
        size = element * length + min(rest, element - 1)
        values = np.random.default_rng(size).integers(0, 256, size, dtype=np.uint8)
        planes = values[: element * length].reshape(length, element).T.tobytes() + values[element * length :].tobytes()
        assert decoded(FilterPipeline((step,)), 0, planes, size) == values.tobytes(), (length, rest)
