"""``ray-h5 inspect``: what files hold, what `read_h5` delivers from them, and which layouts are slow to read.

Importing this package is cheap, so that the command line starts fast.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ray_h5.errors import OptionError
from ray_h5.messages import printable


def run(arguments: Mapping[str, Any], options: Mapping[str, Any]) -> int:
    """Inspect files; the exit status is 1 if `read_h5` refuses them, and no call is suggested.

    `arguments` are the values of the flags, `options` those of them that are options of `Source`.
    """
    from ray_h5.index.file_options import FileOptions
    from ray_h5.inspect.measure import inspect_files
    from ray_h5.inspect.text import to_text

    page = arguments["html"]
    files = FileOptions.of(arguments["paths"], **options)
    if page is not None and os.path.realpath(page) in map(os.path.realpath, files.paths):
        raise OptionError(
            "this is one of the files that are read; expected another name, such as a.html", option="html", value=page
        )
    report = inspect_files(files, arguments["shuffle"])
    print(json.dumps(report.to_dict(), indent=2) if arguments["as_json"] else to_text(report, files.source.names or ()))
    if page is not None:
        from ray_h5.inspect.page import to_html

        Path(page).write_text(to_html(report, files, arguments["paths"], options), encoding="utf-8")
        print(f"ray-h5: the page is in {printable(os.path.abspath(page))}", file=sys.stderr)
    is_read = report.ok or (files.source.ignore_unreadable_files and report.problem is None)
    suggests = not report.unreadable and any(suggestion.arguments for suggestion in report.suggestions)
    return 0 if is_read or (files.source.names is None and suggests) else 1
