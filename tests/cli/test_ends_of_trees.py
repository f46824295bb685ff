"""A person ends a tree that somebody else ends already: the root refuses it, and its end is waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.core.registry import RegistryView
from orchestrator.gateways.submit import OpRefused
from orchestrator.protocol.ops import CancelAgent, Shutdown
from orchestrator.wiring import cancelling


@pytest.mark.parametrize("agent", [0, 1, 3])
async def test_refusal_ends_the_command_for_an_agent_and_not_for_a_root_that_is_being_closed(
    agent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = list[tuple[str, Any]]()

    async def refuses(client: Any, session: str, op: Any, *_: Any) -> Any:
        sent.append((session, op))
        raise OpRefused("the session is being closed already")

    async def patience(*_: Any) -> float:
        return 1.0

    monkeypatch.setattr(cancelling, "submit_op", refuses)
    monkeypatch.setattr(cancelling, "patience", patience)
    found = cast(Any, SimpleNamespace(broker=None, client=lambda: None))
    target = cast(Any, SimpleNamespace(agent_id=agent, root="root", head=SimpleNamespace(pool="p")))
    if agent:
        with pytest.raises(OpRefused):
            await cancelling.submit_end(found, target, "enough", 1.0)
    else:
        await cancelling.submit_end(found, target, "enough", 1.0)
    wanted = CancelAgent(agent_id=agent, reason="enough") if agent else Shutdown()
    assert sent == [("root", wanted)]


@pytest.mark.parametrize("target", [0, 1, 2])
async def test_agents_that_are_made_until_the_root_has_taken_the_cancel_are_waited_for_as_well(
    target: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def agent(number: int, path: str, *, at_work: bool = True) -> Any:
        above = path.split("/")[:-1]
        return SimpleNamespace(at_work=at_work, below=lambda other: str(other) in above, agent_id=number)

    agents = {1: agent(1, "0/1"), 2: agent(2, "0/2"), 3: agent(3, "0/1/3", at_work=False)}

    async def known(*_: Any) -> Any:
        return RegistryView(agents)

    async def submit_end(*_: Any) -> None:
        agents.update({3: agent(3, "0/1/3"), 4: agent(4, "0/1/4"), 5: agent(5, "0/2/5")})

    async def wait_for_ends(found: Any, target: Any, ending: Any, *_: Any) -> list[str]:
        return [str(number) for number in ending]

    async def registry(tree: str) -> Any:
        return SimpleNamespace(tree_seq=7)

    for name, stand_in in (
        ("_registry", known),
        ("submit_end", submit_end),
        ("wait_for_ends", wait_for_ends),
    ):
        monkeypatch.setattr(cancelling, name, stand_in)
    found = cast(Any, SimpleNamespace(broker=SimpleNamespace(trees=SimpleNamespace(registry=registry))))
    of = cast(Any, SimpleNamespace(agent_id=target, tree="t"))
    patience = cancelling.Patience(1.0, None)
    ended = await cancelling.end_agents(found, of, None, patience, lambda text: None)
    wanted = {0: [1, 2, 3, 4, 5], 1: [1, 3, 4], 2: [2, 5]}[target]
    assert (ended.agents, ended.after, ended.left) == (wanted, 7, [str(number) for number in wanted])


@pytest.mark.parametrize("agent", [0, 1])
async def test_force_takes_the_claim_of_the_root_too_where_the_tree_is_closed(
    agent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents = {1: SimpleNamespace(session="s1"), 2: SimpleNamespace(session="s2")}

    async def known(*_: Any) -> Any:
        return RegistryView(cast(Any, agents))

    async def revoke_tree(tree: str, sessions: list[str]) -> list[Any]:
        return [SimpleNamespace(state="revoked", worker="w", session=session) for session in sessions]

    monkeypatch.setattr(cancelling, "_registry", known)
    trees = SimpleNamespace(revoke_tree=revoke_tree)
    found = cast(Any, SimpleNamespace(broker=SimpleNamespace(trees=trees)))
    target = cast(Any, SimpleNamespace(agent_id=agent, root="root", tree="root"))
    said = list[str]()
    await cancelling._take_claims(found, target, [1, 2], said.append)
    taken = ["s1", "s2"] if agent else ["s1", "s2", "root"]
    assert said == [f"taken from worker w: {session}" for session in taken]
