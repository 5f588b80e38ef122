"""Tests of local files run a second time with the same files in an object store.

The folder of temporary files is a bucket of a server: ``/tmp/x/a.h5`` is ``s3://tmp/x/a.h5``. The public names that
open files are replaced where the tests call them, so that they get URLs.
"""

import functools
import os
import sys
import tempfile
from pathlib import Path

from ray_h5.bench.server import FaultServer

QUICK = {"conformance/test_conformance.py"}
"""Modules whose tests also run with their files in a store: these in each run, the next ones with ``-m slow``."""

MODULES = QUICK | {
    "hdf5/test_reader_equals_h5py.py",
    "hdf5/test_segments.py",
    "hdf5/checks/test_chunks.py",
    "hdf5/checks/test_values.py",
    "hdf5/codecs/test_codec.py",
    "hdf5/codecs/test_filter_masks.py",
    "hdf5/metadata/test_attributes.py",
    "hdf5/metadata/test_dtypes.py",
    "hdf5/reading/test_casting.py",
    "hdf5/reading/test_h5py_column.py",
    "hdf5/reading/test_large_rows.py",
    "hdf5/reading/test_ranges.py",
    "planning/predicates/test_criteria.py",
    "planning/rows/test_grid_equals_h5py.py",
    "planning/rows/test_groups_equal_h5py.py",
    "planning/rows/test_windows_equal_h5py.py",
    "ray_data/test_filters.py",
    "ray_data/test_ragged.py",
    "torch_data/reading/test_row_cache.py",
    "torch_data/test_padding.py",
}

OTHER_FILES = "a file in a store leads to no path of a disk, and its messages name the other file alone"
COUNTS = "it counts reads of a disk"
ON_DISK = {
    "test_corpus[external storage, allowed]": OTHER_FILES,
    "test_corpus[cut in the superblock]": "the size is known before it is opened, so the file is called truncated",
    "test_files_of_all_kinds": OTHER_FILES,
    "test_small_claims_are_named_too": OTHER_FILES,
    "test_whole_values_are_read_as_h5py_reads_them": OTHER_FILES,
    "test_sources_that_are_not_what_a_virtual_column_says_are_not_damaged": OTHER_FILES,
    "test_the_message_names_the_rows_that_are_damaged": OTHER_FILES,
    "test_a_guard_looks_anew_while_a_writer_has_the_file": "nobody adds rows to an object",
    "test_a_look_that_fails_for_a_while_is_no_damage": "it lets reads of a disk fail",
    "test_a_file_that_does_not_answer_holds_up_no_other": "it lets reads of a disk wait",
    "test_samples_of_several_lengths_name_the_column": "its workers are forked",
    "test_rows_are_padded_after_a_transform": "its workers are forked",
    "test_requests_and_bytes_are_those_of_the_rows": COUNTS,
    "test_calls_of_a_whole_column": COUNTS,
}
"""Tests of these modules that stay on the disk, and why."""


class Bucket:
    """A server of the folder of temporary files."""

    def __init__(self, folder):
        self.top = Path(tempfile.gettempdir()).resolve()
        (folder / self.top.name).symlink_to(self.top)
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
        """Return the URL of a path; anything else stays as it is."""
        if isinstance(path, (list, tuple)):
            return [self.url(each) for each in path]
        if not isinstance(path, (str, os.PathLike)) or "://" in str(path):
            return path
        relative = Path(os.path.abspath(os.fspath(path))).relative_to(self.top)
        slash = "/" if str(path).endswith("/") else ""
        return f"s3://{self.top.name}/{relative}{slash}"

    def through(self, opener):
        """Return a function that opens by URL what it is given by path."""

        @functools.wraps(opener, updated=())
        def opened(path, *arguments, **options):
            if "allow_external" in options:
                options["allow_external"] = self.url(options["allow_external"])
            return opener(self.url(path), *arguments, **options)

        return opened


def replace_openers(bucket, monkeypatch):
    """Let the modules of the tests open files through the store."""
    import ray_h5
    import ray_h5.torch_data
    from ray_h5.hdf5.reader import RowReader
    from tests.hdf5 import h5kit

    originals = {"RowReader": RowReader}
    originals |= {name: getattr(ray_h5.torch_data, name) for name in ("H5Dataset", "loader")}
    replaced = {name: (original, bucket.through(original)) for name, original in originals.items()}
    # A process that was forked after a read from a store cannot read from one.
    replaced["in_fork"] = h5kit.in_fork, _here
    monkeypatch.setattr(ray_h5, "read_h5", bucket.through(ray_h5.read_h5))
    for module in [each for name, each in sys.modules.items() if name.startswith("tests.")]:
        for name, (original, other) in replaced.items():
            if getattr(module, name, None) is original:
                monkeypatch.setattr(module, name, other)


def _here(work, timeout_s=20):  # noqa: ARG001
    return work()
