"""Starts `dendro` commands for tests: each is a fork of a process that has imported the product.

To import it takes more CPU than most commands' work. A fork is a child of the test's own process, with
folder, environment, descriptors and signals of its own, and ends as Python ends (`tests.preloaded`); its
name and its environment in /proc are those of the process that it was forked from. Tests of the start
itself, or of /proc, start `python -m orchestrator.cli.main`.
"""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import fcntl
import functools
import inspect
import json
import os
import socket
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, AnyStr
from unittest.mock import patch

COMMAND = (sys.executable, "-m", "orchestrator.cli.main")

_ONE_AT_A_TIME = threading.Lock()
_ROOT = Path(__file__).parents[1]
_PR_SET_CHILD_SUBREAPER = 36


def own_terminal() -> None:
    """Makes the terminal at stdin the controlling one, so that Ctrl-C means what it means."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class _Fork(subprocess.Popen[AnyStr]):
    """A process of `COMMAND` and more words, or of another module of the product or of the tests; a new
    Python, if that would read another environment.

    Takes descriptors, `cwd`, `env`, `umask`, `user` with nothing but it,
    and `own_terminal` as `preexec_fn`.
    """

    namespaces: tuple[str, ...] = ()
    """Files below /proc of the namespaces that the command is to run in, in the order of entering."""

    def _execute_child(self, *values: Any) -> None:
        given = _PARAMETERS.bind(self, *values).arguments
        environ = os.environ if given["env"] is None else given["env"]
        if not _known_to_python(environ).items() <= _known_to_python(_ENVIRON).items():
            assert not self.namespaces, "a new Python starts where the tests run"
            super()._execute_child(*values)  # type: ignore[misc]
            return
        assert tuple(given["args"][:2]) == COMMAND[:2], "only the product is preloaded, and starts by modules"
        assert given["preexec_fn"] in (None, own_terminal), "nothing else is done before the command"
        assert not given["pass_fds"], "only the standard streams are handed over"
        assert given["gid"] is None, "a user has the group of its number alone"
        order = {
            "module": given["args"][2],
            "words": given["args"][3:],
            "cwd": os.fspath(given["cwd"] or Path.cwd()),
            "environ": dict(environ),
            "own_terminal": given["preexec_fn"] is own_terminal,
            "umask": given["umask"],
            "user": given["uid"],
            "namespaces": self.namespaces,
        }
        streams = [given[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        self.pid = _fork(order, [number if end < 0 else end for number, end in enumerate(streams)])
        self._child_created = True
        self._close_pipe_fds(*(given[name] for name in _PIPES))  # type: ignore[attr-defined]


_ENVIRON = {name: os.environ[name] for name in os.environ if name[:6] != "PYTHON" or name == "PYTHONPATH"}
"""The environment that the preloaded process starts in."""
_PARAMETERS = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]
_PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")

if TYPE_CHECKING:
    Started = subprocess.Popen
else:
    Started = _Fork


async def create_started(*words: str, **given: Any) -> asyncio.subprocess.Process:
    """As `asyncio.create_subprocess_exec`, for what `Started` starts."""
    with patch("asyncio.unix_events.subprocess", _Starts(words)):
        return await asyncio.create_subprocess_exec(*words, **given)


class _Starts:
    """The module `subprocess`, but that `Popen` starts these words as `Started` does."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = words

    def Popen(self, args: Sequence[str], **given: Any) -> subprocess.Popen[Any]:  # noqa: N802
        return (Started if args == self._words else subprocess.Popen)(args, **given)

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)


def _known_to_python(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith("PYTHON")}


def _fork(order: Mapping[str, object], descriptors: list[int]) -> int:
    """The pid of a new child of this process that carries the order out."""
    file = os.memfd_create("order")
    try:
        with open(file, "wb", closefd=False) as written:
            written.write(json.dumps(order).encode())
        with _ONE_AT_A_TIME, _adopting():
            preloaded = _preloaded()
            socket.send_fds(preloaded, [b"start"], [file, *descriptors])
            answer = preloaded.recv(64)
    finally:
        os.close(file)
    if not answer:
        raise ChildProcessError("the preloaded process has ended; stderr says why")
    # Raises `ChildProcessError` if it is another's child: its end could not be known.
    os.waitid(os.P_PID, int(answer), os.WEXITED | os.WNOHANG | os.WNOWAIT)
    return int(answer)


@contextmanager
def _adopting() -> Iterator[None]:
    """Orphans of this process's descendants become its own children."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "cannot adopt a fork")
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@functools.cache
def _preloaded() -> socket.socket:
    """The connection to this process's preloaded process, which ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.preloaded", str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            stdin=subprocess.DEVNULL,
            cwd=_ROOT,
            env=_ENVIRON,
        )

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours
