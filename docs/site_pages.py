"""A hook of mkdocs: the first page is README.md, and pages outside docs/ and the reference join the site."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mkdocs.structure.files import File, Files

import ray_h5
import ray_h5.torch_data

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig

ROOT = Path(__file__).parents[1]

PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "cluster/README.md": "cluster-files.md",
}
"""Pages outside docs/, and where they are on the site."""

_LINK = re.compile(r"(!?)\[((?:[^\[\]`]|`[^`\n]*`)*)\]\(([^)\s]+)\)")
"""A link, whose text may hold brackets in code. Each character matches in one way: no page takes long."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and pictures that are not in docs/."""
    for path, name in PAGES.items():
        files.append(File.generated(config, name, content=_on_site(ROOT / path, (ROOT / path).read_text())))
    options = runpy.run_path(str(ROOT / "docs" / "make_options.py"))
    files.append(File.generated(config, "options.md", content=options["page"]()))
    files.append(File.generated(config, "reference.md", content=_reference(options["NAMES"])))
    for picture in sorted((ROOT / "examples" / "figures").glob("*.png")):
        files.append(File.generated(config, f"figures/{picture.name}", abs_src_path=str(picture)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Let links of pages in docs/ lead to pages of the site."""
    source = page.file.abs_src_path
    inside = source is not None and Path(source).parent == ROOT / "docs"
    return _on_site(Path(source), markdown) if inside else markdown


def _on_site(page: Path, text: str) -> str:
    """Return a page whose links lead to pages of the site; what is not on the site is named alone."""

    def link(found: re.Match[str]) -> str:
        is_picture, shown, target = found.groups()
        path, _, anchor = target.partition("#")
        if "://" in target or not path:
            return found[0]
        there = (page.parent / path).resolve().relative_to(ROOT)
        name = PAGES.get(str(there)) or {"docs": there.name, "examples": f"figures/{there.name}"}.get(
            there.parts[0], ""
        )
        if not (ROOT / there).is_file() or not name.endswith((".md", ".png")):
            return shown
        return f"{is_picture}[{shown}]({name}{'#' if anchor else ''}{anchor})"

    return _LINK.sub(link, text)


def _reference(groups: dict[str, str]) -> str:
    """Return the page whose entries mkdocstrings makes from the docstrings."""
    homes = ray_h5._NAMES.homes | ray_h5.torch_data._NAMES.homes
    lines = ["# Reference", ""]
    lines += [
        "[All options](options.md) also has the options that several functions share, in groups, with their defaults.",
        "",
    ]
    for title, names in {"First": "read_h5 where between any_equal row_mask", **groups}.items():
        lines += [f"## {title}", ""]
        for name in dict.fromkeys(each.partition(".")[0] for each in names.split()):
            lines += [f"::: {homes[name]}.{name}", ""]
            if name == "read_h5":
                lines += [
                    "These and the options of files, rows and columns, in groups: [read_h5](options.md#read_h5).",
                    "",
                ]
    return "\n".join(lines)
