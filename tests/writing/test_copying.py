"""`FileCopy`: h5py reads from a copy what it reads from the source, attributes and all."""

import h5py
import hdf5plugin
import numpy as np
import pytest

import ray_h5
from ray_h5 import RowReader
from ray_h5.codecs.encode import CODEC_NAMES
from ray_h5.errors import OptionError, UnsupportedColumnError, VerifyError
from ray_h5.writing.file_writer import OutputFile
from ray_h5.writing.repack.copy_file import FileCopy, NewLayout
from tests.hdf5.h5kit import flip


def everything(path, link=False):
    rng = np.random.default_rng(0)
    with h5py.File(path, "w", track_order=True) as file:
        file.attrs["title"] = "ü"
        noise = rng.standard_normal((5, 30000))
        large = file.create_dataset("large", data=noise, chunks=(2, 30000), compression="gzip", fillvalue=3)
        large.attrs["of"] = large.ref
        large.attrs["unit"] = "m"
        file.attrs["bytes"] = np.bytes_("fixed")
        file.attrs["numbers"] = np.arange(3, dtype=">i2")
        file.attrs["nothing"] = h5py.Empty("f4")
        file.attrs["texts"] = np.array(["a", "bb"], h5py.string_dtype())
        image = rng.integers(0, 255, (500, 8, 8)).astype("u1")
        x = file.create_dataset(
            "images/x", data=image, chunks=(100, 4, 8), compression="gzip", shuffle=True, fillvalue=7
        )
        x.attrs["unit"] = "px"
        file.create_dataset(
            "big", data=rng.integers(0, 9, 301).astype(">i4"), chunks=(100,), maxshape=(None,), compression="lzf"
        )
        file.create_dataset("plain", data=rng.standard_normal((400, 3)))
        file.create_dataset("zstd", data=rng.standard_normal((40, 3)), chunks=(7, 3), **hdf5plugin.Zstd())
        half = file.create_dataset("half", (90,), "i4", chunks=(4,), fillvalue=5, **hdf5plugin.Bitshuffle())
        half[7:30] = rng.integers(0, 99, 23)
        file.create_dataset("shuffled", data=np.arange(90), chunks=(4,), **hdf5plugin.Bitshuffle())
        file.create_dataset("scalar", data=3.5)
        file.create_dataset("empty", (0, 3), "f4", maxshape=(None, 3), chunks=(5, 3))
        file.create_dataset("null", data=h5py.Empty("i8"))
        file.create_dataset(
            "text", data=np.array(["a", "", "ü" * 50] * 50, object), dtype=h5py.string_dtype(), chunks=(10,)
        )
        ends = h5py.h5t.C_S1.copy()
        ends.set_size(2)  # a text that ends with a NUL, or fills its place
        for name, data in (("c", np.array([b"ab", b"c"] * 50, "S2")),):
            made = h5py.h5d.create(file.id, name.encode(), ends, h5py.h5s.create_simple(data.shape))
            made.write(h5py.h5s.ALL, h5py.h5s.ALL, data, ends)
            found = h5py.h5a.create(made, b"unit", ends, h5py.h5s.create(h5py.h5s.SCALAR))
            found.write(np.array(b"mm", "S2"), ends)
        file.create_dataset("fixed", data=np.array([b"abc", b"de"] * 100))
        file.create_dataset("enum", data=np.array([0, 1] * 50, "u1"), dtype=h5py.enum_dtype({"no": 0, "yes": 1}, "u1"))
        file.create_dataset("bool", data=np.array([True, False] * 50), chunks=(10,))
        kind = np.dtype([("t", "f8"), ("name", "S4"), ("v", "f4", (2,))])
        file.create_dataset("compound", data=np.zeros(100, kind), chunks=(20,), compression="gzip")
        plain = np.array(["a", "b"], object)
        file.create_dataset("filled", data=plain, dtype=h5py.string_dtype(), fillvalue="none", maxshape=(None,))
        texts = np.array([("a", 1), ("bb", 2)], [("t", h5py.string_dtype()), ("n", "i4")])
        file.create_dataset("records", data=texts)
        vlen = file.create_dataset("vlen", (3,), h5py.vlen_dtype("i4"))
        vlen[0], vlen[2] = [1, 2], [3]
        file.create_dataset("unwritten", (1000, 4), "f4", chunks=(100, 4), fillvalue=2.5)
        file["images/x"].dims[0].label = "time"
        file["scale"] = np.arange(500.0)
        file["scale"].make_scale("t")
        file["images/x"].dims[0].attach_scale(file["scale"])
        file["refs"] = np.array([file["plain"].ref, file["images"].ref], h5py.ref_dtype)
        at = np.array([(3, file["plain"].ref), (4, h5py.Reference())], [("n", "i4"), ("of", h5py.ref_dtype)])
        file["records of references"] = at
        file.attrs["record"] = at[0]
        file["regions"] = np.array([file["plain"].regionref[3:5]], h5py.regionref_dtype)
        file.attrs["region"] = file["plain"].regionref[1:2, 0]
        file.create_dataset("lists of references", (2,), h5py.vlen_dtype(h5py.ref_dtype))
        file["lists of references"][1] = np.array([file["plain"].ref, file["images"].ref], h5py.ref_dtype)
        file.create_dataset("lists of texts", (3,), h5py.vlen_dtype(h5py.string_dtype()))[1] = np.array(
            ["a", "ü"], object
        )
        file["kind"] = h5py.enum_dtype({"no": 0, "yes": 5}, "i1")
        file.create_dataset("a kind", (300,), file["kind"], chunks=(20,), compression="gzip")[::2] = 5
        file["a kind"].attrs.create("flag", 5, dtype=file["kind"])
        few_bits = h5py.h5t.STD_I32LE.copy()
        few_bits.set_precision(20)
        h5py.h5d.create(file.id, b"few bits", few_bits, h5py.h5s.create_simple((400,)))
        file["few bits"][:] = np.arange(400)
        file["again"] = file["plain"]
        file["soft"] = h5py.SoftLink("/images/x")
        file["type"] = np.dtype("f2")
        file.create_group("g/h", track_order=True).attrs["ref"] = file["big"].ref
        if link:
            file["elsewhere"] = h5py.ExternalLink("other.h5", "/x")
            file.id.links.create_soft(b"\xff", b"/plain")
            file["ids"] = np.arange(3)
            h5py.h5a.create(file["ids"].id, b"time", h5py.h5t.UNIX_D32LE.copy(), h5py.h5s.create(h5py.h5s.SCALAR))
            layout = h5py.VirtualLayout((10,), "i4")
            layout[:] = h5py.VirtualSource("other.h5", "x", (10,))
            file.create_virtual_dataset("virtual", layout)
            file["virtual again"] = file["virtual"]


