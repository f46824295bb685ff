"""The session that a command begins with: a new one, one that goes on, or the fork of one."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.core.frozen import record
from orchestrator.home import without_links
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead
    from orchestrator.core.ids import SessionId
    from orchestrator.gateways.client import Client
    from orchestrator.protocol.inputs import InputItem
    from orchestrator.protocol.ops import OverrideTurnContext
    from orchestrator.protocol.review import ReviewRequest
    from orchestrator.protocol.scalars import ModeKind
    from orchestrator.wiring.open_deployment import Opened


@record
class Origin:
    """The options that name a session."""

    resume: str | None = None
    fork: str | None = None
    at: str | None = None

    @classmethod
    def of(cls, resume: str | None, fork: str | None, at: str | None) -> Origin:
        """Raises `Fault` for options that contradict each other."""
        if resume is not None and fork is not None:
            raise Fault(
                "--resume goes on with a session, --fork makes another one: give one of them", ExitCode.USAGE
            )
        if at is not None and fork is None:
            raise Fault("--at names a turn of the session that --fork names: give both", ExitCode.USAGE)
        return cls(resume, fork, at)

    @property
    def is_new(self) -> bool:
        """Whether the session takes nothing from another one."""
        return self.resume is None and self.fork is None


async def forked(
    found: Opened, client: Client, origin: Origin, say: Callable[[str], None] | None = None
) -> SessionHead:
    """Makes the fork, and says so to a person."""
    from orchestrator.wiring.open_deployment import forked_session

    assert origin.fork is not None
    head = await forked_session(found, client, origin.fork, origin.at)
    if say is not None:
        said = f"; what was said there: dendro logs {origin.fork}"
        say(f"fork of session {origin.fork}{said if origin.at is None else ''}")
    return head


async def changed_from_here(
    found: Opened, session: SessionId, override: OverrideTurnContext | None, mode: ModeKind | None
) -> OverrideTurnContext | None:
    """The change of settings that the command line asks for, its mode under the model and effort in force.

    None if it asks for no change.
    """
    from orchestrator.protocol.ops import OverrideTurnContext
    from orchestrator.protocol.scalars import CollaborationMode
    from orchestrator.rollouts.full_log import head_of
    from orchestrator.views.threads import settings_of

    if mode is None:
        return override
    changed = override or OverrideTurnContext()
    now = await settings_of(found, await head_of(found.broker.logs, session))
    named = {"model": changed.model or now.model, "reasoning_effort": now.effort}
    chosen = CollaborationMode.model_validate({"mode": mode, "settings": named})
    return changed.model_copy(update={"collaboration_mode": chosen})


async def image_items(client: Client, session: SessionId, images: Sequence[Path]) -> list[InputItem]:
    """Files of the command line as items of input.

    A worker of a portable session may be on another machine, so it is sent what the files hold; any other has
    the session's folder, and is sent paths. Raises `Fault` for a file that no model can be shown.
    """
    import asyncio

    from orchestrator.protocol.inputs import ImageInput, LocalImageInput
    from orchestrator.tools.images import fitting_data_url

    head = await client.head(session) if images else None
    items: list[InputItem] = []
    for image in images:
        if head is None or not head.portable:
            items.append(LocalImageInput(path=str(without_links(image))))
            continue
        try:
            items.append(ImageInput(image_url=await asyncio.to_thread(fitting_data_url, image)))
        except (OSError, ValueError) as error:
            raise Fault(f"{image} is not shown, and session {session} was asked nothing: {error}") from error
    return items


# ── review words ──────────────────────────────────────────────────────────────────────────────────
# Words that a person types about a review, as the request that they mean.


_SHA = re.compile(r"[0-9a-fA-F]{7,64}")
"""As git takes one, in capitals, too."""


def typed_request(words: str) -> ReviewRequest:
    """The request that a person means.

    None, or `uncommitted`: what is not committed. One: a commit if it looks like one, else a branch. Several
    are instructions.
    """
    from orchestrator.protocol.review import (
        BaseBranch,
        Commit,
        CustomReview,
        ReviewRequest,
        UncommittedChanges,
    )

    text = words.strip()
    if text in ("", "uncommitted"):
        return ReviewRequest(target=UncommittedChanges())
    if len(text.split()) > 1:
        return ReviewRequest(target=CustomReview(instructions=text))
    if _SHA.fullmatch(text):
        return ReviewRequest(target=Commit(sha=text))
    return ReviewRequest(target=BaseBranch(branch=text))
