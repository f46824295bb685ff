"""A keeper: the confined process that does everything to one copy, for as long as a claim holds it.

Whatever is in the folder was written by a command, and whatever is in a pack may have been: neither is
read where the keys are. The process has no environment but `PATH`, no network, bounded memory, time and file
sizes, and writes nothing but its place. It holds the lock of the copy; it ends with the pipe of its
parent, and at the claim's deadline by a timer of the kernel's, whatever it is doing.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any, NoReturn, Self, TypeVar, get_args

from pydantic import TypeAdapter, ValidationError

from orchestrator.folders import outcomes
from orchestrator.folders.keeper_wire import LENGTH, MOST_ANSWERED, MOST_ASKED, MOST_DESCRIPTORS, frame
from orchestrator.sandbox import git
from orchestrator.sandbox.trusted_files import program_environment

_PACKAGE_ROOT = str(Path(__file__).resolve().parents[2])
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from orchestrator.folders.keeper_process import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
_START_S = 20.0
_GRACE_S = 20.0
"""Time beyond the bound's: the process should have told by itself that it takes too long."""
_CLOSE_S = 5.0
_MOST_WHY = 500
_SHA256 = re.compile("[0-9a-f]{64}")
_Record = TypeVar(
    "_Record",
    outcomes.Unchanged,
    outcomes.Taken,
    outcomes.Made,
    outcomes.Planned,
    outcomes.Merged,
    outcomes.Conflicted,
    outcomes.Difference,
    outcomes.Joined,
)


_ADAPTERS: dict[str, TypeAdapter[Any]] = {}
"""The checks of records, by their names: one takes longer to make than to use."""


def _adapter(kind: type[_Record]) -> TypeAdapter[Any]:
    if kind.__name__ not in _ADAPTERS:
        _ADAPTERS[kind.__name__] = TypeAdapter(kind)
    return _ADAPTERS[kind.__name__]


