"""Deltas between two versions of an object, as git's packs hold them."""

from __future__ import annotations

from orchestrator.folders.outcomes import FolderError

_MOST_COPY = 0xFFFF
_MOST_INSERT = 127
_LEAST_COPY = 12
"""Bytes: a shorter copy costs about what it saves."""


def delta(base: bytes, target: bytes) -> bytes:
    """Instructions that make `target` from `base`: what both begin and end with, and whole lines between."""
    head = _shared(base, target)
    tail = _shared(base[head:][::-1], target[head:][::-1])
    out = [_varint(len(base)), _varint(len(target))]
    out += _copies(0, head)
    middle = target[head : len(target) - tail]
    for place, start, end in _runs(base, middle):
        out += _copies(place, end - start) if place >= 0 else _inserts(middle[start:end])
    out += _copies(len(base) - tail, tail)
    return b"".join(out)


def _shared(one: bytes, other: bytes) -> int:
    """The bytes that both begin with, found by halves."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _runs(base: bytes, middle: bytes) -> list[tuple[int, int, int]]:
    """Parts of `middle`: the place in `base` where each is found, or -1, its start and its end."""
    places: dict[bytes, int] = {}
    at = 0
    for line in base.splitlines(keepends=True):
        places.setdefault(line, at)
        at += len(line)
    runs: list[tuple[int, int, int]] = []
    at = 0
    for line in middle.splitlines(keepends=True):
        end = at + len(line)
        place, start, _ = runs[-1] if runs else (-1, 0, 0)
        if place >= 0 and base.startswith(line, place + at - start):
            runs[-1] = (place, start, end)
        else:
            found = places.get(line, -1) if len(line) >= _LEAST_COPY else -1
            if runs and found < 0 and place < 0:
                runs[-1] = (-1, start, end)
            else:
                runs.append((found, at, end))
        at = end
    return runs


def _copies(start: int, length: int) -> list[bytes]:
    return [
        _copy(at, min(_MOST_COPY, start + length - at)) for at in range(start, start + length, _MOST_COPY)
    ]


def _copy(start: int, length: int) -> bytes:
    """An instruction: a byte that says which bytes of offset and length follow, then these."""
    flags, body = 0x80, bytearray()
    for bit, byte in enumerate((*start.to_bytes(4, "little"), *length.to_bytes(3, "little"))):
        if byte:
            flags |= 1 << bit
            body.append(byte)
    return bytes((flags,)) + bytes(body)


def _inserts(data: bytes) -> list[bytes]:
    return [
        bytes((len(part),)) + part
        for at in range(0, len(data), _MOST_INSERT)
        for part in (data[at : at + _MOST_INSERT],)
    ]


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def sizes(instructions: bytes) -> tuple[int, int, int]:
    """The sizes of base and result, and where the instructions begin."""
    base, at = _number(instructions, 0)
    result, at = _number(instructions, at)
    return base, result, at


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 42:
            raise _broken("its sizes cannot be read")
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return value, at


def apply(base: bytes, instructions: bytes) -> bytes:
    """The result of a delta; raises FolderError for instructions that do not fit base or sizes."""
    base_size, size, at = sizes(instructions)
    if base_size != len(base):
        raise _broken("it was made for another base")
    out: list[bytes] = []
    made, end = 0, len(instructions)
    while at < end:
        op = instructions[at]
        at += 1
        if op & 0x80:
            start, length, at = _copy_of(instructions, op, at)
            part = base[start : start + length]
        else:
            length = op
            part = instructions[at : at + length]
            at += length
        made += length
        if not op or len(part) != length or made > size:
            raise _broken("it reads or writes beyond an end")
        out.append(part)
    if made != size:
        raise _broken("its result is shorter than it says")
    return b"".join(out)


def _copy_of(data: bytes, op: int, at: int) -> tuple[int, int, int]:
    values = [0] * 7
    for bit in range(7):
        if op & 1 << bit:
            if at >= len(data):
                raise _broken("it ends in the middle of an instruction")
            values[bit] = data[at]
            at += 1
    start = int.from_bytes(bytes(values[:4]), "little")
    return start, int.from_bytes(bytes(values[4:]), "little") or 0x10000, at


def _broken(why: str) -> FolderError:
    return FolderError("damaged", f"a pack holds a delta that is broken ({why}): nothing is made of it")
