"""The readers of scripts of a simulated worker: the product starts and asks them.

The product's own are `script_reader.py` of `tools/commands`, whole, `bash.py`, `safety.py` and `within.py`,
and the grammar that the process calls. Simulated are the process and the socket to it: it dies, hangs or
answers late at any moment, and cannot be started at times. The product keeps its reader in its module, one
for each process: here each simulated worker puts its own there for as long as it judges.
"""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from threading import Lock
from typing import Any, Final, cast

from orchestrator.core.calls import Exec
from orchestrator.protocol.commands import UnknownCommand
from orchestrator.tools import exec_policy
from orchestrator.tools.commands import bash, safety
from orchestrator.tools.commands.bash_grammar import _READERS
from sim.ledger import Ledger, Reading

LOST: Final = ("dies", "dies midway", "dies before", "hangs", "late")
PATIENCE_S: Final = {"ANSWER_S": 1.0, "START_S": 3.0}
"""Less than the product's: a simulated worker does one thing at a time, and others' timers wait for it."""
_LENGTH: Final = struct.Struct("!I")
_HEAD: Final = struct.Struct("!cI")
_GONE_BEFORE: Final = "dies before"

Question = tuple[bytes, bytes]
"""A letter, and a script."""


@dataclass(frozen=True, slots=True)
class Script:
    """A script that a simulated model asks for, and what is true of it."""

    text: str
    layers: tuple[tuple[str, bool], ...]
    """Itself and the scripts within it, from outside in, each with whether that one destroys something."""
    safe: bool = False

    @property
    def whole(self) -> Question:
        """The question of which commands it certainly consists."""
        return bash.PLAIN, self.text.encode()


def script_of(call_id: str, given: Mapping[str, Any]) -> Script:
    """The script that a call asks for by its arguments."""
    nested = bool(given["script"] % 2)
    if given.get("prefix") and not given.get("dangerous"):
        text = f"touch {call_id}"
    elif given.get("dangerous") and nested:
        inner = f"rm -rf {call_id}; true"
        text = f"make {call_id} && bash -c '{inner}'"
        return Script(text, ((text, False), (inner, True)))
    elif given.get("dangerous"):
        text = f"echo $(rm -rf {call_id})"
        return Script(text, ((text, True),))
    elif not given["ask"]:
        text = f"ls {call_id} && pwd"
        return Script(text, ((text, False),), safe=True)
    elif nested:
        inner = f"make {call_id} all"
        text = f"make {call_id}; bash -c '{inner}'"
        return Script(text, ((text, False), (inner, False)))
    else:
        text = f"make {call_id} > log; true"
    return Script(text, ((text, False),))


@dataclass(slots=True, eq=False)
class _Asked:
    question: Question
    ends_at: int | None = None
    """The length of all answers up to its own; None where it has none."""


class _Process:
    """A reader's process, as the product has started it."""

    def __init__(self, readers: ScriptReaders, socket: _Socket) -> None:
        self._readers = readers
        self.socket = socket
        self.lives = True
        self.returncode: int | None = None

    def kill(self) -> None:
        self.lives = False

    def wait(self) -> int:
        if self.lives:
            self._readers.broken("a worker waits for the end of a reader that it has not killed")
        self.returncode = -9
        return self.returncode


