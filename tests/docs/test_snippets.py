"""The code of the documents runs: Python on real files and a real Ray, shell commands as far as to their options."""

import pytest

from tests.docs.pages import ROOT, blocks, text_of, with_blocks

_RUN_ELSEWHERE = ["docs/frameworks.md"]
"""By tests/torch_data/frameworks_script.py, in two processes, and by test_lightning_in_ray.py."""

_LONG = {"README.md", "docs/training.md"}
"""Pages that train: they are slow tests."""


@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.slow if page in _LONG else ())
        for page in with_blocks("python")
        if page not in _RUN_ELSEWHERE
    ],
)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, folder, monkeypatch):
    monkeypatch.setattr("ray.train.constants.DEFAULT_STORAGE_PATH", str(folder / "ray_results"))
    # Functions of __main__ travel to Ray's workers by value, as those of a script do.
    names = {"__name__": "__main__"}
    for line, block in blocks(page, "python"):
        # Blank lines before it give an error the line that it has on the page.
        exec(compile("\n" * (line - 1) + block, str(ROOT / page), "exec"), names)


def test_the_quickstart_is_the_first_snippet_of_the_readme():
    _, snippet = blocks("README.md", "python")[0]
    assert text_of("examples/quickstart.py").endswith(f"\n{snippet}")
    assert len(snippet.splitlines()) <= 10
