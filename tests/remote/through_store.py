"""Tests of local files run a second time with the same files in an object store.

The folder of temporary files is in a bucket of a server: ``/tmp/x/a.h5`` is ``s3://tmp/x/a.h5``. What opens files is
replaced while such a test runs, so that it gets URLs.
"""

from __future__ import annotations

import functools
import logging
import multiprocessing
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from types import FunctionType

from hypothesis import settings

from ray_h5.errors import RayH5Error
from ray_h5.index import row_index
from ray_h5.index.file_options import FileOptions
from ray_h5.index.scan_files import Lookup
from ray_h5.scope import Scope
from ray_h5.storage.byte_source import FileIdentity
from ray_h5.storage.local import LOCAL
from ray_h5.storage.storage_of_path import storage_for
from tests.hdf5 import h5kit
from tests.kit.fault_server import FaultServer

MAX_EXAMPLES = 30
"""Examples of a property in a store: requests take longer than reads."""


class Bucket:
    """A server of the folder of temporary files."""

    def __init__(self, folder):
        self.top = Path(tempfile.gettempdir()).resolve()
        served = folder.joinpath(*self.top.parts[1:])
        served.parent.mkdir(parents=True, exist_ok=True)
        served.symlink_to(self.top)
        self.server = FaultServer(folder)

    def environment(self):
        """Return what leads to the server."""
        return {
            "AWS_ENDPOINT_URL": self.server.url,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
            "AWS_SKIP_SIGNATURE": "true",
        }

    def url(self, path):
        """Return the URL of a path below the folder; anything else stays as it is."""
        if isinstance(path, (list, tuple)):
            return type(path)(map(self.url, path))
        if not isinstance(path, (str, os.PathLike)) or "://" in str(path) or not str(path):
            return path
        whole = os.path.abspath(os.fspath(path))
        if not Path(whole).is_relative_to(self.top):
            return path
        return f"s3:/{whole}{'/' if str(path).endswith('/') else ''}"

    def path(self, text):
        """Return a text with paths instead of URLs."""
        return text.replace(f"s3:/{self.top}", str(self.top))

    def through(self, opener, place=0):
        """Return a function that opens by URL what it is given by path, as its argument number `place`."""

        @functools.wraps(opener, updated=())
        def opened(*given, **options):
            # What was planned on the disk, as a fixture of a module is, stays there.
            expected = getattr(options.get("expect"), "identity", options.get("expect"))
            if options.get("filesystem") is None and not isinstance(expected, FileIdentity):
                given = (*given[:place], *map(self.url, given[place : place + 1]), *given[place + 1 :])
                options = {name: self.url(value) if name in _PATHS else value for name, value in options.items()}
            return opener(*given, **options)

        return opened


_PATHS = {"path", "paths", "hdf5_files", "source", "allow_external"}

_PACKAGES = {"ray_h5", "ray_h5.torch_data"}

_FUNCTIONS = [
    ("ray_h5.ray_data.read_h5", "read_h5"),
    ("ray_h5.ray_data.read_h5", "build_index"),
    ("ray_h5.ray_data", "kfold"),
    ("ray_h5.index.folds", "kfold"),
    ("ray_h5.torch_data.h5_data_loader", "loader"),
    ("ray_h5.compat.optimal_dataloader", "create_optimized_dataloader"),
    ("tests.index.kit", "plan_files"),
]
"""Functions that open files, by their modules. They are replaced where tests find them."""

_CLASSES = {
    "ray_h5.rows.row_reader": "RowReader",
    "ray_h5.torch_data.dataset": "H5Dataset",
    "ray_h5.compat.combined_dataset": "CombinedHDF5Dataset",
    "ray_h5.compat.lazy_dataset": "H5LazyDataset",
    "ray_h5.compat.rank_cached": "RankMemCachedH5Dataset",
    "ray_h5.ray_data.datasource": "H5Datasource",
}
"""Classes that open files. They stay, so that tests may pickle them and ask for their kind."""