class _Socket:
    """The worker's end of the socket to a reader."""

    def __init__(self, readers: ScriptReaders) -> None:
        self._readers = readers
        self._timeout_s: float | None = None
        self._written, self._read, self._stream = 0, 0, bytearray()
        self._late: tuple[_Asked | None, bytes] | None = None
        self._asked: _Asked | None = None
        self.process: _Process | None = None
        self.closed = False

    def __enter__(self) -> _Socket:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def fileno(self) -> int:
        return self._readers.number_of(self)

    def settimeout(self, seconds: float) -> None:
        self._timeout_s = seconds

    def close(self) -> None:
        self.closed = True

    def starts(self, how: str) -> None:
        """The process says that it is there, or it is lost before."""
        self._answers(None, _LENGTH.pack(0), how)

    def sendall(self, data: bytes) -> None:
        assert self.process is not None
        kind, length = _HEAD.unpack(data[: _HEAD.size])
        question = kind, data[_HEAD.size : _HEAD.size + length]
        self._asked = _Asked(question)
        self._readers.asked(question)
        how = self._readers.fate(question)
        if not self.process.lives or how == _GONE_BEFORE:
            self.process.lives = False
            raise BrokenPipeError("the reader is gone")
        self._answers(self._asked, answer(*question), how)

    def _answers(self, asked: _Asked | None, data: bytes, how: str) -> None:
        assert self.process is not None
        if how == "late":
            self._late = asked, data
        elif how == "answers":
            self._writes(asked, data)
        elif how == "dies midway":
            self._writes(None, data[: len(data) // 2])
        if how.startswith("dies"):
            self.process.lives = False

    def _writes(self, asked: _Asked | None, data: bytes) -> None:
        self._stream += data
        self._written += len(data)
        if asked is not None:
            asked.ends_at = self._written

    def recv(self, most: int) -> bytes:
        assert self.process is not None
        if self._stream:
            piece = bytes(self._stream[: self._readers.rng.randint(1, most)])
            del self._stream[: len(piece)]
            self._read += len(piece)
            if self._asked is not None and self._asked.ends_at == self._read:
                self._readers.answered.add(self._asked.question)
            return piece
        if not self.process.lives and self._late is None:
            return b""
        if self._timeout_s is None:
            self._readers.broken("a worker waits for a reader for ever")
        self._readers.spent_s += self._timeout_s or 0.0
        if self._late is not None:
            self._writes(*self._late)
            self._late = None
        raise TimeoutError("the reader is late")


@lru_cache(maxsize=4096)
def answer(kind: bytes, source: bytes) -> bytes:
    """The answer of the process, by the product's own grammar."""
    body = json.dumps(_READERS[kind](source)).encode()
    return _LENGTH.pack(len(body)) + body


class ScriptReaders:
    """The readers of one worker, and what it has found by them."""

    DEVNULL = -3
    """`subprocess.DEVNULL`: the product finds its modules `subprocess` and `socket` here."""

    def __init__(self, ledger: Ledger, rng: Random) -> None:
        self._ledger = ledger
        self.rng = rng
        self.odds = 0.0
        """How likely a reader is lost or late at each moment."""
        self.answered: set[Question] = set()
        """Questions that had an answer in time: the product keeps these."""
        self.spent_s = 0.0
        """Seconds that were waited for in vain."""
        self._costly: set[bytes] = set()
        """Scripts that cost each reader that is asked about them."""
        self._lost: Counter[Question] = Counter()
        self._unstarted = 0
        self._sockets: list[_Socket] = []
        self._processes: list[_Process] = []
        self._kept: dict[str, Any] = {"_reader": None, "_lock": Lock(), **PATIENCE_S}
        self._kept |= {"socket": self, "subprocess": self}
        made = lru_cache(maxsize=256)
        self._caches = {name: made(getattr(bash, name).__wrapped__) for name in ("_plain", "_beginnings")}

    def broken(self, seen: str) -> None:
        self._ledger.misread(seen)

    # ── what the product finds in the place of `socket` and `subprocess` ──────────────────────

    def socketpair(self) -> tuple[_Socket, _Socket]:
        ours, theirs = _Socket(self), _Socket(self)
        self._sockets = [ours, theirs]
        return ours, theirs

    def number_of(self, socket: _Socket) -> int:
        return self._sockets.index(socket)

    def Popen(self, words: Sequence[str], *, env: Mapping[str, str], **rest: Any) -> _Process:  # noqa: N802
        if env:
            self.broken("a reader of scripts has an environment")
        how = self._drawn()
        if how == _GONE_BEFORE:
            self._unstarted += 1
            raise BlockingIOError("no process can be started")
        if how != "answers":
            self._unstarted += 1
        socket = self._sockets[0]
        socket.process = _Process(self, socket)
        self._processes.append(socket.process)
        socket.starts(how)
        return socket.process

    def asked(self, question: Question) -> None:
        self._lost[question] += 1

    def fate(self, question: Question) -> str:
        """The fate of the reader that is asked."""
        if question[1] in self._costly:
            return self.rng.choice(LOST[:2] + LOST[3:])
        return self._drawn()

    def _drawn(self) -> str:
        return self.rng.choice(LOST) if self.rng.random() < self.odds else "answers"

    # ── judging ───────────────────────────────────────────────────────────────────────────────

    @contextmanager
    def _own(self) -> Iterator[None]:
        """This worker's reader, and what it has read, in the product's modules."""
        homes: list[tuple[Any, dict[str, Any]]] = [(bash, self._kept), (bash, self._caches)]
        before = [(home, {name: getattr(home, name) for name in kept}) for home, kept in homes]
        try:
            for home, kept in homes:
                vars(home).update(kept)
            yield
        finally:
            for home, kept in homes:
                kept |= {name: getattr(home, name) for name in kept}
            for home, real in before:
                vars(home).update(real)

    def judged(self, call_id: str, given: Mapping[str, Any], key: str) -> Exec:
        """The command as the product's `shell` judges it; what is found is held against what is true."""
        script = script_of(call_id, given)
        if 0 <= given["costs"] < len(script.layers):
            self._costly.add(script.layers[given["costs"]][0].encode())
        self._lost.clear()
        self._unstarted, self.spent_s = 0, 0.0
        command = ("bash", "-lc", script.text)
        with self._own():
            dangerous, unreadable = safety.dangers(command)
            safe = safety.is_known_safe(command)
            found = exec_policy.segments(command, (), lambda program: True) if given.get("prefix") else ()
        for question in self.answered & self._lost.keys():
            self._lost[question] -= 1
        reading = self._true(script, given)
        self._compared(call_id, reading, dangerous=dangerous, unreadable=unreadable, safe=safe)
        if reading.prefix and [one.words for one in found] != [("touch", call_id)]:
            self.broken(f"{call_id} consists of {found}")
        self._left_behind()
        self._ledger.readings.setdefault(call_id, []).append(reading)
        return Exec(
            command,
            "/sim",
            (UnknownCommand(cmd=script.text),),
            key,
            safe=safe,
            dangerous=dangerous,
            unreadable=unreadable,
            segments=found,
        )

    def _true(self, script: Script, given: Mapping[str, Any]) -> Reading:
        """The finding that is to be made, by the truth of the script and the answers that came in time."""
        destroys = unread = False
        for text, layer_destroys in script.layers:
            question = bash.BEGINNINGS, text.encode()
            if self._unread(question):
                unread = True
                break
            destroys |= layer_destroys
        plain = not self._unread(script.whole)
        prefix = bool(given.get("prefix")) and not given.get("dangerous") and plain
        return Reading(destroys, unread, safe=script.safe and plain, prefix=prefix)

    def _unread(self, question: Question) -> bool:
        if question in self.answered:
            return False
        if (lost := self._lost[question] + self._unstarted) < 2:
            self.broken(f"{question[1]!r} is given up when {lost} readers were lost with it")
        return True

    def _compared(
        self, call_id: str, reading: Reading, *, dangerous: bool, unreadable: str, safe: bool
    ) -> None:
        wanted = reading.destroys, reading.unread, reading.safe
        if (dangerous, bool(unreadable), safe) != wanted:
            found = f"destroys: {dangerous}, unread: {unreadable!r}, safe: {safe}"
            self.broken(f"the script of {call_id} is judged as {found}, and is {reading}")
        for (kind, source), lost in self._lost.items():
            if kind == bash.BEGINNINGS and lost > 2:
                self.broken(f"{source!r} has cost {lost} readers")

    def _left_behind(self) -> None:
        """Every reader but the one that is kept has been killed, and waited for."""
        kept = self._kept["_reader"]
        serves = cast(Any, kept)._process if kept is not None else None
        for process in self._processes:
            over = not process.lives and process.returncode is not None and process.socket.closed
            if process is not serves and not over:
                self.broken("a reader of scripts is left behind")
        self._processes = [serves] if serves is not None else []
