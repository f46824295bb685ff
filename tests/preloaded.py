"""A process that has imported the product, and forks itself for every command that a test starts.

The fork takes its folder, environment, descriptors and arguments from the order, keeps nothing else open, and
then runs the command as a new interpreter would, to the interpreter's own end. It is forked by a process that
ends at once, so that the test's process, which adopts orphans at that moment, becomes its parent.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import functools
import gc
import importlib.resources
import io
import json
import os
import pkgutil
import runpy
import socket
import sys
import termios
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer.main
from pydantic import BaseModel, PydanticUndefinedAnnotation, TypeAdapter

import orchestrator
import orchestrator.cli.main as commands
import workers
from orchestrator.broker.scripts import load
from orchestrator.cli.main import main
from orchestrator.core import frozen
from orchestrator.sandbox import probe
from tests import probed

LOCALE = ("LC_ALL", "LC_CTYPE", "LANG")
_MADV_COLLAPSE = 25
_PR_SET_DUMPABLE = 4
IMPORTED_LATE = ("fsspec.implementations.chained", "rich._emoji_codes", "uvicorn.lifespan.off")
"""Modules of libraries which they import when they are first needed."""
BYTES_PASS = ("", "C", "POSIX", "C.UTF-8", "C.utf8", "UTF-8")
"""Locales in which Python lets bytes that are no text through its standard streams."""


def serve(connection: socket.socket) -> str:
    """Serves orders until the tests have ended; returns, in a fork, the module that it is to run."""
    while True:
        _, descriptors, _, _ = socket.recv_fds(connection, 64, 4)
        if not descriptors:
            os._exit(0)
        if (between := os.fork()) == 0:
            _leave_an_orphan()
            connection.send(str(os.getpid()).encode())
            return _take_up(descriptors)
        os.waitpid(between, 0)
        for descriptor in descriptors:
            os.close(descriptor)


def _leave_an_orphan() -> None:
    """Forks again, and returns in the fork once its parent has gone."""
    between = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == between:
        time.sleep(0.0002)


def _take_up(descriptors: list[int]) -> str:
    order: dict[str, Any] = json.loads(os.pread(descriptors[0], os.fstat(descriptors[0]).st_size, 0))
    for number, descriptor in enumerate(descriptors[1:]):
        os.dup2(descriptor, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    _enter(order["namespaces"])
    if order["own_terminal"]:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.chdir(order["cwd"])
    if order["umask"] >= 0:
        os.umask(order["umask"])
    if order["user"] is not None:
        _become(order["user"])
    os.environ.clear()
    os.environ.update(order["environ"])
    sys.argv[1:] = order["words"]
    place = next((order["environ"][name] for name in LOCALE if order["environ"].get(name)), "")
    lenient = "surrogateescape" if place in BYTES_PASS else "strict"
    sys.stdin = _stream(0, "r", lenient)
    sys.stdout = _stream(1, "w", lenient)
    sys.stderr = _stream(2, "w", "backslashreplace")
    module: str = order["module"]
    return module


def _enter(namespaces: list[str]) -> None:
    """Joins the namespaces of a test's machine; the first is the one that gives the right to the others."""
    libc = ctypes.CDLL(None, use_errno=True)
    files = [os.open(file, os.O_RDONLY) for file in namespaces]
    for file in files:
        if libc.setns(file, 0):
            raise OSError(ctypes.get_errno(), "cannot enter a machine's namespace")
        os.close(file)


def _become(user: int) -> None:
    """Drops to a user with the group of its number and no other, as a process that it had started itself."""
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)


def _stream(number: int, mode: str, errors: str) -> io.TextIOWrapper:
    """A standard stream as Python makes it where text is UTF-8."""
    binary = open(number, f"{mode}b", closefd=False)  # noqa: SIM115
    return io.TextIOWrapper(binary, "utf-8", errors, line_buffering=number == 2 or binary.isatty())


def _run(module: str) -> None:
    """Runs the module, and ends without taking everything to pieces, which would be most of a fork's CPU.

    What ends by more than an exit code goes to the interpreter's own end.
    """
    try:
        if module == main.__module__:
            main()
        else:
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            sys.exit()
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        except OSError:
            raise end from None
        os._exit(end.code or 0)


def import_all() -> None:
    """Imports the whole product, but for what an optional library is missing for."""
    probed.once()
    probe.probe()
    for package in (orchestrator, workers):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                with suppress(ModuleNotFoundError):
                    importlib.import_module(module.name)
    for name in IMPORTED_LATE:
        with suppress(ModuleNotFoundError):
            importlib.import_module(name)
    _build()
    _build_commands()
    gc.collect()
    gc.freeze()


def _build() -> None:
    """Builds what commands build when they first need it: schemas, records, and scripts from their parts."""
    classes: list[type[BaseModel]] = [BaseModel]
    for model in classes:
        classes += model.__subclasses__()
        if not model.__pydantic_complete__ and model is not BaseModel:
            with suppress(PydanticUndefinedAnnotation):
                model.model_rebuild()
    for adapter in [it for it in gc.get_objects() if isinstance(it, TypeAdapter)]:
        if not adapter.pydantic_complete:
            adapter.rebuild(raise_errors=False)
    for kind in [it for it in gc.get_objects() if isinstance(it, type)]:
        if vars(kind).get("__new__") in vars(frozen).values():
            with suppress(TypeError):
                kind()
    for file in importlib.resources.files("orchestrator.broker").joinpath("lua").iterdir():
        if not file.name.startswith("_"):
            load(file.name.removesuffix(".lua"))


def _build_commands() -> None:
    """Builds all commands, and what reads their arguments, for forks to find."""
    typer.main.get_command = functools.cache(typer.main.get_command)
    commands._built = functools.cache(commands._built)
    group: Any = typer.main.get_command(commands.app)
    above = typer.Context(group, **group.context_settings)
    left = [(above, group)]
    left += [(above, group.get_command(above, name)) for name in commands.COMMANDS]
    for parent, command in left:
        context = typer.Context(command, parent, **command.context_settings)
        left += [(context, one) for one in getattr(command, "commands", {}).values()]
        for parameter in command.get_params(context):
            if hasattr(parameter, "get_runtime_param"):
                parameter.get_runtime_param()


def _use_large_pages() -> None:
    """Has the memory in pages of 2 MiB, where the kernel knows how: a fork is then made in half the time."""
    madvise = ctypes.CDLL(None).madvise
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, rights, _, _, file, *name = line.split()
        begin, end = (int(part, 16) for part in place.split("-"))
        if file == "0" and "w" in rights and name in ([], ["[heap]"]):
            madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_COLLAPSE)


if __name__ == "__main__":
    import_all()
    _use_large_pages()
    _run(serve(socket.socket(fileno=int(sys.argv[1]))))
