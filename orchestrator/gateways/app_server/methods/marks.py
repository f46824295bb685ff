"""Methods that note something about a thread beside its log: how far it was read, what its repository is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import orjson
from pydantic import Field

from orchestrator.broker.notes import MOST_BYTES
from orchestrator.broker.records import SessionHead
from orchestrator.gateways.app_server.door import Door
from orchestrator.gateways.app_server.messages import RpcError, bad_params
from orchestrator.gateways.app_server.method import Method, Params, Result
from orchestrator.gateways.app_server.methods.threads import head_to_read, thread_of
from orchestrator.gateways.app_server.write_items import GIT, read_state_json
from orchestrator.gateways.principals import Scope
from orchestrator.views.threads import StaleReadState, mark_read, thread

MOST_TEXT = 1_024
MOST_REVISION = 100
TRIES = 5
"""Attempts at a note that others change at the same moment."""


class Operation(Params):
    """The new state of a thread."""

    type: Literal["read", "unread"]


class ReadStateUpdate(Params):
    """A thread, what its person made of it, and the state that the client knows."""

    thread_id: str
    operation: Operation
    expected_revision: Annotated[str, Field(max_length=MOST_REVISION)]


async def read_state_update(door: Door, params: ReadStateUpdate) -> Result:
    """Marks a thread as read or unread for this principal, at all of its clients."""
    head = await head_to_read(door, params.thread_id)
    read = params.operation.type == "read"
    found, person = door.ports.found, door.principal.name
    try:
        state = await mark_read(found, head, person, params.expected_revision, read=read)
    except StaleReadState as error:
        raise RpcError(str(error)) from None
    except ValueError as error:
        raise bad_params(f"expectedRevision: {error}") from None
    door.tells_read_states = True
    told = {"threadId": head.session, "readState": read_state_json(state)}
    for each in door.doors_of(head.session):
        if each.principal.name == person and each.tells_read_states:
            each.notify("thread/readState/changed", told)
    return {"readState": read_state_json(state)}


Text = Annotated[str, Field(min_length=1, max_length=MOST_TEXT)]


class GitInfo(Params):
    """Facts of a repository: null takes one away, one that is left out stays."""

    sha: Text | None = None
    branch: Text | None = None
    origin_url: Text | None = None


class MetadataUpdate(Params):
    """A thread, and what a client knows better of it."""

    thread_id: str
    git_info: GitInfo | None = None
    project_id: str | None = None
    daybreak_enabled: bool | None = None


async def metadata_update(door: Door, params: MetadataUpdate) -> Result:
    """Notes what a client tells of a thread's repository; its log, and what the model is told, stay."""
    head = await head_to_read(door, params.thread_id)
    if params.project_id is not None:
        raise bad_params("projectId: there are no projects here: threads are found by folder, name and tree")
    if params.git_info is not None:
        head = await _with_git(door, head, params.git_info)
    return {"thread": await thread_of(door, head)}


async def _with_git(door: Door, head: SessionHead, told: GitInfo) -> SessionHead:
    """The head with the note; changes of others to other members stay."""
    broker = door.ports.found.broker
    for _ in range(TRIES):
        changed = {
            GIT[name]: value for name, value in told.model_dump(by_alias=True, exclude_unset=True).items()
        }
        known = {**(thread(head).git or {}), **changed}
        note = orjson.dumps({name: value for name, value in known.items() if value is not None})
        if len(note) > MOST_BYTES:
            raise bad_params(f"gitInfo: at most {MOST_BYTES:,} bytes in all, these are {len(note):,}")
        kept = await broker.requests.note(head.session, "git", note, head.git_note)
        head = await door.head(head.session)
        if kept == note:
            return head
    raise RpcError("others change this thread's metadata at the same moment: try again")


METHODS: Mapping[str, Method] = {
    "thread/readState/update": Method(ReadStateUpdate, read_state_update, Scope.READ),
    "thread/metadata/update": Method(MetadataUpdate, metadata_update, Scope.SUBMIT),
}
