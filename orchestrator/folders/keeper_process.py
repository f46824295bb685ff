"""The process of a keeper: confines itself, locks the copy, and does one piece of work after the other.

It is given two sockets: pieces of work come on the first, deadlines on the second, which a thread reads.
The deadline is a timer of the kernel's that kills the process wherever it is. A deadline that cannot be
heard for long work of C is one that passes: the process dies early rather than late.
"""

from __future__ import annotations

import base64
import fcntl
import gc
import math
import os
import resource
import signal
import socket
import struct
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from orchestrator.folders.copy import Copy
from orchestrator.folders.keeper_wire import frame, receive
from orchestrator.folders.outcomes import (
    Bounds,
    Branch,
    FolderError,
    FolderSnapshot,
    Found,
    Guard,
    Place,
    Search,
)
from orchestrator.sandbox import kernel, landlock

MEMORY_BYTES = 3 << 30
_FILE_SPARE = 1 << 30
"""Bytes that a pack may be larger than the files in it: those of a folder and of its commit."""
_MOST_TEXT = 2000


def main(work: int, control: int) -> None:
    """Serves until the end of either socket, the deadline, or the word to end."""
    os.umask(0o022)
    _obey_deadlines(socket.socket(fileno=control))
    # Where the worker is gone, nobody waits for an answer.
    with suppress(BrokenPipeError, ConnectionResetError):
        _serve(socket.socket(fileno=work))


def _serve(asked: socket.socket) -> None:
    first = receive(asked)
    if first is None:
        return
    place, bounds = _place(first[0]["place"]), _bounds(**first[0]["bounds"])
    try:
        lock = _lock(place)
        copy = Copy(place, bounds)
        _confine(place, bounds)
    except (OSError, FolderError) as error:
        asked.sendall(frame(_told(error)))
        return
    gc.freeze()
    asked.sendall(frame({"is": "ready"}))
    _Serving(copy, bounds, asked).run()
    if lock is not None:
        os.close(lock)


def _place(parts: list[str | None]) -> Place:
    folder, objects, lock = (Path(part) if part is not None else None for part in parts)
    assert folder is not None
    assert objects is not None
    return Place(folder, objects, lock)


def _bounds(*, include: list[str], exclude: list[str], ignored: list[str], **numbers: Any) -> Bounds:
    return Bounds(include=tuple(include), exclude=tuple(exclude), ignored=tuple(ignored), **numbers)


def _guard(*, within: list[str], kept: list[str], names: list[str]) -> Guard:
    return Guard(tuple(within), tuple(kept), tuple(names))


def _lock(place: Place) -> int | None:
    if place.lock is None:
        return None
    lock = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise FolderError(
            "busy", "another process of this machine works on the copy: it ends with its claim"
        ) from None
    return lock


def _confine(place: Place, bounds: Bounds) -> None:
    """Limits what a hostile folder or pack could make of this process."""
    for limit, most in (
        (resource.RLIMIT_DATA, MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 2 * bounds.max_bytes + _FILE_SPARE),
    ):
        soft, hard = resource.getrlimit(limit)
        known = [value for value in (most, soft, hard) if value != resource.RLIM_INFINITY]
        resource.setrlimit(limit, (min(known), min(known)))
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    landlock.confine_here(_writable(place))


def _writable(place: Place) -> list[Path]:
    """Folder and objects; in a copy of Dendro's, the folder of both, so that one can replace the other."""
    if place.folder.parent == place.objects.parent:
        return [place.objects.parent]
    return [place.objects, place.folder]


def _obey_deadlines(control: socket.socket) -> None:
    timer = kernel.deadly_timer()
    first = threading.Event()

    def obey() -> None:
        while data := control.recv(8):
            (deadline,) = struct.unpack("d", data)
            if timer is not None:
                kernel.set_deadly(timer, deadline)
            control.settimeout(max(deadline - _now(), 0.001))
            first.set()

    def obey_to_the_end() -> None:
        with suppress(OSError, struct.error):
            obey()
        _die()

    threading.Thread(target=obey_to_the_end, daemon=True).start()
    first.wait()


