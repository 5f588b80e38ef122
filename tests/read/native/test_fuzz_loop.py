"""Damaged chunks and positions under AddressSanitizer: the loop reads and writes nothing outside its buffers."""

import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from ray_h5.read.native.job_table import PIPELINES, pipeline_number
from ray_h5.read.native.library import _brought, compiled_loop
from tests.read.native.test_decode import stored  # noqa: F401  a fixture

FLAGS = (
    "-O1",
    "-g",
    "-pthread",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-omit-frame-pointer",
)


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_decoders_stay_in_their_buffers(stored, tmp_path, own):  # noqa: F811
    compiler = shutil.which("cc")
    if compiler is None or compiled_loop() is None:
        pytest.skip("no C compiler")
    program = tmp_path / "fuzz"
    source = Path(__file__).with_name("fuzz_loop.c")
    made = subprocess.run(
        [compiler, *FLAGS, "-o", program, source, "-ldl"], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no AddressSanitizer: {made.stderr[-200:]}")
    with open(tmp_path / "corpus", "wb") as file:
        for pipeline, mask, data, values in stored.values():
            number = pipeline_number(pipeline)
            row = PIPELINES.value.rows[number].tobytes()
            file.write(struct.pack("<4q", len(row), mask, values.nbytes, len(data)) + row + data)
    # Our own decoders alone: nothing that a library does can hide what they do.
    names = () if own else ("libsnappy", "libdeflate", "libzstd", "liblz4", "libblosc")
    libraries = [str(path) for name in names for path in _brought(name)]
    command = [str(program), "300000" if own else "60000", "7", str(tmp_path / "corpus"), *libraries]
    run = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert run.returncode == 0, run.stderr[-4000:]
    assert int(run.stdout.split()[0]) > 1000
