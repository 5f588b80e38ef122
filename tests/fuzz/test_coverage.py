"""Fuzzing that is guided by coverage: what decodes and parses bytes of files, from a corpus that earlier runs found.

``tests/fuzz/corpus/NAME.zip`` has the inputs that reach what no smaller one does. Further ones are added by hand.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import hdf5plugin
import pytest

from ray_h5.read.native.library import _brought

HERE = Path(__file__).parent
SECONDS = "-max_total_time=60"
FLAGS = (
    "-g",
    "-O1",
    "-pthread",
    "-fsanitize=fuzzer,address,undefined",
    "-fno-sanitize-recover=all",
    "-fno-sanitize=function",
)


def corpus(folder, name):
    made = folder / "corpus"
    with zipfile.ZipFile(HERE / "corpus" / f"{name}.zip") as stored:
        stored.extractall(made)
    return str(made)


def run(command, folder, **environment):
    found = subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, capture_output=True, text=True, check=False, timeout=500
    )
    assert found.returncode == 0, found.stdout[-2000:] + found.stderr[-6000:]


@pytest.mark.nightly
def test_the_loop(tmp_path):
    compiler, program = shutil.which("clang"), tmp_path / "targets"
    if compiler is None:
        pytest.skip("no clang")
    made = subprocess.run(
        [compiler, *FLAGS, "-o", program, HERE / "loop_targets.c", "-ldl"], capture_output=True, text=True, check=False
    )
    if made.returncode:
        pytest.skip(f"no libFuzzer: {made.stderr[-200:]}")
    names = ("libsnappy", "libdeflate", "libzstd", "liblz4", "libblosc")
    bits = Path(hdf5plugin.PLUGIN_PATH, "libh5bshuf.so")  # that of imagecodecs cannot be loaded without Python
    decoders = ":".join(map(str, [*(path for name in names for path in _brought(name)), bits]))
    run(
        [program, SECONDS, "-max_len=4096", "-timeout=20", corpus(tmp_path, "loop")], tmp_path, RAY_H5_DECODERS=decoders
    )


@pytest.mark.nightly
@pytest.mark.parametrize("target", ["headers", "heaps", "hints", "index"])
def test_parsers(tmp_path, target):
    pytest.importorskip("atheris")
    root = str(HERE.parents[1])
    command = [sys.executable, "-m", "tests.fuzz.parsers", target, SECONDS, "-max_len=16384", "-timeout=20"]
    run([*command, corpus(tmp_path, target)], tmp_path, PYTHONPATH=root)


def test_the_corpus_is_small():
    assert sum(path.stat().st_size for path in (HERE / "corpus").iterdir()) <= 1 << 20
