"""Burial: the sessions of a worker that has died are given to others at once, where its machine lives on.

    worker ── register (memory) ──────────────┐
       │                                      ▼
       └─ supervisor ── word (pipe) ──> waiting process ── `bury` ──> Redis

The worker writes each claim that it holds into a piece of memory that outlives it. Its supervisor proves
that the worker is dead and that nothing is left of what it started, and says so by a byte. The process that
waits for that byte reads the memory, and gives the claims back. Whatever fails of this (a supervisor that is
stopped or dead, a process that cannot be killed, a Redis that does not answer) leaves the sessions to their
leases, as the death of the machine does. `docs/claims.md` argues it (*Bury*).

The waiting process has the worker's rights at Redis, which it is handed by a descriptor. This file is its
program, too.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from orchestrator.broker.errors import BrokerError, OutOfMemory, Unavailable
from orchestrator.broker.records import Claim
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.runtime import log
from orchestrator.sandbox import git

if TYPE_CHECKING:
    from orchestrator.broker.broker import Broker
    from orchestrator.config_keys import RedisSettings

AFTER_S = 1.0
"""Seconds of a worker's life before the process is started that waits for its death: a quarter of a second of
processor time, which would hold up the first turn."""
RETRY_S = 0.1
_AT_ONCE = 256
_PASSED_ON = ("SSL_CERT_FILE", "SSL_CERT_DIR")
"""Variables by which TLS finds authorities; the waiting process has no others."""
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)

# ── register ──────────────────────────────────────────────────────────────────────────────────────
# The claims that a worker holds, in memory that is there when the worker is not.
#
# A record is written whole by one call, with its length and its checksum: one that a death has torn is
# none.


_SLOT_BYTES = 1024
_HEAD = struct.Struct("<HI")
_FREE = bytes(_HEAD.size)
_FORBIDDEN = b"\1"


class Register:
    """The register of one worker; `descriptor` is what reads it, in any process that has it."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create("dendro-claims", os.MFD_CLOEXEC)
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        os.pwrite(self.descriptor, bytes(1), 0)

    def hold(self, claim: Claim) -> None:
        """Writes a claim; one that does not fit is left to its lease."""
        words = [claim.session, claim.tree, claim.worker, claim.claim_id, claim.epoch, claim.pool]
        data = json.dumps(words).encode()
        if len(data) > _SLOT_BYTES - _HEAD.size or claim.claim_id in self._slots:
            return
        slot = self._free.pop() if self._free else len(self._slots) + 1
        self._slots[claim.claim_id] = slot
        os.pwrite(self.descriptor, _HEAD.pack(len(data), zlib.crc32(data)) + data, slot * _SLOT_BYTES)

    def let_go(self, claim: Claim) -> None:
        """Takes a claim out."""
        slot = self._slots.pop(claim.claim_id, None)
        if slot is not None:
            os.pwrite(self.descriptor, _FREE, slot * _SLOT_BYTES)
            self._free.append(slot)

    def forbid(self) -> None:
        """Lets nobody read any claim from here, from now on."""
        os.pwrite(self.descriptor, _FORBIDDEN, 0)


def held_claims(descriptor: int) -> list[Claim]:
    """The claims of a register whose writer is dead."""
    if os.pread(descriptor, 1, 0) == _FORBIDDEN:
        return []
    slots = range(_SLOT_BYTES, os.fstat(descriptor).st_size, _SLOT_BYTES)
    found = (_record(os.pread(descriptor, _SLOT_BYTES, at)) for at in slots)
    return [claim for claim in found if claim is not None]


def _record(slot: bytes) -> Claim | None:
    if len(slot) < _HEAD.size:
        return None
    length, checksum = _HEAD.unpack_from(slot)
    data = slot[_HEAD.size : _HEAD.size + length]
    if not length or len(data) < length or zlib.crc32(data) != checksum:
        return None
    session, tree, worker, claim_id, epoch, pool = json.loads(data)
    return Claim(SessionId(session), TreeId(tree), worker, claim_id, epoch, pool)


# ── the worker's side ─────────────────────────────────────────────────────────────────────────────


