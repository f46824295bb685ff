"""The notary's process: it looks at the deployment every few seconds, until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Final

import uvloop

from orchestrator.broker.errors import BrokerError
from orchestrator.core.counts import counted
from orchestrator.private_files import OTHERS
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.notary import Look, Notary, Witnessed
from orchestrator.rollouts.notary_state import BadState, NotaryState
from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects
from orchestrator.rollouts.register import BadRegister, Forked, Register, Signed
from orchestrator.rollouts.signed_notes import BadNote, Note, Signer, read_private_key
from orchestrator.rollouts.witnesses import OnLine, asked
from orchestrator.settings import Settings
from orchestrator.telemetry import metric_names
from orchestrator.telemetry.listener import Health, PortTaken, listening
from orchestrator.telemetry.metrics import Metrics
from orchestrator.wiring.deployment import deployment, redis_url
from orchestrator.wiring.new_sessions import VERSION
from orchestrator.wiring.open_deployment import Opened

log = logging.getLogger("dendro.notary")

LOOK_S: Final = 5.0
"""Seconds between two looks: a session's rest is stated so much later, at most."""
FAILED = 1
"""The exit code of a notary that may not go on."""


def notary_of(settings: Settings, source: LogSource, state: NotaryState) -> Notary:
    """The notary that settings mean; raises `BadState`, `BadNote`, `NotPrivate`."""
    told = settings.receipts
    assert told.key_file is not None
    if told.url is None:
        raise BadState("no receipts.url is set: a notary has to know where it publishes its registers")
    if told.key_file.stat().st_mode & OTHERS:
        raise BadState(f"{told.key_file} can be read by others: chmod 600 it, or make another key")
    private = read_private_key(told.key_file)
    if private.public_key().public_bytes_raw().hex() != state.key:
        raise BadState(f"{told.key_file} is another key than the one that {state.folder} was made for")
    return Notary(
        source,
        state,
        Objects(told.url),
        lambda origin: Signer(origin, private),
        int(told.interval_s * 1000),
        lambda: time.time_ns() // 1_000_000,
        witnesses_of(settings, state),
    )


def witnesses_of(settings: Settings, state: NotaryState) -> Witnessed | None:
    """The witnesses that settings name, or none; raises `BadNote`."""
    named = [OnLine.read(text) for text in settings.receipts.witnesses]
    if not named:
        return None
    objects = Objects(settings.receipts.url or "")

    async def witnessed(name: str, signed: Signed) -> Note:
        note = await asked(named, Register(objects, name), signed, lambda who: state.seen_by(name, who))
        for key in note.signed_by([one.key for one in named]):
            state.saw(name, key.name, signed.point.size)
        return note

    return witnessed


def run_notary(settings: Settings, ready: Callable[[], None] | None = None, *, once: bool = False) -> int:
    """Runs the notary until SIGTERM or SIGINT; answers the exit code. `ready` is called after its first look.

    With `once` it looks once, and answers 1 where there is an alarm. Raises `BadState` and `BadNote` where it
    cannot be started.
    """
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    assert settings.receipts.state is not None
    state = NotaryState.open(settings.receipts.state)
    try:
        with redis_url(settings) as url:
            return uvloop.run(_run(settings, url, state, ready, once=once))
    finally:
        state.close()


async def _run(
    settings: Settings, url: str, state: NotaryState, ready: Callable[[], None] | None, *, once: bool
) -> int:
    async with deployment(settings, url, kind="notary") as opened:
        notary = notary_of(settings, Opened(settings, opened), state)
        if once:
            try:
                notary.start()
                found = await notary.look()
            except (Forked, BadRegister) as error:
                log.critical("%s", error)
                return FAILED
            return FAILED if found.alarms else 0
        figures = Figures()
        every_s = min(LOOK_S, settings.receipts.interval_s)
        looking = asyncio.ensure_future(_look(notary, every_s, figures, ready))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, looking.cancel)
        with suppress(asyncio.CancelledError):
            try:
                async with figures.served(settings.receipts.metrics_port):
                    await looking
            except (Forked, BadRegister) as error:
                log.critical("%s", error)
                return FAILED
    return 0


class Figures:
    """The figures of a notary's process, for those that watch it."""

    def __init__(self) -> None:
        self._metrics = Metrics(VERSION, (*metric_names.NOTARY, metric_names.BUILD))
        self._kinds: set[str] = set()
        self.fault = "it has not looked yet"
        """The reason why nothing can be stated now; empty if it can."""

    def looked(self, look: Look, at_s: float) -> None:
        """Takes the outcome of a look that went to its end."""
        self.fault = ""
        self._metrics.counter(metric_names.STATED).inc(look.statements)
        self._metrics.gauge(metric_names.LOOKED).set(at_s)
        self._kinds |= look.alarms.keys()
        for kind in self._kinds:
            self._metrics.gauge(metric_names.REFUSED, kind).set(look.alarms.get(kind, 0))

    def page(self) -> str:
        return self._metrics.page().decode()

    @asynccontextmanager
    async def served(self, port: int | None) -> AsyncIterator[None]:
        """Serves them while the block lasts, where there is a port; one that is taken is a warning."""

        async def fault() -> str:
            return self.fault

        async with AsyncExitStack() as stack:
            if port is not None:
                try:
                    serving = listening(Health(self._metrics, fault), "127.0.0.1", port)
                    log.info("metrics at %s/metrics", await stack.enter_async_context(serving))
                except PortTaken as error:
                    log.warning("%s: give it another receipts.metrics_port, or 0 for a free one", error)
            yield


async def _look(notary: Notary, every_s: float, figures: Figures, ready: Callable[[], None] | None) -> None:
    """Looks until it is cancelled, also where nothing can be asked; raises `Forked`, `BadRegister`."""
    started = False
    while True:
        try:
            if not started:
                await asyncio.to_thread(notary.start)
                started = True
            found = await notary.look()
            figures.looked(found, time.time())
            if found.statements:
                log.info("%s", counted(found.statements, "statement"))
            if ready is not None:
                ready()
                ready = None
        except (BrokerError, ArchiveUnavailable) as error:
            figures.fault = str(error)
            log.warning("nothing can be stated now, trying again: %s", error)
        except ValueError as error:
            if isinstance(error, (BadRegister, BadNote)):
                raise
            figures.fault = str(error)
            log.error("ALARM unreadable: Redis holds what Dendro does not write there: %s", error)
        await asyncio.sleep(every_s)