def _die() -> NoReturn:
    """No code of this process may run on: the parent is gone, or the right to the copy is."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)  # with the git that it may wait for
    os.kill(os.getpid(), signal.SIGKILL)
    os._exit(1)


def _now() -> float:
    import time

    return time.clock_gettime(kernel.CLOCK_BOOTTIME)


class _Serving:
    def __init__(self, copy: Copy, bounds: Bounds, asked: socket.socket) -> None:
        self._copy = copy
        self._bounds = bounds
        self._asked = asked

    def run(self) -> None:
        """Answers each request in its turn."""
        while (request := receive(self._asked)) is not None:
            words, descriptors = request
            self._allow_time()
            try:
                answer = _WORK[words["do"]](self._copy, words, descriptors)
            except FolderError as error:
                answer = _told(error)
            except MemoryError:
                text = f"the work needs more than {MEMORY_BYTES >> 30} GiB of memory: it was not done"
                answer = _told(FolderError("too_large", text))
            except Exception as defect:
                # Told to who asked, with the trace in the worker's log: the copy is as it was.
                traceback.print_exc()
                text = f"a defect of Dendro's: {type(defect).__name__}: {defect}; it was not done"
                answer = _told(FolderError("failed", text))
            finally:
                for descriptor in descriptors:
                    with suppress(OSError):
                        os.close(descriptor)
            self._asked.sendall(frame(answer))
            if words["do"] == "end":
                return

    def _allow_time(self) -> None:
        """Processor time for one piece of work; the kernel kills what takes more."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        most = math.ceil(used.ru_utime + used.ru_stime + self._bounds.seconds) + 5
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def _told(error: OSError | FolderError) -> dict[str, Any]:
    if isinstance(error, FolderError):
        text = error.text.encode("utf-8", "backslashreplace").decode()[:_MOST_TEXT]
        return {"is": "error", "kind": error.kind, "text": text}
    return {
        "is": "error",
        "kind": "failed",
        "text": f"the copy cannot be opened: {error.strerror} ({error.filename})",
    }


def _record(value: Any) -> dict[str, Any]:
    return {"is": type(value).__name__, "value": _plain(asdict(value))}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(it) for key, it in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(it) for it in value]
    return str(value) if isinstance(value, Path) else value


def _take(copy: Copy, words: dict[str, Any], _: list[int]) -> dict[str, Any]:
    return _record(copy.take(FolderSnapshot(words["parent"]), words["at_ms"], live=words["live"]))


def _born(copy: Copy, words: dict[str, Any], _: list[int]) -> dict[str, Any]:
    repository = Path(words["repository"]) if words["repository"] is not None else None
    return _record(copy.born(repository, words["ref"], words["at_ms"], of_folder=words["of_folder"]))


def _adopt(copy: Copy, words: dict[str, Any], packs: list[int]) -> dict[str, Any]:
    return {"is": "bool", "value": copy.adopt(packs, FolderSnapshot(words["snapshot"]))}


def _make(copy: Copy, words: dict[str, Any], packs: list[int]) -> dict[str, Any]:
    return _record(copy.make(packs, FolderSnapshot(words["snapshot"])))


def _plan_merge(copy: Copy, words: dict[str, Any], packs: list[int]) -> dict[str, Any]:
    base, theirs = FolderSnapshot(words["base"]), FolderSnapshot(words["theirs"])
    return _record(copy.plan_merge(base, theirs, packs, _guard(**words["guard"])))


def _write_merge(copy: Copy, words: dict[str, Any], packs: list[int]) -> dict[str, Any]:
    base, theirs = FolderSnapshot(words["base"]), FolderSnapshot(words["theirs"])
    return _record(copy.write_merge(base, theirs, packs, words["digest"], _guard(**words["guard"])))


def _take_back_merge(copy: Copy, _: dict[str, Any], __: list[int]) -> dict[str, Any]:
    copy.take_back_merge()
    return {"is": "done"}


def _diff(copy: Copy, words: dict[str, Any], packs: list[int]) -> dict[str, Any]:
    before = FolderSnapshot(words["before"]) if words["before"] is not None else None
    return _record(
        copy.diff(before, FolderSnapshot(words["after"]), packs, stat=words["stat"], path=words["path"])
    )


def _give(copy: Copy, _: dict[str, Any], packs: list[int]) -> dict[str, Any]:
    copy.give(packs)
    return {"is": "done"}


def _join(copy: Copy, words: dict[str, Any], _: list[int]) -> dict[str, Any]:
    return _record(copy.join([Branch(*branch) for branch in words["branches"]]))


def _read_files(copy: Copy, words: dict[str, Any], packs: list[int]) -> dict[str, Any]:
    snapshot = FolderSnapshot(words["snapshot"])
    return _contents(Found(copy.read_files(snapshot, words["paths"], words["most"], packs)))


def _find_files(copy: Copy, words: dict[str, Any], packs: list[int]) -> dict[str, Any]:
    folders, *bounds = words["search"]
    return _contents(
        copy.find_files(FolderSnapshot(words["snapshot"]), Search(tuple(folders), *bounds), packs)
    )


def _contents(found: Found) -> dict[str, Any]:
    rows = [
        [file.path, base64.b64encode(file.content).decode() if file.content is not None else None, file.why]
        for file in found.files
    ]
    return {"is": "contents", "value": [rows, [[cut.folder, cut.bound] for cut in found.cut]]}


def _end(copy: Copy, _: dict[str, Any], __: list[int]) -> dict[str, Any]:
    copy.leave()
    return {"is": "ended"}


_WORK: dict[str, Callable[[Copy, dict[str, Any], list[int]], dict[str, Any]]] = {
    "take": _take,
    "born": _born,
    "adopt": _adopt,
    "make": _make,
    "plan_merge": _plan_merge,
    "write_merge": _write_merge,
    "take_back_merge": _take_back_merge,
    "diff": _diff,
    "give": _give,
    "join": _join,
    "read_files": _read_files,
    "find_files": _find_files,
    "end": _end,
}
