"""Starts real worker processes with ports that can kill them; the product has no test code for it.

A fork_server: the product is imported once, each worker is a fork in a process group
of its own. Speaks lines of JSON: an order in, `{"pid"}` out, later `{"pid", "status"}`.
Ends with its stdin, and takes its workers with it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import selectors
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import orjson

from orchestrator.settings import SettingsSources, load_settings
from tests.crash.deadly import deadly_parts
from tests.crash.points import Doom, Point
from workers.turns import run_turns

PR_SET_PDEATHSIG = 1


def main() -> None:
    if "servers" in sys.argv:
        # A worker imports it when it has servers, which takes most of a second.
        import_module("orchestrator.mcp.servers")
    children: dict[int, int] = {}
    try:
        _serve(children)
    finally:
        for pid in children.values():
            os.killpg(pid, signal.SIGKILL)


def _serve(children: dict[int, int]) -> None:
    waiting = selectors.DefaultSelector()
    waiting.register(sys.stdin.fileno(), selectors.EVENT_READ)
    orders = b""
    while True:
        for ready, _ in waiting.select():
            if ready.fd != sys.stdin.fileno():
                waiting.unregister(ready.fd)
                _reap(children.pop(ready.fd), ready.fd)
                continue
            data = os.read(ready.fd, 1 << 16)
            if not data:
                return
            *lines, orders = (orders + data).split(b"\n")
            for line in lines:
                pid = _start(orjson.loads(line))
                handle = os.pidfd_open(pid)
                children[handle] = pid
                waiting.register(handle, selectors.EVENT_READ)
                _tell({"pid": pid})


def _start(order: dict[str, Any]) -> int:
    pid = os.fork()
    if pid == 0:
        _worker(order)
    # Its group is there before anybody hears of it.
    os.setpgid(pid, pid)
    return pid


def _worker(order: dict[str, Any]) -> NoReturn:
    status = 1
    try:
        # However the fork_server ends, also with a tester's whole process group.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        logging.getLogger("dendro").setLevel(logging.INFO)
        settings = load_settings(SettingsSources(Path(order["cwd"]), order["environ"]))
        point = Point(**order["point"]) if order["point"] else None
        with deadly_parts(Doom(point), Path(order["cwd"])):
            status = run_turns(settings)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        # The fork_server's own clean-up is not this process's.
        sys.stderr.flush()
        os._exit(status)


def _reap(pid: int, handle: int) -> None:
    os.close(handle)
    _, status = os.waitpid(pid, 0)
    _tell({"pid": pid, "status": os.waitstatus_to_exitcode(status)})


def _tell(fact: dict[str, Any]) -> None:
    os.write(sys.stdout.fileno(), orjson.dumps(fact) + b"\n")


if __name__ == "__main__":
    main()
