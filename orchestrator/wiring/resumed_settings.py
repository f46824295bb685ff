"""A turn of a session that goes on under a new command line: what it keeps, and what is named anew."""

from __future__ import annotations

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import SessionHead
from orchestrator.core.tree import ROOT
from orchestrator.protocol.ops import UserInput, UserTurn
from orchestrator.protocol.scalars import Delivery
from orchestrator.protocol.usage import TokenUsage
from orchestrator.rollouts.replay import fold_session
from orchestrator.views.sessions import LOOKED_THROUGH, found_rows
from orchestrator.wiring.new_sessions import kept_settings
from orchestrator.wiring.open_deployment import Opened


async def resumed_turn(
    found: Opened, head: SessionHead, said: UserInput
) -> tuple[UserTurn, TokenUsage | None]:
    """The op that goes on with a session, and the tokens that the session has used so far.

    The session keeps its settings, but for what the command line names. A turn that runs is joined.
    """
    state = (await fold_session(found, head, None)).state
    settings = kept_settings(found.settings, state).wire()
    op = UserTurn.model_validate(
        {
            **settings,
            "items": said.items,
            "final_output_json_schema": said.final_output_json_schema,
            "delivery": Delivery.STEER,
        }
    )
    return op, None if state.tokens is None else state.tokens.total.wire()


async def newest_in(broker: Broker, folder: str) -> str | None:
    """The root that changed last of those that work in a folder; None if there is none."""
    async for row, head in found_rows(broker, LOOKED_THROUGH):
        if head.agent_id == ROOT and row["cwd"] == folder:
            return head.session
    return None
