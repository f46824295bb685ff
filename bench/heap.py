"""The heap of a process as the process itself tells of it while it works.

A process whose environment names a folder in `BENCH_HEAP` writes into a file of its pid there every few
seconds (`tells`): the memory of a process says what its allocator ever held, and not what is kept.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import orjson

from orchestrator.sandbox.kernel import share_heap

HEAP_S = 5.0
TYPES_S = 60.0
"""Objects are counted by their types so often: a walk along a million of them takes a tenth of a second."""
TYPES = 200
"""Types that are told of, those with the most objects."""


@dataclass(frozen=True, slots=True)
class Heap:
    """A heap that is in use: `blocks` of Python's objects, and bytes of the allocator beside them (`held`).

    `types` has the objects that the collector knows, by the name of their type; strings and numbers are none.
    `parts` says where its bytes are, those that are in use and those that only an allocator has.
    """

    blocks: int
    held: int
    types: Mapping[str, int]
    parts: Mapping[str, int]


class _Mallinfo(ctypes.Structure):
    """The answer of `mallinfo2` (glibc, since 2.33): ten sizes."""

    _fields_ = tuple((f"size_{n}", ctypes.c_size_t) for n in range(10))


OF_OBJECTS = {
    "objects": r"# bytes in allocated blocks += +([\d,]+)",
    "room between objects": r"# bytes in available blocks += +([\d,]+)",
    "free pools of objects": r"unused pools \* \d+ bytes += +([\d,]+)",
}
"""Parts of a heap that Python's own allocator has, by what it says of each."""


def tells() -> None:
    """Tells of this process from now on, if its environment asks for it."""
    if folder := os.environ.get("BENCH_HEAP"):
        share_heap()
        threading.Thread(target=_tells, args=(Path(folder),), daemon=True).start()


def told(folder: Path, pid: int) -> Heap | None:
    """The last of what the process said; None if it has said nothing yet."""
    try:
        return Heap(**orjson.loads((folder / str(pid)).read_bytes()))
    except FileNotFoundError:
        return None


def _tells(folder: Path) -> None:
    asked = ctypes.CDLL(None).mallinfo2
    asked.restype = _Mallinfo
    file, types, counted_at = folder / str(os.getpid()), dict[str, int](), -TYPES_S
    while True:
        if time.monotonic() - counted_at >= TYPES_S:
            types, counted_at = _types(), time.monotonic()
        found = asked()
        held = found.size_7 + found.size_4
        of_c = {"blocks of the C library": held, "free blocks of the C library": found.size_8}
        new = file.with_suffix(".new")
        new.write_bytes(orjson.dumps(Heap(sys.getallocatedblocks(), held, types, _of_objects() | of_c)))
        new.rename(file)
        time.sleep(HEAP_S)


def _of_objects() -> dict[str, int]:
    """Bytes of Python's arenas, by what its allocator says of them."""
    library, says = ctypes.CDLL(None), ctypes.pythonapi._PyObject_DebugMallocStats
    library.open_memstream.restype = ctypes.c_void_p
    library.fclose.argtypes = library.free.argtypes = says.argtypes = [ctypes.c_void_p]
    text, size = ctypes.c_void_p(), ctypes.c_size_t()
    stream = library.open_memstream(ctypes.byref(text), ctypes.byref(size))
    says(stream)
    library.fclose(stream)
    told = ctypes.string_at(text, size.value).decode() if text.value else ""
    library.free(text)
    found = {part: re.search(pattern, told) for part, pattern in OF_OBJECTS.items()}
    return {part: int(said[1].replace(",", "")) for part, said in found.items() if said}


def _types() -> dict[str, int]:
    # In one call of C, in which no other thread runs: one may be at the making of a tuple, and a tuple that a
    # list of all objects holds as well cannot grow (`SystemError: bad argument to internal function`).
    kinds = list(map(type, chain.from_iterable(map(gc.get_objects, (None,)))))
    found = Counter[str]()
    for kind, count in Counter(kinds).items():
        found[f"{kind.__module__}.{kind.__qualname__}"] += count
    return dict(found.most_common(TYPES))
