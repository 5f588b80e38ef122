"""The pictures of the page on shuffles are drawn by a program, and stay small."""

import subprocess
import sys

from PIL import Image

from tests.docs.pages import ROOT


def test_pictures_of_shuffles(tmp_path):
    program = [sys.executable, str(ROOT / "examples" / "which_shuffle.py"), "--output", str(tmp_path)]
    subprocess.run(program, check=True, cwd=ROOT, capture_output=True)
    drawn = {path.name: path for path in tmp_path.iterdir()}
    assert set(drawn) == {"orders.png", "classes.png", "lengths.png"}
    for name, path in drawn.items():
        kept = ROOT / "examples" / "figures" / name
        assert max(path.stat().st_size, kept.stat().st_size) < 60_000
        with Image.open(path) as one, Image.open(kept) as other:
            assert one.size == other.size
