"""Whether what nbit and scaleoffset have packed is all there: libhdf5 (2.0) reads on behind the end of less."""

from __future__ import annotations

from collections.abc import Sequence

_SCALEOFFSET_HEADER_BYTES = 21
_ATOMIC, _ARRAY, _COMPOUND, _PLAIN = 1, 2, 3, 4
_DEEPEST = 32


def wrong_scaleoffset(data: bytes, parameters: Sequence[int], chunk_bytes: int, item_bytes: int) -> str | None:
    """Compare what scaleoffset says of itself, values, their size and bits a value, with how much it has stored.

    HDF5 File Format Specification, IV.A.2.l: of the parameters, 2 is how many values a chunk has and 4 their size.
    """
    if tuple(parameters[2:5:2]) != (chunk_bytes // item_bytes, item_bytes):
        return (
            f"expected scaleoffset of {chunk_bytes // item_bytes} values of {item_bytes} bytes, found the parameters "
            f"{tuple(parameters)}"
        )
    bits = int.from_bytes(data[:4], "little")
    if len(data) < _SCALEOFFSET_HEADER_BYTES or bits > 8 * item_bytes:
        return f"expected a scaleoffset header of at most {8 * item_bytes} bits a value, found {data[:4]!r}"
    least = _SCALEOFFSET_HEADER_BYTES + -(-chunk_bytes // item_bytes * bits // 8)
    return None if len(data) >= least else f"expected {least} bytes of scaleoffset, found {len(data)}"


def wrong_nbit(data: bytes, parameters: Sequence[int], chunk_bytes: int) -> str | None:
    """Compare what the parameters of nbit say, values and the bits that are kept of each, with what is stored.

    HDF5 File Format Specification, IV.A.2.l: how many parameters, whether nothing was packed, values, and
    the type; a type is a class, a size and what is below it. Where nothing was packed, the type may be left out.
    """
    try:
        _, as_it_was, values, *_ = parameters
        if as_it_was:
            least = chunk_bytes
        else:
            item_bytes, (bits, _) = parameters[4], _kept_bits(parameters, 3)
            if values * item_bytes != chunk_bytes:
                return f"expected nbit of {chunk_bytes} bytes, found it of {values} values of {item_bytes} bytes"
            least = -(-values * bits // 8)
    except (ValueError, IndexError):
        return f"nbit with parameters {tuple(parameters)} cannot be undone"
    return None if len(data) >= least else f"expected {least} bytes of nbit, found {len(data)}"


def _kept_bits(parameters: Sequence[int], at: int, depth: int = 0) -> tuple[int, int]:
    """Return how many bits are kept of a value of the type at `at`, and where the next type is."""
    if depth > _DEEPEST:
        raise ValueError("a type inside itself")
    kind, size = parameters[at], parameters[at + 1]
    if kind == _PLAIN:
        return 8 * size, at + 2
    if kind == _ATOMIC:
        _, precision, offset = parameters[at + 2 : at + 5]
        if precision + offset > 8 * size:
            raise ValueError("more bits than the value has")
        return precision, at + 5
    if kind == _ARRAY:
        bits, after = _kept_bits(parameters, at + 2, depth + 1)
        return bits * (size // max(1, parameters[at + 3])), after
    if kind == _COMPOUND and parameters[at + 2] > 0:
        bits, after = 0, at + 3
        for _ in range(parameters[at + 2]):
            member_bits, after = _kept_bits(parameters, after + 1, depth + 1)
            bits += member_bits
        return bits, after
    raise ValueError(f"class {kind}")
