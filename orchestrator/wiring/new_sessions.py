"""New sessions from settings: their place, their rules, and their first settings."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path

from orchestrator.broker.broker import Broker
from orchestrator.broker.records import SessionHead
from orchestrator.config_keys import SESSION_KEYS, AgentSettings
from orchestrator.core.birth import Birth, ForkedFrom, taken_facts, taken_settings
from orchestrator.core.facts import Claimed
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import TreeId, new_session_id
from orchestrator.core.lines import given
from orchestrator.core.settings import (
    FORKED_FACTS,
    TURN_SETTINGS,
    PortableFolder,
    SessionFacts,
    TreeRules,
    TurnSettings,
    WorkspaceMark,
)
from orchestrator.core.state import State
from orchestrator.core.tree import ROOT
from orchestrator.gateways.folder_facts import Workspace, mark
from orchestrator.instructions.project import ProjectDocs
from orchestrator.instructions.skills import Guide, Skills
from orchestrator.protocol.events import TokenUsage
from orchestrator.protocol.ops import OverrideTurnContext, UserInput, UserTurn
from orchestrator.protocol.scalars import Delivery
from orchestrator.protocol.wire import JsonObject
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.replay import fold_session
from orchestrator.rollouts.rollout_file import rollout_path
from orchestrator.settings import Settings
from orchestrator.settings.private_home import archive_outside, is_shared, register_outside
from orchestrator.views.sessions import LOOKED_THROUGH, found_rows, nobody_spoke
from orchestrator.wiring.deployment import portable_pool, session_pool, worker_name

VERSION = version("dendro-orchestrator")
SESSIONS = "sessions"
"""The folder of rollout files, in the user's own."""


def this_process(name: str = "") -> Claimed:
    """This process, as the first entry of its claim names it."""
    return Claimed(
        name or worker_name(),
        socket.gethostname(),
        f"uid:{os.getuid()}",
        VERSION,
        python=platform.python_version(),
        sandbox={"kind": "none"},
    )


def guide(settings: Settings) -> Guide:
    """The instructions that lie in this machine's files."""
    defaults = settings.session_defaults
    kept = _stored_elsewhere(settings)
    docs = ProjectDocs(settings.home, defaults.project_doc_max_bytes, defaults.project_doc_fallbacks, kept)
    return Guide(docs, Skills(settings.home, settings.host.user_home, hidden=kept))


def _stored_elsewhere(settings: Settings) -> tuple[Path, ...]:
    """The folders and files of Dendro's that may lie anywhere: copies, keys, the archive, a notary's."""
    told = settings.receipts
    known = (
        *(settings.workspace.root, settings.workspace.key_file, archive_outside(settings)),
        *(told.state, told.key_file, register_outside(settings)),
    )
    return tuple(
        path
        for path in known
        if path is not None and not path.is_relative_to(settings.home) and not is_shared(settings, path)
    )


def new_birth(
    settings: Settings,
    workspace: Workspace,
    now_ms: int,
    random_bytes: Callable[[int], bytes],
    first: FirstFolder | None = None,
) -> Birth:
    """The birth of a root session with these settings; the shard is drawn by chance.

    Marks the folder if machines beside this one may come to work in it. With a `first` folder the session's
    is a portable one; the birth has yet to be given its first snapshot.
    """
    defaults = settings.session_defaults
    pool = session_pool(settings) if first is None else portable_pool(settings)
    noise = int.from_bytes(random_bytes(12), "big")
    session = new_session_id(now_ms, noise % settings.redis.shards, noise >> 16)
    facts = SessionFacts(
        session_id=session,
        tree_id=TreeId(session),
        pool=pool,
        base_instructions=defaults.base_instructions or None,
        rollout_path=str(rollout_path(settings.home / SESSIONS, session, now_ms)),
        on_user_input=defaults.on_user_input,
        approval_timeout_ms=None
        if defaults.approval_timeout_s is None
        else round(defaults.approval_timeout_s * 1000),
        workspace=_mark(defaults.cwd, pool, random_bytes) if first is None else None,
        portable=None if first is None else first.portable,
        agents=settings.agents.enabled,
        tree_rules=tree_rules(settings),
        web_search=settings.tools.web_search,
        view_image=settings.tools.view_image,
        update_plan=settings.tools.update_plan,
        apply_patch=settings.tools.apply_patch,
        patch_freeform=settings.tools.apply_patch_freeform,
        unified_exec=settings.tools.unified_exec,
    )
    instructions = [text for text in (defaults.user_instructions, workspace.instructions) if text]
    return Birth(
        facts,
        turn_settings(settings) if first is None else _in_folder(settings, first, facts),
        version=VERSION,
        at_ms=now_ms,
        user_instructions="\n\n".join(instructions) or None,
        git=workspace.git or None,
        warnings=workspace.warnings,
    )