class Keeper:
    """A copy's keeper. One piece of work at a time: others wait. Everything raises `FolderError`.

    Work that is cancelled goes on, and what comes next waits for it: half a snapshot helps nobody.
    """

    def __init__(self, place: outcomes.Place, bounds: outcomes.Bounds) -> None:
        self._place = place
        self._bounds = bounds
        self._process: subprocess.Popen[bytes]
        self._work: socket.socket
        self._control: socket.socket
        self._turn = asyncio.Lock()
        self._lost = False
        self._under_way: set[asyncio.Task[dict[str, Any]]] = set()

    @classmethod
    async def start(cls, place: outcomes.Place, bounds: outcomes.Bounds, deadline_boottime: float) -> Self:
        """Starts the process and locks the copy; kind `busy` if another keeper has it."""
        keeper = cls(place, bounds)
        keeper._start()
        keeper.extend(deadline_boottime)
        parts = [
            str(part) if part is not None else None for part in (place.folder, place.objects, place.lock)
        ]
        try:
            await keeper._ask({"place": parts, "bounds": asdict(bounds)}, (), _START_S)
        except BaseException:
            await keeper._stop()
            raise
        return keeper

    def _start(self) -> None:
        self._work, work = socket.socketpair()
        self._control, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._work.setblocking(False)
        with work, control:
            pair = (work.fileno(), control.fileno())
            argv = [sys.executable, "-I", "-S", "-c", _BOOT, _PACKAGE_ROOT, *map(str, pair)]
            # What the keeper does not have, no hostile object can make it tell: it is told where git is.
            env = program_environment()
            # Whoever gives this claim to others waits for the end of what writes under it.
            passed = (*pair, *git.passed())
            self._process = subprocess.Popen(
                argv, pass_fds=passed, env=env, start_new_session=True, stdin=subprocess.DEVNULL, cwd="/"
            )

    @property
    def pid(self) -> int:
        """The process's id, for logs and diagnosis."""
        return self._process.pid

    def extend(self, deadline_boottime: float) -> None:
        """Writes the claim's deadline, in seconds of CLOCK_BOOTTIME. From any thread; never blocks."""
        with suppress(OSError):
            # A process that does not hear it keeps the old one: it dies early rather than late.
            self._control.send(struct.pack("d", deadline_boottime), socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)

    async def take(
        self, parent: outcomes.FolderSnapshot, at_ms: int, *, live: bool = False
    ) -> outcomes.Taken | outcomes.Unchanged:
        """Takes a snapshot of the folder, whose history is `parent`.

        The same parent again, because the last snapshot was never recorded, gives one that covers both.
        `live` says that processes work in the folder: what they have mapped may change without a new time.
        """
        answer = await self._do({"do": "take", "parent": parent, "at_ms": at_ms, "live": live}, ())
        if answer.get("is") == outcomes.Unchanged.__name__:
            return self._read(answer, outcomes.Unchanged)
        return self._taken(answer)

    async def born(
        self, repository: Path | None, ref: str, at_ms: int, *, of_folder: bool = True
    ) -> outcomes.Taken:
        """Takes the first snapshot of a copy.

        With a repository (a `.git` folder, or a bare one) whose `ref` is a commit, the pack holds that
        commit too, and files that it tracks are taken even if they are ignored. Where the folder does
        not exist, and without `of_folder`, the snapshot has the commit's tree; without a repository, it is
        empty.
        """
        path = str(repository) if repository is not None else None
        words = {"do": "born", "repository": path, "ref": ref, "at_ms": at_ms, "of_folder": of_folder}
        return self._taken(await self._do(words, ()))

    def settle(self, taken: outcomes.Taken) -> None:
        """Removes an uploaded pack from the spool."""
        taken.pack.unlink(missing_ok=True)

    async def adopt(self, packs: Sequence[Path], snapshot: outcomes.FolderSnapshot) -> bool:
        """Goes on with the folder as it is, which was left at this snapshot.

        What the last keeper left is used where it fits; else all files are read again, where the packs
        that make the snapshot are here, or given. False if they are not, or if there is no folder.
        """
        answer = await self._do({"do": "adopt", "snapshot": snapshot}, packs)
        return answer.get("value") is True

    async def make(self, packs: Sequence[Path], snapshot: outcomes.FolderSnapshot) -> outcomes.Made:
        """Makes the folder of a snapshot beside the one that is there, and puts it in its place.

        `packs` are those since the last whole one, it first, in the order of their entries.
        """
        return self._read(await self._do({"do": "make", "snapshot": snapshot}, packs), outcomes.Made)

    async def plan_merge(
        self,
        base: outcomes.FolderSnapshot,
        theirs: outcomes.FolderSnapshot,
        packs: Sequence[Path],
        guard: outcomes.Guard = outcomes.ANYWHERE,
    ) -> outcomes.Planned | outcomes.Conflicted:
        """Plans what brings the changes from `base` to `theirs` into the folder as it is now.

        `packs` are those that make `base` and `theirs`: both snapshots may need packs of their own.
        """
        words = {"do": "plan_merge", "base": base, "theirs": theirs, "guard": asdict(guard)}
        answer = await self._do(words, packs)
        if answer.get("is") == outcomes.Conflicted.__name__:
            return self._read(answer, outcomes.Conflicted)
        return self._read(answer, outcomes.Planned)

    async def write_merge(
        self,
        base: outcomes.FolderSnapshot,
        theirs: outcomes.FolderSnapshot,
        packs: Sequence[Path],
        digest: str,
        guard: outcomes.Guard = outcomes.ANYWHERE,
    ) -> outcomes.Merged | outcomes.Conflicted:
        """Plans the merge again and writes it, whole, if its digest is still the one that was approved."""
        words = {
            "do": "write_merge",
            "base": base,
            "theirs": theirs,
            "digest": digest,
            "guard": asdict(guard),
        }
        answer = await self._do(words, packs)
        if answer.get("is") == outcomes.Conflicted.__name__:
            return self._read(answer, outcomes.Conflicted)
        return self._read(answer, outcomes.Merged)

    async def take_back_merge(self) -> None:
        """Takes back the merge in which the last keeper was lost, as far as it came."""
        await self._do({"do": "take_back_merge"}, ())

    async def diff(
        self,
        before: outcomes.FolderSnapshot | None,
        after: outcomes.FolderSnapshot,
        packs: Sequence[Path] = (),
        *,
        stat: bool = False,
        path: str | None = None,
    ) -> outcomes.Difference:
        """Compares two snapshots; None is the empty folder. With `stat` the figures alone.

        With `path`, as a `FileStat` names it, one file alone.
        """
        words = {"do": "diff", "before": before, "after": after, "stat": stat, "path": path}
        return self._read(await self._do(words, packs), outcomes.Difference)

    async def join(self, branches: Sequence[outcomes.Branch], packs: Sequence[Path]) -> outcomes.Joined:
        """The files that branches have changed, as if all were merged.

        `packs` are those that make their snapshots; the ones that others build on come first.
        """
        for first in range(0, len(packs), MOST_DESCRIPTORS):
            await self._do({"do": "give"}, packs[first : first + MOST_DESCRIPTORS])
        rows = [[one.parent, one.base, one.now, one.merged] for one in branches]
        return self._read(await self._do({"do": "join", "branches": rows}, ()), outcomes.Joined)

    async def read_files(
        self,
        snapshot: outcomes.FolderSnapshot,
        paths: Sequence[str],
        most: int,
        packs: Sequence[Path] = (),
    ) -> tuple[outcomes.ReadFile, ...]:
        """Files of a snapshot, one for each path: of up to `most` bytes each, and 40 MiB in all."""
        words = {"do": "read_files", "snapshot": snapshot, "paths": list(paths), "most": most}
        files = self._contents(await self._do(words, packs), most).files
        return files if [file.path for file in files] == list(paths) else self._misled()

    async def find_files(
        self, snapshot: outcomes.FolderSnapshot, search: outcomes.Search, packs: Sequence[Path] = ()
    ) -> outcomes.Found:
        """Files of one name below folders of a snapshot, with their contents."""
        words = {"do": "find_files", "snapshot": snapshot, "search": list(astuple(search))}
        return self._contents(await self._do(words, packs), search.bytes)

    def _contents(self, answer: dict[str, Any], most: int) -> outcomes.Found:
        try:
            rows, cut = answer["value"]
            files = tuple(
                outcomes.ReadFile(str(path), _bytes(text, most), _plain(why)) for path, text, why in rows
            )
            cuts = (outcomes.Cut(str(at), "files" if bound == "files" else "entries") for at, bound in cut)
            return outcomes.Found(files, tuple(cuts))
        except (KeyError, TypeError, ValueError):
            self._misled()

    async def end(self) -> None:
        """Waits for the work that runs, keeps the index for the next claim, and ends the process."""
        with suppress(outcomes.FolderError):
            await self._do({"do": "end"}, ())
        await self._stop()

    async def break_off(self) -> None:
        """Ends the process at once, whatever it does; no index is kept."""
        self._kill()
        await asyncio.gather(*self._under_way, return_exceptions=True)
        await self._stop()

    async def _do(self, words: dict[str, Any], packs: Sequence[Path]) -> dict[str, Any]:
        """Has a piece of work done; also if the caller is cancelled."""
        task = asyncio.create_task(self._in_turn(words, packs))
        self._under_way.add(task)
        task.add_done_callback(self._forget)
        return await asyncio.shield(task)

    def _forget(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            task.exception()  # of work that nobody waits for any more: the next piece tells what is wrong

    async def _in_turn(self, words: dict[str, Any], packs: Sequence[Path]) -> dict[str, Any]:
        async with self._turn:
            return await self._ask(words, packs, self._bounds.seconds + _GRACE_S)

    async def _ask(self, words: dict[str, Any], packs: Sequence[Path], seconds: float) -> dict[str, Any]:
        if self._lost:
            raise self._gone()
        if len(packs) > MOST_DESCRIPTORS:
            raise outcomes.FolderError("refused", f"{len(packs)} packs for one snapshot: it needs at most 33")
        data = frame(words)
        if len(data) > MOST_ASKED:
            raise outcomes.FolderError(
                "refused", f"a request of {len(data):,} bytes for a folder: it may have {MOST_ASKED:,}"
            )
        try:
            async with asyncio.timeout(seconds):
                await self._send(data, packs)
                answer = await self._receive()
        except TimeoutError as error:
            self._kill()
            text = f"the work on the folder took more than {seconds:g} s: its process was ended"
            raise outcomes.FolderError("time", text) from error
        except OSError as error:
            self._kill()
            raise self._gone() from error
        if answer.get("is") == "error":
            raise self._error(answer)
        return answer

    async def _send(self, data: bytes, packs: Sequence[Path]) -> None:
        loop = asyncio.get_running_loop()
        descriptors: list[int] = []
        try:
            descriptors.extend(os.open(pack, os.O_RDONLY | os.O_CLOEXEC) for pack in packs)
            # The descriptors travel with the length; one request at a time leaves room for that.
            socket.send_fds(self._work, [data[: LENGTH.size]], descriptors, socket.MSG_NOSIGNAL)
        except FileNotFoundError as error:
            raise outcomes.FolderError("missing", f"the pack {error.filename} is not there") from error
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        await loop.sock_sendall(self._work, data[LENGTH.size :])

    async def _receive(self) -> dict[str, Any]:
        length = LENGTH.unpack(await self._exactly(LENGTH.size))[0]
        if length > MOST_ANSWERED:
            self._misled()
        answer = json.loads(await self._exactly(length))
        return answer if isinstance(answer, dict) else self._misled()

    async def _exactly(self, length: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = bytearray()
        while len(data) < length:
            part = await loop.sock_recv(self._work, min(length - len(data), 1 << 20))
            if not part:
                raise ConnectionResetError
            data += part
        return bytes(data)

    def _taken(self, answer: dict[str, Any]) -> outcomes.Taken:
        """A snapshot whose pack is where packs are put: the caller will read and upload that file."""
        taken = self._read(answer, outcomes.Taken)
        expected = self._place.objects / "spool" / f"{taken.sha256}.pack"
        if not _SHA256.fullmatch(taken.sha256) or taken.pack != expected or expected.is_symlink():
            self._misled()
        return taken

    def _read(self, answer: dict[str, Any], kind: type[_Record]) -> _Record:
        """The record that an answer holds. Its process has read hostile bytes: nothing of it is believed."""
        if answer.get("is") != kind.__name__:
            self._misled()
        try:
            found: _Record = _adapter(kind).validate_python(answer.get("value"))
        except ValidationError:
            self._misled()
        return found

    def _error(self, answer: dict[str, Any]) -> outcomes.FolderError:
        named = [kind for kind in get_args(outcomes.ErrorKind) if kind == answer.get("kind")]
        if not named:
            self._misled()
        return outcomes.FolderError(named[0], str(answer.get("text"))[:2000])

    def _misled(self) -> NoReturn:
        self._kill()
        raise outcomes.FolderError(
            "lost", "the process that works on the folder answered with something else: it was ended"
        )

    def _gone(self) -> outcomes.FolderError:
        code = self._process.poll()
        why = f"by signal {-code}" if code is not None and code < 0 else f"with {code}"
        return outcomes.FolderError(
            "lost", f"the process that works on the folder has ended {why}: another one goes on"
        )

    def _kill(self) -> None:
        self._lost = True
        if self._process.poll() is None:
            # With the git that it may wait for: a pipe in a repository would hold that for ever.
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def _stop(self) -> None:
        """Closes both sockets, which ends the process, and waits for its end."""
        self._lost = True
        self._work.close()
        self._control.close()
        try:
            await asyncio.to_thread(self._process.wait, _CLOSE_S)
        except subprocess.TimeoutExpired:
            self._kill()
            await asyncio.to_thread(self._process.wait)


def _plain(why: object) -> str:
    return str(why)[:_MOST_WHY].encode("utf-8", "backslashreplace").decode()


def _bytes(text: str | None, most: int) -> bytes | None:
    content = base64.b64decode(text) if text is not None else None
    if content is not None and len(content) > most:
        raise ValueError("more than was asked for")
    return content
