"""Checks that chunks packed by nbit and scaleoffset are complete: libhdf5 (2.0) reads past the end of a shorter one."""

from __future__ import annotations

from collections.abc import Sequence

_SCALEOFFSET_HEADER_BYTES = 21
_ATOMIC, _ARRAY, _COMPOUND, _PLAIN = 1, 2, 3, 4
_DEEPEST = 32


def wrong_scaleoffset(data: bytes, parameters: Sequence[int], chunk_bytes: int, item_bytes: int) -> str | None:
    """Return what is wrong with a chunk of scaleoffset: too few bytes, or other parameters. None if nothing is.

    HDF5 File Format Specification, IV.A.2.l: parameter 2 is the number of values of a chunk, parameter 4 their size.
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
    """Return what is wrong with a chunk of nbit: too few bytes, or other parameters. None if nothing is.

    HDF5 File Format Specification, IV.A.2.l. The parameters are: their number, whether nothing was packed, the
    number of values, and the type. A type is a class, a size and its members. It may be missing if nothing was packed.
    """
    try:
        _, as_it_was, values, *_ = parameters
        if as_it_was:
            least = chunk_bytes
        else:
            item_bytes, (bits, _) = parameters[4], _kept_bits(parameters, 3)
            if values * item_bytes != chunk_bytes:
                return f"expected nbit of {chunk_bytes} bytes, found {values} values of {item_bytes} bytes"
            least = -(-values * bits // 8)
    except (ValueError, IndexError):
        return f"nbit with parameters {tuple(parameters)} cannot be undone"
    return None if len(data) >= least else f"expected {least} bytes of nbit, found {len(data)}"


def _kept_bits(parameters: Sequence[int], at: int, depth: int = 0) -> tuple[int, int]:
    """Return the number of bits that a value of the type at `at` keeps, and the position of the next type."""
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
