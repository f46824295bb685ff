"""Side tasks are told once to end, and waited for until they have."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, cast

from orchestrator.runtime.side_work import Effects
from tests.runtime.connections import Gate


@dataclass
class _Ports:
    """Ports as far as effects use them."""

    def spawn(self, work: Any, name: str) -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(work, name=name)

    def monotonic(self) -> float:
        return 0.0


@dataclass
class _Command:
    """A command whose death takes its time, as the supervisor's proof does."""

    begun: Gate = field(default_factory=Gate)
    proof: Gate = field(default_factory=Gate)
    proved: bool = False

    async def run(self) -> None:
        try:
            await self.begun.wait()
        except asyncio.CancelledError:
            await self.proof.wait()
            self.proved = True
            raise


async def test_effects_that_are_told_to_end_twice_still_prove_their_death() -> None:
    """A runner that loses its claim cancels at once, and stops everything when its step is over."""
    command, effects = _Command(), Effects(cast(Any, _Ports()), "s")
    effects.start(("call", "c1"), command.run(), lambda key, error: None)
    await command.begun.reached.wait()
    effects.cancel()
    await command.proof.reached.wait()
    stopping = asyncio.ensure_future(effects.stop())
    await asyncio.sleep(0)
    assert not stopping.done()
    command.proof.open()
    await stopping
    assert command.proved


async def test_effect_that_breaks_off_by_itself_is_told_of_as_an_error() -> None:
    told: list[BaseException | None] = []
    effects = Effects(cast(Any, _Ports()), "s")

    async def breaks_off() -> None:
        lost = asyncio.get_running_loop().create_future()
        lost.cancel()
        await lost

    effects.start(("call", "c1"), breaks_off(), lambda key, error: told.append(error))
    effects.start(("call", "c2"), asyncio.Event().wait(), lambda key, error: told.append(error))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await effects.stop()
    await asyncio.sleep(0)
    (error, stopped) = told
    assert isinstance(error, asyncio.CancelledError)
    assert stopped is None
