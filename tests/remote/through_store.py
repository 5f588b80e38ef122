"""Tests of local files run a second time with the same files in an object store.

The folder of temporary files is a bucket of a server: ``/tmp/x/a.h5`` is ``s3://tmp/x/a.h5``. The names that open files
are replaced in the modules of the tests, so that they are called with URLs; nothing in the package is.
"""

import functools
import os
import sys
import tempfile
from pathlib import Path

from ray_h5.bench.server import FaultServer


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
    for module in [each for name, each in sys.modules.items() if name.startswith("tests.")]:
        for name, (original, other) in replaced.items():
            if getattr(module, name, None) is original:
                monkeypatch.setattr(module, name, other)


def _here(work):
    return work()
