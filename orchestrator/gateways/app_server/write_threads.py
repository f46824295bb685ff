"""Threads as JSON of the app-server protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import version

from orchestrator.protocol.wire import JsonObject, JsonValue
from orchestrator.views.read_states import ReadState
from orchestrator.views.threads import Spawned, Thread, Waits

_FLAGS: Mapping[Waits, str] = {"approval": "waitingOnApproval", "user_input": "waitingOnUserInput"}
_STATUS_TYPES = {
    "not_loaded": "notLoaded",
    "idle": "idle",
    "active": "active",
    "system_error": "systemError",
}
GIT = {"sha": "commit_hash", "branch": "branch", "originUrl": "repository_url"}


@cache
def cli_version() -> str:
    """The program's version."""
    return version("dendro-orchestrator")


def thread_json(thread: Thread, turns: Sequence[JsonObject] = ()) -> JsonObject:
    """A `Thread`; `turns` are those that the answer carries."""
    return {
        "id": thread.id,
        "sessionId": thread.root,
        "forkedFromId": thread.forked_from,
        "parentThreadId": thread.spawned.parent if thread.spawned else None,
        "preview": thread.preview,
        "ephemeral": thread.ephemeral,
        "projectId": None,
        "historyMode": "paginated",
        "modelProvider": thread.model_provider,
        "model": thread.model or None,
        "reasoningEffort": thread.effort or None,
        "createdAt": thread.created_ms // 1000,
        "updatedAt": thread.updated_ms // 1000,
        "recencyAt": max(thread.recency_ms, thread.updated_ms) // 1000,
        "status": status_json(thread),
        "path": thread.path,
        "cwd": thread.cwd,
        "cliVersion": cli_version(),
        "originator": None,
        "source": _source(thread),
        "canAcceptDirectInput": True,
        "threadSource": "subagent" if thread.spawned else None,
        "agentNickname": thread.spawned.nickname if thread.spawned else None,
        "agentRole": thread.spawned.role if thread.spawned else None,
        "gitInfo": _git(thread.git),
        "name": thread.name,
        "turns": list(turns),
    }


def status_json(thread: Thread) -> JsonObject:
    """A `ThreadStatus`."""
    status: JsonObject = {"type": _STATUS_TYPES[thread.status]}
    if thread.status == "active":
        status["activeFlags"] = [] if thread.waits is None else [_FLAGS[thread.waits]]
    return status


def read_state_json(state: ReadState) -> JsonObject:
    """A `ThreadReadState`."""
    unread: JsonObject | None = None
    if state.first_unread is not None:
        unread = {"type": "turn", "turnId": state.first_unread}
    return {"firstUnread": unread, "revision": state.revision}


def _source(thread: Thread) -> JsonValue:
    if thread.spawned is not None:
        return {"subAgent": {"thread_spawn": _spawn_json(thread.spawned)}}
    return thread.source


def _spawn_json(spawned: Spawned) -> JsonObject:
    return {
        "parent_thread_id": spawned.parent,
        "depth": spawned.depth,
        "agent_path": _agent_path(spawned),
        "agent_nickname": spawned.nickname,
        "agent_role": spawned.role,
    }


def _agent_path(spawned: Spawned) -> str:
    """The agents' numbers below `/root`: Codex's clients drop a thread whose path has another form."""
    return "/".join(("/root", *spawned.path.split("/")[1:]))


def _git(git: Mapping[str, str] | None) -> JsonObject | None:
    return {name: git.get(ours) for name, ours in GIT.items()} if git else None
