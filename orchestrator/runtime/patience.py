"""Reading from a Redis that may be away for a moment: asked until it answers.

A text that cannot be read now is no reason to fail a task. The task that waits is an
effect or a load, and is cancelled when its claim is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from orchestrator.broker.blobs import ArchivedText, Blobs, Texts
from orchestrator.broker.errors import Unavailable
from orchestrator.core.ids import TreeId
from orchestrator.runtime.log import log

ASK_AGAIN_S = 0.05
ASK_AGAIN_MAX_S = 1.0

T = TypeVar("T")
Sleep = Callable[[float], Awaitable[None]]


async def patiently(read: Callable[[], Awaitable[T]], sleep: Sleep, what: str) -> T:
    """The result of `read`, however often it takes; `what` names it in the worker's log."""
    delay = ASK_AGAIN_S
    while True:
        try:
            return await read()
        except Unavailable as error:
            log.warning("%s could not be read yet: %s", what, error)
            await sleep(delay)
            delay = min(delay * 2, ASK_AGAIN_MAX_S)


class PatientTexts(Texts):
    """The texts of one worker."""

    def __init__(self, blobs: Blobs, sleep: Sleep, archived: ArchivedText | None = None) -> None:
        super().__init__(blobs, archived=archived)
        self._sleep = sleep

    async def fetch(self, tree: TreeId, digests: Iterable[str]) -> None:
        wanted, fetch = tuple(digests), super().fetch
        await patiently(lambda: fetch(tree, wanted), self._sleep, f"tree {tree}: {len(wanted)} texts")