class Burial:
    """A worker's register, the pipe for the word, and the process that waits for it.

    `name` is what `CLIENT LIST` calls the connection of that process. Raises `OSError` where the kernel has
    no descriptor of this process: nobody could prove its death then.
    """

    def __init__(
        self, redis: RedisSettings, lease_s: float, environ: Mapping[str, str], name: str = "dendro-burial"
    ) -> None:
        given = {"redis": redis.model_dump(mode="json"), "lease_s": lease_s, "name": name}
        self._given = json.dumps(given).encode()
        self._environ = {name: environ[name] for name in _PASSED_ON if name in environ}
        self._itself = os.pidfd_open(os.getpid())
        self._reading, self._writing = os.pipe2(os.O_CLOEXEC)
        self._register = Register()
        self._process: subprocess.Popen[bytes] | None = None
        self.hold, self.let_go = self._register.hold, self._register.let_go

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """For a supervisor: this process, the end of its other children's lifeline, the pipe for the word."""
        return self._itself, git.ends()[0], self._writing

    def forbid(self) -> None:
        """Leaves all sessions to their leases, until this worker ends."""
        log.warning("what a lost supervisor kept may run: sessions wait for their leases if this worker dies")
        self._register.forbid()

    async def wait(self) -> None:
        """Starts the process that waits, a while after the worker's start."""
        await asyncio.sleep(AFTER_S)
        self._start()

    def _start(self) -> None:
        given = os.memfd_create("dendro-burial", os.MFD_CLOEXEC)
        try:
            os.pwrite(given, self._given, 0)
            passed = (given, self._reading, self._register.descriptor)
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__, *map(str, passed)],
                pass_fds=passed,
                env=self._environ,
                cwd="/",
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        except OSError as error:
            log.warning(
                "nobody waits for this worker's death: sessions would wait for their leases: %s", error
            )
        finally:
            os.close(given)

    def close(self) -> None:
        """Ends the process. The worker's supervisor has ended, and what was held is given back."""
        for descriptor in (self._itself, self._reading, self._writing, self._register.descriptor):
            os.close(descriptor)
        if self._process is not None:
            # The pipe's end tells it to go; it has nothing to say to Redis.
            self._process.kill()
            self._process.wait()


# ── the waiting process ───────────────────────────────────────────────────────────────────────────


class Buries(Protocol):
    """The port to Redis of the process that waits."""

    async def bury(self, claims: Sequence[Claim]) -> list[bool]: ...


async def bury_all(
    port: Buries,
    held: Sequence[Claim],
    until: float,
    clock: Callable[[], float],
    sleep: Callable[[float], Awaitable[Any]],
) -> None:
    """Gives the claims back; asks again where Redis does not answer or is full, `until` their leases end."""
    for first in range(0, len(held), _AT_ONCE):
        while clock() < until:
            try:
                await port.bury(held[first : first + _AT_ONCE])
                break
            except (Unavailable, OutOfMemory):
                await sleep(RETRY_S)
            except BrokerError as error:
                # Of one session, and each was asked about.
                log.error("a dead worker's session waits for its lease: %s", error)
                break


async def _serve(given: dict[str, Any], word: int, register: int) -> None:
    # Loaded here: a worker has these modules, and its start needs none of this.
    from orchestrator.config_keys import RedisSettings

    settings = RedisSettings.model_construct(**given["redis"])
    broker = _broker(settings, given["lease_s"], given["name"])
    try:
        # What the first connection takes long for is done before it is needed.
        await broker.open()
    except BrokerError as error:
        log.warning("sessions would wait for their leases if this worker died now: %s", error)
    try:
        if await _hears(word):
            until = time.monotonic() + given["lease_s"]
            await bury_all(broker.claims, held_claims(register), until, time.monotonic, asyncio.sleep)
    finally:
        await broker.aclose()


def _broker(settings: RedisSettings, lease_s: float, name: str) -> Broker:
    from orchestrator.broker.broker import Broker
    from orchestrator.broker.connection import connect
    from orchestrator.broker.records import BrokerConfig
    from orchestrator.broker.scripts import load

    load("bury")
    config = BrokerConfig(prefix=settings.prefix, shards=settings.shards, lease_s=lease_s)
    return Broker(connect(settings, name), config, time.monotonic)


async def _hears(word: int) -> bool:
    """Waits for the word; False when nobody is left who could say it."""
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(word, heard.set)
    await heard.wait()
    loop.remove_reader(word)
    return os.read(word, 1) != b""


def main(given: int, word: int, register: int) -> None:
    """Waits for the word that the worker is dead, and gives back what it held."""
    for number in _IGNORED:
        # A service that is stopped ends its worker, and with that the pipe.
        signal.signal(number, signal.SIG_IGN)
    for descriptor in (given, word, register):
        os.set_inheritable(descriptor, False)
    settings = json.loads(os.pread(given, os.fstat(given).st_size, 0))
    os.close(given)
    asyncio.run(_serve(settings, word, register))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