def seen(value, file):
    """Return a value that compares, with names for references."""
    if isinstance(value, h5py.Empty):
        return repr(value.dtype)
    if isinstance(value, h5py.RegionReference):
        return file[value].name, h5py.h5r.get_region(value, file.id).get_select_bounds()
    if isinstance(value, h5py.Reference):
        return file[value].name.replace("again", "plain") if value else None
    if isinstance(value, (np.ndarray, np.void)) and (value.dtype == object or value.dtype.names):
        values = value.tolist() if value.dtype.names or value.dtype != object else value
        return [seen(each, file) for each in np.asarray(value, object).reshape(-1).tolist()] if values is value else [
            seen(each, file) for each in (values if isinstance(values, (list, tuple)) else [values])
        ]  # fmt: skip
    if isinstance(value, (tuple, list)):
        return [seen(each, file) for each in value]
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.tobytes()
    return repr(value)


def contents(path):
    found = {}
    with h5py.File(path) as file:

        def look(name, item=None):
            item = file[name]
            facts = [type(item).__name__, {each: seen(item.attrs[each], file) for each in item.attrs}]
            if isinstance(item, h5py.Group):
                facts += [list(item)]
            if isinstance(item, h5py.Dataset):
                type_ = item.id.get_type()
                facts += [item.shape, item.maxshape, str(item.dtype), seen(item[()], file), repr(item.fillvalue)]
                facts += [type_.get_class(), type_.get_size(), h5py.check_enum_dtype(item.dtype)]
                facts += [type_.committed() and h5py.h5i.get_name(type_)]
                if item.ndim:
                    facts += [[scale.name for scale in item.dims[0].values()], item.dims[0].label, item.is_scale]
            found[name] = facts

        look("/")
        file.visit(look)
        found["soft"] = file.get("soft", getlink=True).path
        found["same"] = file["again"] == file["plain"]
    return found