def _in_folder(settings: Settings, first: FirstFolder, facts: SessionFacts) -> TurnSettings:
    """The settings of the first turn in a portable folder, which is the session's own to write."""
    defaults = settings.session_defaults
    own = turn_settings(settings)
    if not defaults.sandbox.chosen:
        own = replace(
            own, sandbox_policy=defaults.sandbox.model_copy(update={"mode": "workspace-write"}).wire()
        )
    return replace(own, cwd=os.path.normpath(f"{first.portable.path(facts.tree_id)}/{first.within}"))


def forked_birth(settings: Settings, source: ForkedFrom, own: Birth) -> Birth:
    """The birth of a root that goes on where `source` stands; `own` is what it would be without.

    What the command line names is new, all else is the source's, but for the tree's limits and budgets: those
    are the owner's of now.
    """
    named, state = settings.named, source.state
    turn = _named(TURN_KEYS, named)
    taken = taken_settings(state, own.settings, turn)
    facts = taken_facts(state.facts, own.facts, _named(FACT_KEYS, named))
    # A folder of the command line's is one of its machine, by whichever word it came.
    own_pool = "pool" in named or "cwd" in turn or _is_here(settings, state)
    pool = own.facts.pool if own_pool else state.facts.pool
    same_folder = "cwd" not in turn and pool == state.facts.pool
    facts = replace(facts, pool=pool, workspace=state.facts.workspace if same_folder else own.facts.workspace)
    named_own = "user_instructions" in named
    instructions = own.user_instructions if named_own else given(state.meta.instructions)
    git = own.git if "cwd" in turn else given(state.meta.git)
    return replace(own, facts=facts, settings=taken, user_instructions=instructions, git=git, source=source)


def kept_settings(settings: Settings, state: State) -> TurnSettings:
    """The settings of a session that goes on: its own, but for what the command line names."""
    return taken_settings(state, turn_settings(settings), _named(TURN_KEYS, settings.named))


def named_settings(settings: Settings) -> JsonObject:
    """The settings of turns that the command line names, as a session that goes on is told of them."""
    named = _named(TURN_KEYS, settings.named) & OverrideTurnContext.model_fields.keys()
    if "cwd" not in settings.named:
        # A profile names no folder.
        named -= {"cwd"}
    own = turn_settings(settings).wire()
    return {name: own[name] for name in sorted(named) if name in own}


def _named(keys: Mapping[str, tuple[str, ...]], named: frozenset[str]) -> frozenset[str]:
    """The fields whose keys the command line sets; a profile may set each of them."""
    if "profile" in named:
        return frozenset(keys)
    return frozenset(
        name
        for name, of in keys.items()
        if any(key == one or key.startswith(f"{one}.") for key in named for one in of)
    )


def _is_here(settings: Settings, state: State) -> bool:
    """Whether a session's pool is this machine's own: its folders are here, whatever providers it had."""
    return state.facts.pool.startswith(f"host:{settings.host.machine_id}")


