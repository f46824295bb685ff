"""Shares of connections: whose they count as, how each place is free again, and what a token's end ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from orchestrator.gateways.principals import Principal
from orchestrator.gateways.wires.authentication import Crowded, Revoked, TokenWatch

MOST = 3
PEOPLE = {
    "user": Principal("ann@host"),
    "ci": Principal("ci", token="t-ci"),
    "ben": Principal("ben", token="t-ben"),
    "acme/ci": Principal("acme/ci", "acme", token="t-acme-ci"),
    "acme/ben": Principal("acme/ben", "acme", token="t-acme-ben"),
    "beta/ci": Principal("beta/ci", "beta", token="t-beta"),
    # Its token has the name of a namespace's share.
    "odd": Principal("odd", token="acme"),
}


class Served:
    """Connections of people, until a test ends them."""

    def __init__(self) -> None:
        self.in_force = {one.token for one in PEOPLE.values() if one.token}
        self.watch = TokenWatch(self._in_force, most=MOST)
        self.ends: dict[asyncio.Task[None], asyncio.Future[None]] = {}
        self.looks: list[Exception] = []

    async def _in_force(self) -> frozenset[str]:
        if self.looks:
            raise self.looks.pop()
        found = frozenset(self.in_force)
        await self.meanwhile()
        return found

    async def meanwhile(self) -> None:
        """Happens between the look and its answer."""

    async def comes(self, who: str) -> asyncio.Task[None] | None:
        """The connection of somebody; None if it is not served."""
        end: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def serving() -> None:
            await end

        task = asyncio.ensure_future(self.watch.serve(PEOPLE[who], serving()))
        self.ends[task] = end
        for _ in range(5):
            await asyncio.sleep(0)
        if task.done():
            assert isinstance(task.exception(), Crowded)
            return None
        return task

    async def done(self, task: asyncio.Task[None]) -> None:
        self.ends[task].set_result(None)
        await task

    async def fails(self, task: asyncio.Task[None]) -> None:
        self.ends[task].set_exception(ValueError("a fault"))
        with pytest.raises(ValueError, match="a fault"):
            await task

    async def leaves(self, task: asyncio.Task[None]) -> None:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def close(self) -> None:
        for task in self.ends:
            task.cancel()
        await asyncio.gather(*self.ends, return_exceptions=True)


@pytest.mark.parametrize("order", [1, -1])
async def test_token_of_ones_own_and_each_namespace_have_a_share_and_the_machines_user_has_no_bound(
    order: int,
) -> None:
    at = Served()
    shares = [["ci"], ["ben"], ["acme/ci", "acme/ben"], ["beta/ci"], ["odd"]][::order]
    for share in shares:
        for number in range(MOST):
            assert await at.comes(share[number % len(share)]) is not None
    for share in shares:
        for who in share:
            assert await at.comes(who) is None
    for _ in range(2 * MOST):
        assert await at.comes("user") is not None
    await at.close()


@pytest.mark.parametrize("who", ["ci", "acme/ci"])
@pytest.mark.parametrize("how", ["done", "fails", "leaves"])
async def test_place_is_free_again_however_its_connection_ends_each_time(who: str, how: str) -> None:
    at = Served()
    ends: Callable[[asyncio.Task[None]], Awaitable[None]] = getattr(at, how)
    there = [task for _ in range(MOST) if (task := await at.comes(who)) is not None]
    for _ in range(2 * MOST):
        assert await at.comes(who) is None, "those that are refused take no place, and free none"
        await ends(there.pop(0))
        later = await at.comes(who)
        assert later is not None
        there.append(later)
    assert not any(task.done() for task in there)
    await at.close()


@pytest.mark.parametrize("over", [("t-ci",), ("t-acme-ci",), ("t-acme-ben", "t-ben"), ("acme",), ()])
async def test_end_of_a_token_ends_each_of_its_connections_and_none_of_another(over: tuple[str, ...]) -> None:
    at = Served()
    for _ in range(2):
        there = {
            task: PEOPLE[who].token
            for who in PEOPLE
            for _ in range(1 if who.startswith("acme") else 2)
            if (task := await at.comes(who)) is not None
        }
        assert len(there) == 12
        at.in_force.difference_update(over)
        at.looks.append(OSError("Redis is away"))
        with pytest.raises(OSError, match="away"):
            await at.watch.look()
        for _ in range(5):
            await asyncio.sleep(0)
        assert not any(task.done() for task in there), "a look that fails ends nothing"
        await at.watch.look()
        for _ in range(5):
            await asyncio.sleep(0)
        for task, token in there.items():
            assert task.done() is (token in over)
            if task.done():
                assert isinstance(task.exception(), Revoked)
        # Its places are free: a token that counts again, and another one of its namespace, may come.
        at.in_force.update(over)
        for task in there:
            if not task.done():
                await at.done(task)
    await at.close()


async def test_token_that_is_made_while_it_is_looked_which_count_ends_no_connection_of_its_own() -> None:
    """Nor does one whose connection has ended by then."""
    at, there = Served(), dict[str, asyncio.Task[None]]()
    at.in_force.discard("t-ci")
    there["gone"] = await at.comes("ci")  # type: ignore[assignment]

    async def meanwhile() -> None:
        at.in_force.add("t-ci")
        await at.done(there["gone"])
        there["new"] = await at.comes("ci")  # type: ignore[assignment]

    at.meanwhile = meanwhile  # type: ignore[method-assign]
    await at.watch.look()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not there["new"].done()
    assert not at.watch._revoked
    await at.close()
