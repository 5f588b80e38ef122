"""Files that are written completely, or not at all."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield a file to write to. It gets its name when it is complete; if writing fails, it is removed."""
    # A random name: other threads and hosts may write to the same folder.
    temporary = Path(f"{os.fspath(path)}.{secrets.token_hex(4)}.tmp")
    with open(temporary, "xb") as file:  # what has the name already is not ours, and stays
        try:
            yield file
            file.close()
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