RULES = {
    "nothing": lambda _: None,
    "rows": lambda _: NewLayout(30, "zstd"),
    "one row, not encoded": lambda _: NewLayout(1, "none"),
    "all rows": lambda _: NewLayout(10**6, "gzip"),
    "chunked ones": lambda array: NewLayout(13, "blosc") if array.chunk_shape else None,
}


@pytest.mark.parametrize("rule", RULES)
def test_everything_is_there(tmp_path, rule):
    source, out = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    everything(source)
    with h5py.File(source) as one:
        copy = FileCopy(one, source, RULES[rule], threads=2)
        with OutputFile(out, threads=2, keeps_sums=True, **copy.creation) as file:
            copy.write(file)
        assert copy.result.dropped == []
        file.verify()
        copy.verify(out)
    one, other = contents(source), contents(out)
    assert one.keys() == other.keys()
    for name in one:
        assert one[name] == other[name], name
    assert (copy.result.rewritten == 0) == (rule == "nothing")
    if rule == "rows":
        with h5py.File(out) as file:
            assert file["images/x"].chunks == (30, 8, 8)
            assert file["plain"].chunks == (30, 3)


@pytest.mark.parametrize("codec", CODEC_NAMES)
@pytest.mark.parametrize("kind", ["zeros", "noise"])
def test_checksums_of_chunks_are_kept(tmp_path, codec, kind):
    source, out = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    values = np.zeros((50, 33), "u1") if kind == "zeros" else np.random.default_rng(0).integers(0, 256, (50, 33), "u1")
    with h5py.File(source, "w") as file:
        file.create_dataset("x", data=values, chunks=(4, 33), compression="gzip", fletcher32=True)
    with h5py.File(source) as one, OutputFile(out) as file:
        copy = FileCopy(one, source, lambda _: NewLayout(7, codec))
        copy.write(file)
    with h5py.File(out) as file:
        assert file["x"].fletcher32
        assert file["x"].chunks == (7, 33)
        np.testing.assert_array_equal(file["x"][:], values)  # libhdf5 compares the checksums
        place, size = file["x"].id.get_chunk_info(3)[2:]
    with RowReader(out) as reader:
        np.testing.assert_array_equal(reader.read(["x"])["x"], values)
    flip(out, place + size - 6)
    with h5py.File(out) as file, pytest.raises(OSError, match="filter"):
        file["x"][21:28]


def test_chunks_that_do_not_change_are_copied_as_they_are(tmp_path):
    source, out = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    everything(source)
    with h5py.File(source) as one, OutputFile(out) as file:
        copy = FileCopy(one, source, lambda array: NewLayout(7, "zstd") if array.name == "zstd" else None)
        copy.write(file)
    with h5py.File(source) as one, h5py.File(out) as other:
        for chunk in range(3):
            assert one["zstd"].id.read_direct_chunk((7 * chunk, 0)) == other["zstd"].id.read_direct_chunk(
                (7 * chunk, 0)
            )


@pytest.mark.parametrize("rows", [{}, {"chunk_rows": 3}])
@pytest.mark.parametrize("codec", ["keep", "none", "lz4"])
@pytest.mark.parametrize(("shape", "chunk"), [((20, 1), (8, 1)), ((4, 6), (3, 1)), ((4, 6, 2), (2, 6, 1))])
def test_chunks_of_an_array_that_grows_along_its_second_axis(tmp_path, shape, chunk, codec, rows):
    values = np.arange(np.prod(shape)).reshape(shape)
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.create_dataset("x", data=values, chunks=chunk, maxshape=(shape[0], None, *shape[2:]), compression="gzip")
    ray_h5.repack(tmp_path / "a.h5", tmp_path / "out", codec=codec, verify=True, **rows)
    with h5py.File(tmp_path / "out/a.h5") as file:
        np.testing.assert_array_equal(file["x"], values)


