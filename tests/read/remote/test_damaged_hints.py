"""Nodes of indexes that claim any number of entries: what is asked for after them stays small, and takes no time."""

import time

import numpy as np
import pytest

from ray_h5.hdf5.files.btree_prefetch import Hints

HEADER, NODE = 4096, 8192


def header_of(signature, node_bytes):
    """Return the header that a node needs before it is followed."""
    found = bytearray(512)
    if signature == b"EASB":
        found[:12] = b"EAHD" + bytes([0, 0, 8, 64, 4, 16, 4, 10])
    elif signature == b"BTIN":
        found[:6], found[6:10], found[10:12] = b"BTHD\0\0", node_bytes.to_bytes(4, "little"), b"\1\0"
        found[12:14], found[16:24], found[24:26] = b"\xff\xff", NODE.to_bytes(8, "little"), b"\xff\xff"
    return bytes(found)


@pytest.mark.parametrize("fill", [0, 1, 0x7F, 0xFF])
@pytest.mark.parametrize("signature", [b"EASB", b"BTIN", b"TREE", b"SNOD"])
def test_a_node_that_claims_too_much(signature, fill):
    node = np.full(4096, fill, np.uint8)
    node[:4] = np.frombuffer(signature, np.uint8)
    if signature == b"EASB":
        node[4:14] = np.frombuffer(b"\0\0" + HEADER.to_bytes(8, "little"), np.uint8)
    hints = Hints(1 << 40)
    begin = time.monotonic()
    hints.after(HEADER, memoryview(header_of(signature, len(node))))
    found = hints.after(NODE, memoryview(node.tobytes()))
    assert time.monotonic() - begin < 5
    assert len(found) <= len(node)


@pytest.mark.parametrize("kind", [0, 1, 2, 6, 9, 255])
def test_a_chunk_index_of_no_known_kind_gives_no_hint(kind):
    # A layout message of version 4, in an object header of version 2: chunked, two axes of one byte each.
    layout = bytes([4, 2, 0, 2, 1, 1, 1, kind]) + NODE.to_bytes(8, "little") * 3
    header = b"OHDR\2\0" + bytes([len(layout) + 4]) + bytes([8]) + len(layout).to_bytes(2, "little") + b"\0" + layout
    assert Hints(1 << 40).after(HEADER, memoryview(header)) == []
    known = header.replace(layout, layout[:7] + b"\3" + layout[8:])  # a fixed array
    assert Hints(1 << 40).after(HEADER, memoryview(known))
