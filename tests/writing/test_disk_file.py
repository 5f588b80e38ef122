"""`DiskFile`: what was written is read back, also by the methods of `io` that pass their own buffers."""

from ray_h5.writing.disk_file import DiskFile


def test_what_was_written_is_read(tmp_path):
    with DiskFile(str(tmp_path / "a")) as file:
        file.write(b"hello")
        file.seek(0)
        assert file.read(5) == b"hello"
