"""A person ends a tree that somebody else ends already: the root refuses it, and its end is waited for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

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
