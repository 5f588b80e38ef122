"""How the compiled loop is found, and what is said if it is not."""

import pytest

from ray_h5.read.native import library


@pytest.mark.parametrize(
    ("stale", "compiler", "warns"), [(True, None, True), (False, "cc", True), (False, None, False)]
)
def test_a_missing_loop_says_once_what_to_run(tmp_path, monkeypatch, caplog, stale, compiler, warns):
    """After the source has changed, rows would be read in Python, and nobody would know why it is slow."""
    if stale:
        (tmp_path / "loop-0123456789ab.lib").touch()
    monkeypatch.setattr(library, "compiled_path", lambda: tmp_path / "loop-cafecafecafe.lib")
    monkeypatch.setattr(library, "compiler_here", lambda: compiler)
    monkeypatch.delenv(library.SWITCH, raising=False)
    library.compiled_loop.cache_clear()
    try:
        assert [library.compiled_loop(), library.compiled_loop()] == [None, None]
    finally:
        library.compiled_loop.cache_clear()
    messages = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(messages) == warns
    assert all("python -m ray_h5.read.native.build" in message for message in messages)


def test_a_switched_off_loop_warns_of_nothing(monkeypatch, caplog):
    monkeypatch.setenv(library.SWITCH, "0")
    library.compiled_loop.cache_clear()
    try:
        assert library.compiled_loop() is None
    finally:
        library.compiled_loop.cache_clear()
    assert not caplog.records


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
