"""How the compiled loop is found, and what is said if it is not."""

import os
import shutil

import pytest

from ray_h5.cli import main
from ray_h5.read.native import build, library


@pytest.fixture
def unloaded(tmp_path, monkeypatch):
    """A folder with loop.c in which no loop is compiled, for a process that has loaded none."""
    shutil.copy(build.HERE / "loop.c", tmp_path)
    monkeypatch.setattr(build, "HERE", tmp_path)
    monkeypatch.delenv(build.SWITCH, raising=False)
    library.compiled_loop.cache_clear()
    yield tmp_path
    library.compiled_loop.cache_clear()


@pytest.mark.parametrize(
    ("has", "reason"),
    [
        ("nothing", "it was not compiled for this system. With a C compiler"),
        ("another", "its source has changed since it was compiled. With a C compiler"),
        ("a text", "it does not load ("),
    ],
)
def test_a_missing_loop_says_once_why_and_what_to_run(unloaded, caplog, capsys, has, reason):
    """Rows would be read in Python, several times as slowly, and nobody would know why."""
    name = {"nothing": "none", "another": "loop-0123456789ab.lib", "a text": build.compiled_path().name}[has]
    (unloaded / name).write_text("no library")
    assert [library.compiled_loop(), library.compiled_loop()] == [None, None]
    (message,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert reason in message
    assert message.endswith("run: python -m ray_h5.read.native.build")
    assert main(["--version"]) == 0
    assert f"compiled loop: no, {reason}" in capsys.readouterr().out


@pytest.mark.usefixtures("unloaded")
def test_a_switched_off_loop_warns_of_nothing(monkeypatch, caplog):
    monkeypatch.setenv(build.SWITCH, "0")
    assert library.compiled_loop() is None
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.skipif(not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="no C compiler")
def test_compilers_are_tried_in_turn_and_what_they_say_is_shown(unloaded, monkeypatch):
    """A CC that is missing or fails ends no installation, and is not called "no compiler"."""
    failing = unloaded / "failing"
    failing.write_text("#!/bin/sh\necho no licence for this compiler >&2\nexit 3\n")
    failing.chmod(0o755)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda _: None)
    path = os.environ["PATH"]
    monkeypatch.setenv("PATH", str(unloaded))
    with pytest.raises(build.CompilerError, match=r"no C compiler was found\. Install one"):
        build.compile_loop()
    for compiler, said in (("no_such_program", "No such file"), (f"'{failing}' -x", "no licence for this compiler")):
        monkeypatch.setenv("CC", compiler)
        assert build.needs_zig()
        with pytest.raises(build.CompilerError, match=said):
            build.compile_loop()
    monkeypatch.setenv("PATH", path)
    assert not build.needs_zig()
    assert build.compile_loop().exists()
    assert library.compiled_loop() is not None


def test_asking_for_the_pool_of_a_thread_takes_no_memory(monkeypatch):
    """A context has buffers and decoders, which a thread that never decodes does not need."""
    if (loop := library.compiled_loop()) is None:
        pytest.skip("no C compiler")
    contexts, make = [], loop.library.ray_h5_context
    monkeypatch.setattr(loop.library, "ray_h5_context", lambda codecs: contexts.append(1) or make(codecs))
    state = library._OfThread(loop)
    assert state.pool is None
    assert not contexts
    assert state.address == state.address
    assert len(contexts) == 1
