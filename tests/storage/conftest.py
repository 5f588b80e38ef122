import subprocess

import pytest


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder], capture_output=True, check=False
    ).returncode:
        pytest.skip("this user may not mount file systems")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)
