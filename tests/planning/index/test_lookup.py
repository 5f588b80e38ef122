"""Reading ahead does no harm, whatever lies at a path."""

import os
import threading

from ray_h5.planning.index.lookup import read_ahead


def test_a_pipe_holds_nobody_up(tmp_path):
    pipe = str(tmp_path / "pipe.h5")
    os.mkfifo(pipe)
    groups = [["first"], [pipe, str(tmp_path), str(tmp_path / "gone.h5")]]
    done = []
    thread = threading.Thread(target=lambda: done.extend(read_ahead(lambda group: group, groups)), daemon=True)
    thread.start()
    thread.join(20)
    assert done == groups
    assert not thread.is_alive()
