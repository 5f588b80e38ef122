"""What makes a release: workflows, the image, notes, and installing from source. `.ci/run` builds the wheels."""

import os
import re
import runpy
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

import ray_h5
from ray_h5.read.native import build

ROOT = Path(__file__).parents[2]
PROJECT = (ROOT / "pyproject.toml").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))

HOSTED = {
    r"python -m pip install .+",
    r"mkdir elsewhere && cp -r examples \.ci elsewhere",
    r"cd elsewhere && python examples/quickstart\.py",
    r'gh release create "\$GITHUB_REF_NAME" dist/\* .+',
    r"python -m pytest -n 2 tests/conformance tests/read tests/codecs",
}
"""Steps that only install, or run a program of the project by its name."""


def steps():
    for path in WORKFLOWS:
        for name, job in yaml.safe_load(path.read_text())["jobs"].items():
            assert job["timeout-minutes"], (path, name)
            yield from (pytest.param(step["run"], id=f"{path.stem}-{name}") for step in job["steps"] if "run" in step)


@pytest.mark.parametrize("command", [*steps()])
def test_each_step_is_what_ci_runs_here(command):
    """What a workflow does of its own cannot be tried before it is pushed."""
    if any(re.fullmatch(pattern, command) for pattern in HOSTED):
        return
    checked = (ROOT / ".ci" / "run").read_text()
    if command.startswith("mkdocs"):
        assert command.removesuffix(" --site-dir site") == "mkdocs build --strict"
        assert "mkdocs build --strict" in checked
        return
    script = re.search(r"(python )?(\.ci/[\w.]+)", command)
    assert script is not None, "what is this? .ci/run does not try it"
    path = ROOT / script[2]
    assert path.exists()
    assert script[1] or os.access(path, os.X_OK)
    # The notes need a tag, which is tried below.
    assert script[2] in (".ci/run", ".ci/notes.py") or script[2] in checked


@pytest.mark.parametrize("name", ["run", "wheels", "other_python", "torch_without_cuda", "oldest_torch"])
def test_shellcheck_finds_nothing(name):
    shellcheck = shutil.which("shellcheck") or str(Path(sys.executable).with_name("shellcheck"))
    command = [shellcheck, "--severity=warning", ROOT / ".ci" / name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_tested_pythons_are_the_ones_that_are_promised():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    tested = jobs["pythons"]["strategy"]["matrix"]["python"]
    named = re.findall(r'"Programming Language :: Python :: (3\.\d+)"', PROJECT)
    assert named
    assert set(named) <= set(tested)
    assert f'requires-python = ">={tested[0]}"' in PROJECT


def test_notes_of_a_release_are_the_section_of_its_version(tmp_path, monkeypatch, capsys):
    notes = runpy.run_path(str(ROOT / ".ci" / "notes.py"))["main"]
    (tmp_path / "ray_h5").mkdir()
    (tmp_path / "ray_h5" / "__init__.py").write_text('__version__ = "1.2.0"\n')
    text = "# Changelog\n\n## 1.2.0 (2027-01-31)\n\nFaster.\n\n### New\n\n- x\n\n## 1.1.0 (2027-01-01)\n\nOld.\n"
    (tmp_path / "CHANGELOG.md").write_text(text)
    monkeypatch.setitem(notes.__globals__, "ROOT", tmp_path)
    notes("v1.2.0")
    assert capsys.readouterr().out == "Faster.\n\n### New\n\n- x\n"
    with pytest.raises(AssertionError, match=r"the tag is v1\.3\.0"):
        notes("v1.3.0")
    (tmp_path / "CHANGELOG.md").write_text(text.replace("2027-01-31", "unreleased"))
    with pytest.raises(AssertionError, match="no date"):
        notes("v1.2.0")


def test_the_version_is_in_the_changelog():
    sections = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert sections[0] == ray_h5.__version__


def test_a_target_that_is_none_is_named(tmp_path):
    with pytest.raises(build.CompilerError, match=r"RAY_H5_TARGET=sparc: expected one of x86_64-linux-gnu\.2\.17, "):
        build.compile_for("sparc", tmp_path)


def install(folder, tmp_path, **environment):
    """Install a folder or a wheel into an empty environment, as `pip install` does; return what was printed."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", tmp_path / "venv"], check=True)
    command = [sys.executable, "-m", "pip", "--python", tmp_path / "venv", "install", "--no-deps", "-v", folder]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def line_of_loop(tmp_path):
    """Return what the installed package says of the loop."""
    code = "from ray_h5.read.native.build import loop_line; print(loop_line())"
    command = [tmp_path / "venv" / "bin" / "python", "-c", code]
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "RAY_H5_COMPILED")}
    return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def clone(tmp_path):
    """A copy of what is in the repository, so that nothing is compiled there."""
    folder = tmp_path / "clone"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):
        if name.startswith("ray_h5/") or "/" not in name:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.mark.slow
def test_installing_from_source_needs_no_compiler(clone, tmp_path):
    """The package index has one. PATH has no program at all."""
    empty = tmp_path / "empty"
    empty.mkdir()
    install(clone, tmp_path, PATH=str(empty))
    assert line_of_loop(tmp_path) == "compiled loop: yes\n"


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["no_such_compiler", "false"])
def test_a_compiler_that_is_missing_or_fails_ends_no_installation(clone, tmp_path, compiler):
    install(clone, tmp_path, CC=compiler)
    assert line_of_loop(tmp_path) == "compiled loop: yes\n"


@pytest.mark.slow
def test_a_loop_that_is_no_c_is_said_and_left_out(clone, tmp_path):
    loop = clone / "ray_h5" / "read" / "native" / "loop.c"
    loop.write_text(loop.read_text() + "\nthis is no C\n")
    said = install(clone, tmp_path)
    assert "rows will be decoded in Python" in said
    assert "this is no C" in said
    assert line_of_loop(tmp_path).startswith("compiled loop: no, it was not compiled for this system")


@pytest.mark.slow
def test_the_loop_is_left_out_on_request(clone, tmp_path):
    install(clone, tmp_path, RAY_H5_COMPILED="0")
    assert line_of_loop(tmp_path).startswith("compiled loop: no, it was not compiled for this system")


def instructions(text):
    """Yield the instructions of a Dockerfile: a word, and what follows it."""
    for line in re.sub(r"\\\n", " ", text).splitlines():
        if line.strip() and not line.startswith("#"):
            yield tuple(line.split(maxsplit=1))


@pytest.mark.slow
def test_the_image_is_made_of_what_is_there(clone, tmp_path):
    """The COPY lines find what a wheel's build leaves, and what RUN installs imports with the loop on."""
    environment = {**os.environ, build.TARGET: "x86_64-linux-gnu.2.17"}
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", clone / "dist", clone]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    lines = list(instructions((ROOT / "cluster" / "Dockerfile").read_text()))
    sources = [source for word, rest in lines if word == "COPY" for source in rest.split()[:-1]]
    assert sources
    for source in sources:
        assert any(list(folder.glob(source)) for folder in (clone, ROOT)), source
    (run,) = [rest for word, rest in lines if word == "RUN"]
    assert "/wheels/ray_h5-*_$(uname -m).whl" in run
    (wheel,) = (clone / "dist").glob("ray_h5-*_x86_64.whl")
    install(wheel, tmp_path)
    assert line_of_loop(tmp_path) == "compiled loop: yes\n"
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [archive.read(name).decode() for name in archive.namelist() if name.endswith("/METADATA")]
    # What the package index shows has no link that leads nowhere.
    assert not re.findall(r"\]\((?!https://|#)[^)]*\)", metadata)