_IN_FILE: Mapping[str, tuple[str, ...]] = {
    "cwd": ("cwd",),
    "sandbox_policy": (SESSION_KEYS["sandbox"], "sandbox_workspace_write"),
    "window": ("model_context_window",),
    **{name: (key,) for name, key in SESSION_KEYS.items()},
}
TURN_KEYS: Mapping[str, tuple[str, ...]] = {n: _IN_FILE[n] for n in TURN_SETTINGS if n in _IN_FILE}
"""The keys that set each field of a turn's settings."""
_FACTS_IN_FILE: Mapping[str, tuple[str, ...]] = {
    "base_instructions": ("base_instructions", "model_instructions_file", "experimental_instructions_file"),
    "on_user_input": ("on_user_input",),
    "approval_timeout_ms": ("approval_timeout_s",),
    "agents": ("agents.enabled",),
    "patch_freeform": ("tools.apply_patch_freeform",),
}
FACT_KEYS: Mapping[str, tuple[str, ...]] = {n: _FACTS_IN_FILE.get(n, (f"tools.{n}",)) for n in FORKED_FACTS}
"""The same of what a session is made with; a tool has a key of its name."""


def _mark(cwd: Path, pool: str, random_bytes: Callable[[int], bytes]) -> WorkspaceMark | None:
    return None if pool.startswith("host:") else mark(cwd, random_bytes(16).hex())


def tree_rules(settings: Settings) -> TreeRules:
    """The rules of a new tree."""
    agents = settings.agents
    return TreeRules(
        slots=agents.slots,
        spawned=agents.spawned,
        depth=agents.depth,
        autosubmit=agents.autosubmit,
        await_floor_s=agents.await_floor_s,
        watchdog_floor_s=agents.watchdog_floor_s,
        watchdogs=agents.watchdogs,
        budgets=_budgets(agents),
    )


def _budgets(agents: AgentSettings) -> dict[str, int]:
    """In the units of a tree's accounts: millionths of a dollar, milliseconds."""
    limits = {
        "tokens": agents.budget_tokens,
        "cost": None if agents.budget_cost is None else round(agents.budget_cost * 1_000_000),
        "requests": agents.budget_requests,
        "wall": None if agents.budget_wall_s is None else round(agents.budget_wall_s * 1000),
    }
    return {kind: limit for kind, limit in limits.items() if limit is not None}


def turn_settings(settings: Settings) -> TurnSettings:
    """The settings of the first turn: each that the file has by its own name, and those that differ there."""
    defaults = settings.session_defaults
    own = {name: getattr(defaults, name) for name in TURN_SETTINGS if name in SESSION_KEYS}
    own["cwd"] = str(defaults.cwd)
    own["sandbox_policy"] = defaults.sandbox.wire()
    own["window"] = settings.model.context_window
    own["item_events"] = None if defaults.item_events == "plan" else defaults.item_events
    return TurnSettings(**own)


# ── first folder ──────────────────────────────────────────────────────────────────────────────────
# The folder that a new portable session begins with.


@record
class FirstFolder:
    """The folder that a new session begins with."""

    portable: PortableFolder
    within: str = "."
    """The working folder inside of it."""
    top: Path | None = None
    """The folder on this machine that it is a copy of."""
    source: tuple[State, str] | None = None
    """The state of the session whose folder it is a copy of, and that session's name for people."""
    warning: str = ""
    """News of the folder for people, before its first call; empty: none."""


# ── a turn of a session that goes on under a new command line ─────────────────────────────────────


async def resumed_turn(
    found: LogSource, own: Settings, head: SessionHead, said: UserInput
) -> tuple[UserTurn, TokenUsage | None]:
    """The op that goes on with a session, and the tokens that the session has used so far.

    The session keeps its settings, but for what the command line names. A turn that runs is joined.
    """
    state = (await fold_session(found, head, None)).state
    settings = kept_settings(own, state).wire()
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
    """The root that changed last of those that work in a folder; None if there is none.

    Of the machine's user's own that lists show: a terminal begins one with every start, and says nothing.
    """
    async for row, head in found_rows(broker, LOOKED_THROUGH):
        if head.agent_id == ROOT and row["cwd"] == folder and _is_listed(head):
            return head.session
    return None


def _is_listed(head: SessionHead) -> bool:
    labels = head.labels
    return not (labels.namespace or labels.ephemeral or head.shelved or nobody_spoke(head))
