"""What a release uploads is whole: a wheel for each platform, with its library, for systems as old as its tag says.

``python .ci/check_wheels.py FOLDER``
"""

import re
import runpy
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
TAGS = runpy.run_path(str(ROOT / "ray_h5" / "read" / "native" / "build.py"))["TARGETS"].values()
MAGIC = {"macosx": b"\xcf\xfa\xed\xfe", "manylinux": b"\x7fELF", "musllinux": b"\x7fELF"}
MOST_BYTES = 3 * 2**20
OLDEST_GLIBC = (2, 17)


def check(folder: Path, tag: str) -> None:
    (wheel,) = folder.glob(f"ray_h5-*-py3-none-{tag}.whl")
    assert wheel.stat().st_size < MOST_BYTES, wheel
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as unpacked:
        (library,) = [name for name in archive.namelist() if name.endswith(".lib")]
        path = Path(archive.extract(library, unpacked))
        assert path.read_bytes().startswith(MAGIC[tag.split("_", maxsplit=1)[0].rstrip("0123456789")]), (wheel, library)
        if "linux" not in tag:
            return
        # binutils of this machine list the symbols of any platform that has the same file format.
        symbols = subprocess.run(["objdump", "-T", path], capture_output=True, text=True, check=False).stdout
        versions = {tuple(map(int, version)) for version in re.findall(r"GLIBC_(\d+)\.(\d+)", symbols)}
        assert max(versions, default=(0, 0)) <= OLDEST_GLIBC, (wheel, max(versions))
    shown = subprocess.run(["auditwheel", "show", wheel], capture_output=True, text=True, check=True).stdout
    found = re.search(r'(?:platform tag:|the platform tag to) "(\w+)"', " ".join(shown.split()))
    assert found is not None, shown
    # manylinux2014 is the older name of manylinux_2_17.
    assert found[1] == tag.replace("manylinux2014", "manylinux_2_17"), (tag, found[1])


if __name__ == "__main__":
    for tag in TAGS:
        check(Path(sys.argv[1]), tag)
        print(f"{tag}: as its tag says")
