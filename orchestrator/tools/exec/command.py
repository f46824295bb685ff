"""The records of what a supervisor runs: a command and what became of it, and what became of a patch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from orchestrator.core.frozen import record
from orchestrator.sandbox.limits import Limits
from orchestrator.sandbox.policy_paths import Confinement

Stream = Literal["stdout", "stderr"]
OutputSink = Callable[[Stream, bytes], None]
"""Gets every chunk as it is read, on the event loop; must not block."""


@record
class Command:
    """A command under a claim; it runs only while the claim's deadline is ahead."""

    claim: str
    call_id: str
    argv: tuple[str, ...]
    cwd: Path
    env: Mapping[str, str]
    confinement: Confinement
    timeout_s: float | None = 10.0
    """None: until it ends by itself or the claim does."""
    limits: Limits = field(default_factory=Limits)
    tty: bool = False
    """Whether it gets a terminal of its own, for its input and its outputs."""


@record
class Finished:
    """A command that is over, with every process that it had started."""

    exit_code: int
    """The main process's; 124 after a timeout, 128 + n after signal n, -1 if it never started."""
    stdout: bytes = b""
    stderr: bytes = b""
    aggregated: bytes = b""
    """Both streams in the order in which they were read."""
    duration_s: float = 0.0
    timed_out: bool = False
    killed: bool = False
    """Ended on request or because its claim's deadline had passed."""
    memory_limit: int | None = None
    """The bytes that it may use, if it wanted more and was killed or refused for it."""
    error: str | None = None
    """Why it could not be started, or which processes could not be proved dead."""


@record
class Written:
    """A patch's job that is over, with the process that wrote."""

    outcome: tuple[Any, ...] | None
    """The writer's last message; None if the writer ended without one."""
    begun: bool = True
    """Whether it may have written anything."""
    why: str = ""
    """Why there is no outcome."""


class Grip:
    """The hold on a command that runs: to type to it, and to end it; given to `Supervisor.run`."""

    def __init__(self) -> None:
        self._kill: Callable[[], None] | None = None
        self._write: Callable[[bytes], bool] | None = None
        self._killed = False

    def bind(self, kill: Callable[[], None], write: Callable[[bytes], bool] | None) -> None:
        """Gets hold of the command; `write` is None for one without a terminal."""
        self._kill, self._write = kill, write
        if self._killed:
            kill()

    def kill(self) -> None:
        """Kills the command with everything that it has started; `run` returns when that is proved."""
        self._killed = True
        if self._kill is not None:
            self._kill()

    def write(self, data: bytes) -> bool:
        """Types to the command's terminal; False, and nothing is typed, if too much of before waits."""
        return self._write is not None and self._write(data)


# ── output ────────────────────────────────────────────────────────────────────────────────────────
# A finished command in the texts that the model and the events carry.
#
# Pure. The limits and the form of the JSON are those of the September 2025 protocol; the full streams go
# out with the events and are not touched here.


MODEL_BYTES = 10 * 1024
MODEL_LINES = 256


def for_model(aggregated: bytes, most: int = MODEL_BYTES) -> str:
    """At most 10 KiB, or `most` bytes, and 256 lines, half from the start and half from the end, as valid
    text.
    """
    return _shorten(aggregated.decode("utf-8", "replace"), most)


def formatted_output(finished: Finished) -> str:
    """The text for people and for the model: what ended it is said first, then the shortened output."""
    if finished.error is not None:
        return _shorten(f"{finished.error}\n{finished.aggregated.decode('utf-8', 'replace')}".rstrip("\n"))
    text = finished.aggregated.decode("utf-8", "replace")
    if finished.timed_out:
        text = f"command timed out after {int(finished.duration_s * 1000)} milliseconds\n{text}"
    if finished.memory_limit is not None:
        limit = f"{finished.memory_limit >> 20} MiB"
        text = f"command passed its memory limit of {limit} (sandbox.max_memory_bytes)\n{text}"
    return _shorten(text)


def model_output(finished: Finished) -> str:
    """The `function_call_output` of a shell call: compact JSON with the exit code and the seconds."""
    metadata = {"exit_code": finished.exit_code, "duration_seconds": round(finished.duration_s, 1)}
    document = {"output": formatted_output(finished), "metadata": metadata}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":"))


def _shorten(text: str, most: int = MODEL_BYTES) -> str:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    size = len(text.encode())
    if size <= most and len(lines) <= MODEL_LINES:
        return text
    half = MODEL_LINES // 2
    if len(lines) > MODEL_LINES:
        left_out = f"{len(lines) - MODEL_LINES} of {len(lines)} lines"
        head, tail = "\n".join(lines[:half]), "\n".join(lines[-half:])
    else:
        left_out = f"{size - most} of {size} bytes"
        head = tail = text
    marker = f"\n[... omitted {left_out} ...]\n\n"
    return _join(head, marker, tail, most)


def _join(head: str, marker: str, tail: str, most: int) -> str:
    """Head and tail cut to the bytes that the marker leaves, never inside a character."""
    first = head.encode()[: most // 2].decode("utf-8", "ignore")
    room = most - len(first.encode()) - len(marker.encode())
    last = tail.encode()[-room:].decode("utf-8", "ignore")
    return first + marker + last


# ── capture ───────────────────────────────────────────────────────────────────────────────────────
# Bounded capture of a command's output: keeps the beginning and the end, counts and drops the middle.
#
# Pure. Memory is bounded whatever a command prints, and no code here makes the command wait.


class Capture:
    """Keeps at most `limit` bytes of a stream: half from its start, half from its end."""

    __slots__ = ("_head", "_head_limit", "_tail", "_tail_limit", "dropped")

    def __init__(self, limit: int) -> None:
        self._head_limit = limit // 2
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self.dropped = 0
        """Bytes that are not kept."""

    def add(self, data: bytes) -> None:
        """Takes the next bytes of the stream."""
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        # Cut at twice the size: every byte is then moved at most once.
        if len(self._tail) > 2 * self._tail_limit:
            self._trim()

    def kept(self) -> bytes:
        """Head and tail; between them, if bytes were dropped, a line that says how many."""
        self._trim()
        if not self.dropped:
            return bytes(self._head + self._tail)
        return b"%b\n[... %d bytes dropped ...]\n%b" % (bytes(self._head), self.dropped, bytes(self._tail))

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            del self._tail[:excess]
            self.dropped += excess