def test_xarray_reads_a_repacked_file_of_netcdf(tmp_path):
    xarray = pytest.importorskip("xarray")
    from ray_h5 import repack

    time = np.arange(50)
    data = xarray.Dataset(
        {"t": (("time", "x"), np.random.default_rng(0).standard_normal((50, 6)), {"units": "K"})},
        {"time": time, "x": list("abcdef")},
        {"title": "kept"},
    )
    packed = {"t": {"dtype": "i2", "scale_factor": 0.01, "_FillValue": -1, "chunksizes": (7, 3)}}
    data.to_netcdf(tmp_path / "a.nc", engine="netcdf4", encoding=packed)
    repack(tmp_path / "a.nc", tmp_path / "out", chunk_rows=5, codec="gzip")
    for engine in ("h5netcdf", "netcdf4"):
        with (
            xarray.open_dataset(tmp_path / "a.nc", engine=engine) as one,
            xarray.open_dataset(tmp_path / "out/a.nc", engine=engine) as other,
        ):
            assert one.identical(other)
            assert other.t.encoding["chunksizes"] == (5, 6)


@pytest.mark.parametrize("rows", [None, 7])
def test_bytes_before_the_file_and_large_attributes_are_kept(tmp_path, rows):
    from ray_h5 import repack

    source = tmp_path / "a.mat"
    with h5py.File(source, "w", userblock_size=1024, libver=("v108", "latest"), track_order=True) as file:
        file.attrs["large"] = np.arange(40000.0)
        file.create_dataset("z", data=np.arange(30000.0).reshape(300, 100), chunks=(100, 100), compression="gzip")
        file["a"] = np.arange(5)
    with open(source, "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file".ljust(512, b" "))
    out = tmp_path / "b.mat"
    repack(source, out, chunk_rows=rows)
    assert out.read_bytes()[:1024] == source.read_bytes()[:1024]
    with h5py.File(out) as file:
        assert list(file) == ["z", "a"]
        np.testing.assert_array_equal(file.attrs["large"], np.arange(40000.0))
        np.testing.assert_array_equal(file["z"][:], np.arange(30000.0).reshape(300, 100))
    with pytest.raises(OptionError, match=r"page=4096: .*a.mat begins with 1024 bytes that are not HDF5"):
        repack(source, tmp_path / "c.mat", page="4KiB")
    repack(source, tmp_path / "c.mat", page="4KiB", drop=True)


@pytest.mark.parametrize("libver", ["earliest", "v108", "latest"])
@pytest.mark.parametrize(("track_order", "codec"), [(False, "zstd"), (True, None)])
def test_groups_of_many_members_and_attributes(tmp_path, libver, track_order, codec):
    with h5py.File(tmp_path / "a.h5", "w", libver=libver, track_order=track_order) as file:
        for group in ("/", "g", "g/h"):
            made = file if group == "/" else file.create_group(group, track_order=track_order)
            for number in reversed(range(40)):
                made.create_dataset(f"d{number}", data=np.arange(4) + number)
                made.attrs[f"a{number}"] = f"text {number}"
    ray_h5.repack(tmp_path / "a.h5", tmp_path / "b.h5", codec=codec)
    with h5py.File(tmp_path / "a.h5") as one, h5py.File(tmp_path / "b.h5") as other:
        for group in ("/", "g", "g/h"):
            assert list(one[group]) == list(other[group])
            assert dict(one[group].attrs) == dict(other[group].attrs)
            assert list(one[group].attrs) == list(other[group].attrs)
            assert all((one[group][f"d{number}"][:] == other[group][f"d{number}"][:]).all() for number in range(40))


