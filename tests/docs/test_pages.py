"""What the documents name is there: files, folders, links and headings, options of commands."""

import re
import shlex

import numpy as np
import pytest

from ray_h5 import cli
from tests.docs.pages import DOCS, ERRORS, PAGES, ROOT, anchors, blocks, prose, text_of, with_blocks
from tests.kit.files import save

FOLDERS = sorted(path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith((".", "_")))
_IS_PATH = re.compile(rf"(?:{'|'.join(FOLDERS)}|\.ci)/[\w./-]*")
_IS_FILE_NAME = re.compile(r"[\w.-]+\.(?:py|md|toml|yaml|sbatch|ipynb)")


def code_of(page):
    return re.findall(r"`([^`\n]+)`", prose(page))


def test_the_readme_is_short():
    assert len(text_of("README.md").splitlines()) <= 160


def test_the_readme_links_to_every_page():
    assert [page for page in DOCS if f"({page})" not in text_of("README.md")] == []


def test_the_site_lists_every_page():
    config = text_of("mkdocs.yml")
    assert [page for page in DOCS if f"- {page.removeprefix('docs/')}\n" not in config] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", text_of(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), f"{page} links to {target}"
        assert not anchor or anchor in anchors(found.resolve().relative_to(ROOT)), f"{page} links to {target}"


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_is_named_exists(page):
    names = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*")} | {p.name for p in ROOT.iterdir()}
    for code in code_of(page):
        if _IS_PATH.fullmatch(code):
            assert (ROOT / code).exists(), f"{page} names {code}"
        elif _IS_FILE_NAME.fullmatch(code):
            assert code in names, f"{page} names {code}"


def test_the_page_that_inspect_names_exists(tmp_path, capsys):
    save(tmp_path / "samples.h5", {f"sample_{number}/x": np.zeros((3, 2)) for number in range(40)})
    assert cli.main(["inspect", str(tmp_path / "samples.h5")]) == 0
    assert re.search(r"docs/\w+\.md", capsys.readouterr().out)[0] in PAGES


# The house in CONTRIBUTING.md ---------------------------------------------------------------------


def house():
    """Return the packages and modules of the house, in its order."""
    (_, text), *_ = blocks("CONTRIBUTING.md", "text")
    return re.findall(r"(?:^  |(?<=\.py )|(?<=\.py\n  ))(\w+(?:/|\.py))(?= |$)", text, re.MULTILINE)


def test_the_house_has_each_package_and_module_once():
    there = [path.name + "/" * path.is_dir() for path in (ROOT / "ray_h5").iterdir()]
    there = [name for name in there if name.endswith((".py", "/")) and not name.startswith("__")]
    assert sorted(house()) == sorted(there)


def test_the_house_is_in_the_order_of_the_floors():
    layers = re.search(r"layers = \[\n(.*?)\n\]", text_of("pyproject.toml"), re.DOTALL)[1]
    floors = [re.findall(r"(\w+)", line) for line in layers.splitlines()]
    ground = floors.index(["storage"]) + 1  # the floors below are one in the house
    floor_of = {name: min(number, ground) for number, names in enumerate(floors) for name in names}
    numbers = [floor_of[name.rstrip("/").removesuffix(".py")] for name in house()]
    assert numbers == sorted(numbers)


# Commands -----------------------------------------------------------------------------------------


def commands(page):
    """Return the words of each command in the shell blocks of a page, and in its prose."""
    shell = "\n".join(block for _, block in blocks(page, "bash")).replace("\\\n", " ")
    spoken = [code for code in code_of(page) if re.match(r"(python|ray-h5|torchrun) .*[./]", code)]
    for line in [*shell.splitlines(), *spoken]:
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&;|<>")
        lexer.whitespace_split = True
        words = []
        for word in [*lexer, ";"]:
            if set(word) <= set("&;|<>"):
                if words:
                    yield words
                words = []
            else:
                words.append(word)


@pytest.mark.parametrize("page", sorted({*with_blocks("bash"), "README.md"}))
def test_the_commands_of_a_page_exist_and_know_their_options(page):
    for words in commands(page):
        if words[0] == "ray-h5":
            if not any(word.isupper() for word in words):  # a name that stands for others
                cli.commands.commands[words[1]].make_context(words[1], words[2:])
            continue
        program = None
        for word in words:
            path, _, test = word.partition("::")
            if word == "--":
                program = None
            elif _IS_PATH.fullmatch(path):
                assert (ROOT / path).exists(), f"{page}: {word}"
                assert f"def {test}(" in (ROOT / path).read_text() if test else True, f"{page}: {word}"
                program = ROOT / path if path.endswith(".py") else program
            elif word.startswith("--") and program is not None:
                assert f'"{word}"' in program.read_text(), f"{page}: {program.name} {word}"
            elif extra := re.fullmatch(r"\.\[(\w+)\]", word):
                assert re.search(rf"^{extra[1]} = \[", text_of("pyproject.toml"), re.MULTILINE), f"{page}: {word}"


def test_every_error_is_in_the_table():
    found = set(re.findall(r"`(\w+Error)`", text_of("docs/files.md")))
    bases = "|".join(ERRORS)
    sources = (path.read_text() for path in (ROOT / "ray_h5").rglob("*.py"))
    made = {name for text in sources for name in re.findall(rf"^class ([A-Z]\w+)\((?:{bases})\b", text, re.MULTILINE)}
    assert {*ERRORS, *made} - found - {"RayH5Error"} == set()
