from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "DataLoaderBenchmarking.ipynb"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what Jupyter's parts say of each other
def test_the_notebook_runs_from_top_to_bottom():
    import nbformat  # here: with nbclient, it takes a while for each process that collects tests
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(NOTEBOOK.parent)}}).execute()
    assert NOTEBOOK.stat().st_size < 100_000