def replace_openers(bucket, monkeypatch):
    """Let the modules of the tests open files through the store."""
    for home, name in _CLASSES.items():
        if home in sys.modules:
            cls = getattr(sys.modules[home], name)
            monkeypatch.setattr(cls, "__init__", bucket.through(cls.__init__, place=1))
    functions = [(sys.modules[home], name) for home, name in _FUNCTIONS if home in sys.modules]
    replaced = {(original := getattr(home, name)): bucket.through(original) for home, name in functions}
    # A process that was forked after a read from a store cannot read from one.
    replaced[h5kit.in_fork] = _here
    replaced[row_index.build_index] = functools.partial(_build_index, bucket)
    _open_by_url(bucket, monkeypatch)
    _replace(replaced, monkeypatch)
    if "torch.utils.data" in sys.modules:
        _not_forked(monkeypatch)
    _say_paths(bucket, monkeypatch)


def _replace(replaced, monkeypatch):
    """Replace functions wherever a test may find them."""
    places = [each for name, each in sys.modules.items() if name.startswith("tests.") or name in _PACKAGES]
    for module in places:
        for name, value in list(vars(module).items()):
            if isinstance(value, FunctionType) and value in replaced:
                monkeypatch.setattr(module, name, replaced[value])


def _open_by_url(bucket, monkeypatch):
    """Let what all openers call get URLs, for tests that call it themselves."""
    options_of, scope_open = FileOptions.of, Scope.open

    def opened(self, path, *given, **options):
        url = path if any(given[:1]) else bucket.url(path)  # the state of a file on the disk may be given
        if url != path and self.storage is LOCAL:
            self = replace(self, storage=storage_for(None, [url]))
        return scope_open(self, url, *given, **options)

    monkeypatch.setattr(FileOptions, "of", bucket.through(options_of))
    monkeypatch.setattr(Scope, "open", opened)


def _build_index(bucket, paths, columns=None, lookup=None, *given, **options):
    urls, lookup = bucket.url(paths), lookup or Lookup()
    if urls != paths and lookup.scope.storage is LOCAL:
        storage = storage_for(None, urls)
        states = {url: state for url in urls if (state := storage.identity(url)) is not None}
        lookup = replace(lookup, scope=replace(lookup.scope, storage=storage), states=states)
    return row_index.build_index(urls, columns, lookup, *given, **options)


def _say_paths(bucket, monkeypatch):
    """Let messages name the paths that tests know, for URLs."""
    make, message = RayH5Error.__init__, logging.LogRecord.getMessage

    def made(self, *parts):
        make(self, *(bucket.path(each) if isinstance(each, str) else each for each in parts))

    monkeypatch.setattr(RayH5Error, "__init__", made)
    monkeypatch.setattr(logging.LogRecord, "getMessage", lambda self: bucket.path(message(self)))


def _not_forked(monkeypatch):
    """Let loaders start their workers so that these can read from a store."""
    import torch.utils.data

    make = torch.utils.data.DataLoader.__init__
    multiprocessing.set_forkserver_preload(["obstore", "ray_h5.torch_data.dataset", "torch.utils.data"])

    @functools.wraps(make)
    def made(self, *given, **options):
        if options.get("num_workers") and options.get("multiprocessing_context") is None:
            options["multiprocessing_context"] = "forkserver"
        make(self, *given, **options)

    monkeypatch.setattr(torch.utils.data.DataLoader, "__init__", made)


def fewer_examples(test, monkeypatch):
    """Let a property be tried with fewer examples."""
    name, test = "_hypothesis_internal_use_settings", getattr(test, "__func__", test)
    if (given := getattr(test, name, None)) is not None:
        monkeypatch.setattr(test, name, settings(given, max_examples=min(given.max_examples, MAX_EXAMPLES)))


def _here(work, timeout_s=20):  # noqa: ARG001
    return work()