def test_what_cannot_be_kept_is_named(tmp_path):
    source, out = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    everything(source, link=True)
    lost = "a link to another file.*a name that is not.*attribute 'time' of 'ids', whose type.*'virtual', a virtual"
    with h5py.File(source) as one, pytest.raises(UnsupportedColumnError, match=lost):
        FileCopy(one, source, RULES["nothing"])
    with h5py.File(source) as one, OutputFile(out) as file:
        copy = FileCopy(one, source, RULES["nothing"], drop=True)
        copy.write(file)
    assert len(copy.result.dropped) == 4
    with h5py.File(source) as one, h5py.File(out) as other:
        assert {*other} == {*one} - {"virtual", "virtual again", "elsewhere", b"\xff"}


def test_a_changed_copy_is_found(tmp_path):
    source, out = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    everything(source)
    with h5py.File(source) as one, OutputFile(out) as file:
        copy = FileCopy(one, source, RULES["nothing"])
        copy.write(file)
    with h5py.File(out) as found:
        at = found["plain"].id.get_offset()
    with open(out, "r+b") as raw:
        raw.seek(at + 100)
        raw.write(b"\x55")
    with h5py.File(source) as one, pytest.raises(VerifyError, match="'plain'"):
        FileCopy(one, source, RULES["nothing"]).verify(out)


@pytest.mark.parametrize("codec", ["Zstd", "LZ4", "BZip2"])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_texts_and_lists_that_plugins_encoded(tmp_path, codec, libver):
    source, copied = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    made = {"chunks": (100,), "maxshape": (None,), **getattr(hdf5plugin, codec)()}
    with h5py.File(source, "w", libver=libver) as file:
        file.create_dataset("text", data=["a" * (i % 7) for i in range(3000)], dtype=h5py.string_dtype(), **made)
        lists = file.create_dataset("lists", (3000,), h5py.vlen_dtype("i2"), **made)
        for i in range(0, 3000, 7):
            lists[i] = np.arange(i % 5)
        ones = np.empty(3000, lists.dtype)
        for i in range(3000):
            ones[i] = np.array([i], "i2")
        file.create_dataset("ones", (3000,), lists.dtype, **made).id.write(h5py.h5s.ALL, h5py.h5s.ALL, ones)
        file.create_dataset("unwritten", (3000,), h5py.string_dtype(), **made)
    ray_h5.repack(source, copied)
    with h5py.File(source) as one, h5py.File(copied) as other:
        for name in one:
            assert one[name].chunks == other[name].chunks, name
            assert [np.array(each).tolist() for each in one[name]] == [np.array(each).tolist() for each in other[name]]


def test_lists_of_arrays_that_pytables_encoded(tmp_path):
    tables = pytest.importorskip("tables", reason="PyTables writes the file")
    source, copied = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    expected = [np.full((i % 5, 2), i, "f4") for i in range(300)]
    with tables.open_file(source, "w", filters=tables.Filters(5, "blosc")) as file:
        lists = file.create_vlarray("/", "lists", tables.Float32Atom(shape=(2,)), chunkshape=100)
        for each in expected:
            lists.append(each)
    ray_h5.repack(source, copied)
    with tables.open_file(copied) as file:
        assert all(np.array_equal(one, other) for one, other in zip(file.root.lists, expected, strict=True))


def test_attributes_that_are_lists_of_big_endian_numbers(tmp_path):
    source, copied = str(tmp_path / "a.h5"), str(tmp_path / "b.h5")
    type_ = h5py.vlen_dtype(np.dtype(">i4"))
    with h5py.File(source, "w") as file:
        file.create_dataset("x", data=np.arange(9), chunks=(3,))
        file.create_group("g")
        for item in (file, file["x"], file["g"]):
            lists = np.empty(2, type_)
            lists[0], lists[1] = np.arange(3, dtype=">i4"), np.arange(1, dtype=">i4")
            place = h5py.h5s.create_simple((2,))
            h5py.h5a.create(item.id, b"lists", h5py.h5t.py_create(type_, logical=True), place).write(lists)
    ray_h5.repack(source, copied)
    with h5py.File(source) as one, h5py.File(copied) as other:  # h5py returns their bytes in the order of the file
        for name in ("/", "x", "g"):
            pairs = zip(one[name].attrs["lists"], other[name].attrs["lists"], strict=True)
            assert all(np.array_equal(*pair) for pair in pairs), name
