"""Reading texts from a Redis that may be away for a moment: asked until it answers.

A text that cannot be read now is no reason to fail a task. The task that waits is an
effect or a load, and is cancelled when its claim is lost.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from orchestrator.broker.blobs import Blobs
from orchestrator.broker.errors import Unavailable
from orchestrator.broker.texts import Texts
from orchestrator.core.ids import TreeId
from orchestrator.runtime.log import log

ASK_AGAIN_S = 0.05
ASK_AGAIN_MAX_S = 1.0


class PatientTexts(Texts):
    """The texts of one worker."""

    def __init__(self, blobs: Blobs, sleep: Callable[[float], Awaitable[None]]) -> None:
        super().__init__(blobs)
        self._sleep = sleep

    async def fetch(self, tree: TreeId, digests: Iterable[str]) -> None:
        wanted, delay = tuple(digests), ASK_AGAIN_S
        while True:
            try:
                await super().fetch(tree, wanted)
                return
            except Unavailable as error:
                log.warning("tree %s: %d texts could not be read yet: %s", tree, len(wanted), error)
                await self._sleep(delay)
                delay = min(delay * 2, ASK_AGAIN_MAX_S)
