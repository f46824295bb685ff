"""The `subagent_*` tools: what a call of them asks for, after the agents that it names were looked up.

Whether a call may be carried out is decided by the core; nothing here changes a tree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Annotated, Any, Final, Literal, Protocol

import orjson
from pydantic import AfterValidator, ConfigDict, Field, StringConstraints

from orchestrator.core import commands as c
from orchestrator.core.agent_views import LABEL_CHARS, MESSAGE_BYTES, one_line
from orchestrator.core.calls import Await, Call, Merge, Phase
from orchestrator.core.context import ROLE_OPENING
from orchestrator.core.frozen import record
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.registry import Agent, RegistryView
from orchestrator.core.state import State
from orchestrator.core.tree import ROOT
from orchestrator.protocol.wire import json_text
from orchestrator.tools.arguments import Arguments, BadArguments, parsed

REFRESH = "refresh with subagent_list"
NUMBERS_AT_ONCE = 64
"""Calls that are looked at to tell how many agents will be made: asking again costs less than a look at a
thousand, a thousand times."""


@record
class AgentCall:
    """A call, who makes it, and where it may look."""

    call: Call
    state: State
    tree: Tree
    seq: int
    head: str
    """The caller's log, as far as it is written: what a fork begins from."""

    @property
    def me(self) -> int:
        return self.state.facts.agent_id

    @property
    def given(self) -> Any:
        return self.call.item.get("arguments") or "{}"


async def assess_agent_call(asking: AgentCall) -> c.Assessment:
    """The assessment; raises `BadArguments` with what the model reads instead."""
    match asking.call.name:
        case "subagent_spawn":
            return await _spawn(asking)
        case "subagent_fork":
            return await _fork(asking)
        case "spawn_subagent":
            return await _helper(asking)
        case "propose_plan_variants":
            return await _variants(asking)
        case "subagent_send_message":
            return await _send(asking)
        case "subagent_list":
            return await _list(asking)
        case "subagent_await":
            return _await(asking)
        case "subagent_logs":
            return await _logs(asking)
        case "subagent_watchdog":
            return await _watchdog(asking)
        case "subagent_cancel":
            return await _cancel(asking)
        case "subagent_prune":
            return await _prune(asking)
        case "subagent_merge":
            return _merge(asking)
        case name:
            raise BadArguments(f"unsupported call: {name}")


# ── creation ──────────────────────────────────────────────────────────────────────────────────────


async def _spawn(asking: AgentCall) -> c.Spawn:
    given = parsed(SpawnArguments, asking.given)
    if not given.prompt.strip():
        raise BadArguments("prompt: an agent needs to be told what to do")
    return c.Spawn(await _child_spec(asking, given, given.prompt, _part(asking, given)))


async def _fork(asking: AgentCall) -> c.Fork:
    given = parsed(ForkArguments, asking.given)
    spec = await _child_spec(asking, given, given.prompt, _part(asking, given))
    return c.Fork(spec, asking.seq, asking.head)


def _part(asking: AgentCall, given: SpawnArguments | ForkArguments) -> str:
    apart = asking.state.facts.portable is not None or given.workspace == "own"
    return AGENT_APART if apart else AGENT


async def _helper(asking: AgentCall) -> c.Helper:
    given = parsed(HelperArguments, asking.given)
    plain = SpawnArguments(prompt=given.prompt, label=given.clean_label, model=given.model)
    spec = await _child_spec(asking, plain, given.prompt, HELPER)
    return c.Helper(spec, given.description)


async def _variants(asking: AgentCall) -> c.Variants:
    """Drafts by helpers of the names `plan_variant_1` and so on, each with its own slant."""
    goal = parsed(VariantsArguments, asking.given).goal
    specs = []
    for number, (slant, meaning) in enumerate(SLANTS.items(), 1):
        prompt = DRAFT.format(goal=goal, slant=slant, meaning=meaning)
        given = SpawnArguments(prompt=prompt, label=f"plan_variant_{number}")
        specs.append(await _child_spec(asking, given, prompt, HELPER, f":{number}"))
    return c.Variants(tuple(specs), tuple(SLANTS))


async def _child_spec(
    asking: AgentCall,
    given: SpawnArguments | ForkArguments,
    prompt: str,
    part: str,
    which: str = "",
) -> c.ChildSpec:
    """The agent to be made; `which` tells it from others of the same call."""
    _within_limit(prompt)
    task = asking.state.task
    following = islice(task.calls.open, NUMBERS_AT_ONCE) if task is not None else ()
    wanted = sum(call.name == asking.call.name and call.phase is Phase.PROPOSED for call in following)
    number, session, path = await asking.tree.reserve(
        f"{asking.state.requests}:{asking.call.call_id}{which}", wanted
    )
    return c.ChildSpec(
        agent_id=number,
        session=session,
        rollout_path=path,
        version=asking.tree.version,
        role=role_of(number, given.clean_label, part),
        prompt=prompt,
        label=given.clean_label,
        model=given.model,
        sandbox_mode=given.sandbox_mode,
        workspace=given.workspace,
    )


# ── talking ───────────────────────────────────────────────────────────────────────────────────────


async def _send(asking: AgentCall) -> c.SendMessage:
    given = parsed(SendArguments, asking.given)
    _within_limit(given.prompt)
    if given.agent_id == asking.me:
        raise BadArguments("an agent does not write to itself")
    if given.agent_id == 0 and given.interrupt:
        raise BadArguments("the root is not interrupted by its agents")
    view = await asking.tree.registry()
    target = _target(asking, view, given.agent_id)
    if given.interrupt:
        _own(asking, view, given.agent_id, "interrupted")
    label = one_line(given.label, LABEL_CHARS)
    return c.SendMessage(target, given.prompt, label, given.interrupt)


async def _list(asking: AgentCall) -> c.Immediate:
    given = parsed(ListArguments, asking.given)
    view = await asking.tree.registry()
    agents = view.agents.values() if given.all else view.children_of(asking.me)
    shown = sorted(agents, key=lambda agent: (agent.record["started_at_ms"], agent.session))
    return c.Immediate(json_text({"sessions": [agent.summary() for agent in shown]}))


def _await(asking: AgentCall) -> Await:
    given, rules = parsed(AwaitArguments, asking.given), asking.state.facts.tree_rules
    seconds = given.timeout_s or rules.await_cap_s
    if not rules.await_floor_s <= seconds <= rules.await_cap_s:
        raise BadArguments(
            f"timeout_s: {rules.await_floor_s:g} to {rules.await_cap_s:g} seconds, or 0 for the longest"
        )
    if given.agent_ids == ():
        raise BadArguments("agent_ids: name at least one child, or leave it out for any")
    return Await(int(seconds * 1000), tuple(map(AgentId, given.agent_ids or ())))


async def _logs(asking: AgentCall) -> c.Immediate:
    given = parsed(LogsArguments, asking.given)
    target = _target(asking, await asking.tree.registry(), given.agent_id)
    try:
        events = await asking.tree.log(target.session)
    except LogUnreadable as error:
        return c.Immediate(f"the log of agent {given.agent_id} cannot be read: {error}")
    return c.Immediate(json_text(page(target.session, events, given)))


async def _watchdog(asking: AgentCall) -> c.SetWatchdog:
    given, rules = parsed(WatchdogArguments, asking.given), asking.state.facts.tree_rules
    _within_limit(given.message)
    if not given.cancel and given.interval_s < rules.watchdog_floor_s:
        raise BadArguments(f"interval_s: at least {rules.watchdog_floor_s:g} seconds")
    view = await asking.tree.registry()
    target = _target(asking, view, given.agent_id)
    if given.agent_id not in (0, asking.me):
        _own(asking, view, given.agent_id, "watched")
    message = given.message.strip() or WATCHDOG_MESSAGE
    return c.SetWatchdog(target, int(given.interval_s * 1000), message, given.cancel)


# ── taking work over ──────────────────────────────────────────────────────────────────────────────


def _merge(asking: AgentCall) -> c.Immediate | Merge:
    """The changes of a child since what was merged of it last."""
    number, state = AgentId(parsed(MergeArguments, asking.given).agent_id), asking.state
    folder = state.workspace.given.get(str(number), "")
    if state.facts.portable is None and not folder:
        raise BadArguments(f"agent {number} has no copy of your folder: there is nothing of it to merge")
    if number not in state.tree.children:
        raise BadArguments(f"agent {number} is not a child of yours; {REFRESH}")
    offer, known = state.workspace.offered.get(str(number)), state.workspace.merged.get(str(number))
    if offer is None:
        raise BadArguments(f"agent {number} has nothing to merge yet: wait for its result first")
    if offer.unsaved:
        raise BadArguments(
            f"the last changes of agent {number} are not stored yet; send it a message when they are, and "
            "merge its next result"
        )
    base = offer.base if known is None else known.snapshot
    if base == offer.snapshot:
        return c.Immediate(f"nothing to merge: all that agent {number} has changed is in your folder")
    packs = dict.fromkeys((*(known.packs if known is not None else ()), *offer.packs))
    change = offer.change
    files, names = (change.files, change.names) if change is not None else (0, ())
    return Merge(number, base, offer.snapshot, tuple(packs), files, names, folder)


# ── ending ────────────────────────────────────────────────────────────────────────────────────────


async def _cancel(asking: AgentCall) -> c.CancelAgent:
    given = parsed(CancelArguments, asking.given)
    view = await asking.tree.registry()
    target = _target(asking, view, given.agent_id)
    _own(asking, view, given.agent_id, "cancelled")
    below = (agent for agent in view.agents.values() if agent.below(given.agent_id) and agent.at_work)
    return c.CancelAgent(target, tuple(map(target_of, below)), given.reason)


async def _prune(asking: AgentCall) -> c.Prune:
    given = parsed(PruneArguments, asking.given)
    if given.agent_ids == () or (given.agent_ids is None and not given.all):
        raise BadArguments("agent_ids: name the agents to prune, or say all: true")
    view = await asking.tree.registry()
    own = {agent.agent_id: agent for agent in view.agents.values() if agent.below(asking.me)}
    named = list(own) if given.agent_ids is None else list(dict.fromkeys(given.agent_ids))
    found = [own[number] for number in named if number in own]
    unknown = tuple(number for number in named if number not in own)
    if given.agent_ids is not None and not found:
        raise BadArguments(f"none of these agents is below you: {list(unknown)}; {REFRESH}")
    echo = given.model_dump(mode="json", exclude_none=True)
    return c.Prune(tuple(map(target_of, found)), echo, unknown, given.completed_only)


# ── looking up ────────────────────────────────────────────────────────────────────────────────────


def _target(asking: AgentCall, view: RegistryView, number: int) -> c.Target:
    if number == 0:
        return root_target(asking.state.facts.tree_id)
    agent = view.agents.get(number)
    if agent is None:
        raise BadArguments(f"there is no agent {number}; {REFRESH}")
    return target_of(agent)


def root_target(tree: TreeId) -> c.Target:
    """The root as a target; the registry has no entry for it."""
    return c.Target(ROOT, SessionId(tree), "0", "", {"label": None, "summary": None})


def target_of(agent: Agent) -> c.Target:
    """An agent of the registry as a target."""
    return c.Target(
        AgentId(agent.agent_id),
        SessionId(agent.session),
        agent.path,
        agent.status,
        agent.summary(),
        agent.pending,
        agent.marked,
    )


def _own(asking: AgentCall, view: RegistryView, number: int, done: str) -> None:
    """Only from above: an agent has no power over its parents and siblings."""
    agent = view.agents.get(number)
    if agent is None or not agent.below(asking.me):
        raise BadArguments(f"agent {number} is not below you: it cannot be {done} from here")


def _within_limit(text: str) -> None:
    if len(text.encode()) > MESSAGE_BYTES:
        raise BadArguments(f"too long: at most {MESSAGE_BYTES} bytes; write the rest to a file and name it")


# ── logs ──────────────────────────────────────────────────────────────────────────────────────────
# Pages of an agent's log for a model: by time as the protocol has it, or by entry number.
#
# Times page by the newest events and can skip some; a cursor cannot.


def page(session: str, events: Sequence[LoggedEvent], asked: LogsArguments) -> dict[str, Any]:
    """The part of a log that was asked for (LOGS), with where to go on."""
    in_time = [event for event in events if _within(event, asked)]
    limit = max(1, asked.limit)
    chosen = in_time[-limit:] if asked.cursor is None else in_time[:limit]
    shown = _fitting(chosen, min(asked.max_bytes or LOGS_BYTES, LOGS_BYTES))
    return {
        "session_id": session,
        "returned": len(shown),
        "total_available": len(in_time),
        "more_available": len(shown) < len(in_time),
        "earliest_ms": shown[0][1] if shown else None,
        "latest_ms": shown[-1][1] if shown else None,
        "cursor": shown[-1][0] if shown else asked.cursor,
        "events": [{"timestamp_ms": at_ms, "event": event} for _, at_ms, event in shown],
    }


def _within(event: LoggedEvent, asked: LogsArguments) -> bool:
    seq, at_ms, _ = event
    return (
        (asked.since_ms is None or at_ms > asked.since_ms)
        and (asked.before_ms is None or at_ms < asked.before_ms)
        and (asked.cursor is None or seq > asked.cursor)
    )


def _fitting(events: Sequence[LoggedEvent], most: int) -> list[LoggedEvent]:
    """As many as fit, from the oldest on; one that is too large for any page is only named."""
    shown: list[LoggedEvent] = []
    left = most
    for seq, at_ms, event in events:
        size = len(orjson.dumps(event, default=dict))
        if size > most and not shown:
            # Else a cursor would stand before it for good.
            named = {name: value for name, value in event["msg"].items() if name == "type"}
            return [(seq, at_ms, {"id": event["id"], "msg": {**named, "bytes": size}})]
        left -= size
        if left < 0:
            break
        shown.append((seq, at_ms, event))
    return shown


# ── roles ─────────────────────────────────────────────────────────────────────────────────────────
# The role text of an agent below the root, a developer message in the agent's own log.
#
# The text is an item of the conversation and no change of the instructions: a fork's conversation so
# begins like its parent's, and the provider's prompt cache stays valid.


def role_of(number: int, label: str | None, part: str) -> str:
    """The agent's number and label, and then its part (`AGENT` or `HELPER`)."""
    named = f' ("{label}")' if label else ""
    return f"{ROLE_OPENING}{number}{named} in a tree of agents. {part}"


AGENT = (
    "They work on one task together. Another agent made you: your "
    "parent. Stay within what you were asked for; take anything earlier in this conversation as background. "
    "You are not alone in the workspace: do not undo what others did. Obey your parent and the sandbox that "
    "you have. Your last message is your result, and your parent sees nothing else of your work: write it so "
    "that nobody has to redo your steps, with paths, findings and what is left open. While you work, tell "
    "your parent of real progress by subagent_send_message, in a sentence or two. Wait with subagent_await "
    "only when you cannot go on without another agent; subagent_logs shows what one does without "
    "disturbing it."
)

_TOGETHER = "You are not alone in the workspace: do not undo what others did."
_APART = (
    "Your folder is a copy of your parent's and yours alone: nobody sees what you change in it until your "
    "parent takes it over, so leave there what is worth it, and nothing else."
)
AGENT_APART = AGENT.replace(_TOGETHER, _APART)
"""The part of an agent with a folder of its own."""

HELPER = (
    "You read and report for another agent. You cannot write, ask for permission, or make agents. Answer "
    "what you were asked, briefly and with the paths that prove it: your last message is all that anybody "
    "sees."
)

SLANTS: Final[Mapping[str, str]] = {
    "Minimal": "the smallest change that reaches the goal; leave out all that can wait",
    "Correctness": "a change that is right in every case: edge cases, failures, data that is there, tests",
    "DX": "a change that is pleasant to use and to work on: clear interfaces, messages, names and docs",
}
"""The points of view from which variants of a plan are drafted."""
DRAFT: Final = (
    "Draft a plan for this goal, from one point of view.\n\nGoal: {goal}\n\nPoint of view: {slant}, which is "
    "{meaning}.\n\nRead what the plan depends on, and change nothing. Your last message is one JSON object "
    'and nothing else: {{"title": TEXT, "summary": TEXT, "plan": {{"explanation": TEXT, "plan": [{{"step": '
    'TEXT, "status": "pending"}}]}}}}. The explanation says assumptions, approach, risks and how it is '
    "validated; the steps, at most 16, say where each is done and can be checked one by one."
)


# ── arguments ─────────────────────────────────────────────────────────────────────────────────────
# The arguments of the subagent tools. Floors and caps are errors, never silently corrected.


WATCHDOG_MESSAGE = (
    "Where does your work stand? Say in a few sentences what is done, what comes next, and what blocks you; "
    "bring the plan up to date."
)
LOGS_BYTES = 64 << 10
MODEL_CHARS = 200
"""Characters of a model's name: every task's settings repeat it."""

MOST_INTERVAL_S = 7 * 86_400
"""Seconds between two messages of a watchdog."""
AgentNumber = Annotated[int, Field(ge=0)]
ModelName = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=MODEL_CHARS)]


def _collapsed(text: str) -> str:
    return " ".join(text.split())


class _ChildArguments(Arguments):
    label: str | None = None
    model: ModelName | None = None
    sandbox_mode: str | None = None
    workspace: Literal["own", "shared"] | None = None

    @property
    def clean_label(self) -> str | None:
        return one_line(self.label, LABEL_CHARS)


class SpawnArguments(_ChildArguments):
    prompt: Annotated[str, StringConstraints(min_length=1)]


class ForkArguments(_ChildArguments):
    prompt: str = ""


class HelperArguments(Arguments):
    """Arguments of `spawn_subagent`, whose schema is stricter than the others': no unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    description: Annotated[str, AfterValidator(_collapsed), StringConstraints(min_length=1)]
    label: str = ""
    model: ModelName | None = None

    @property
    def clean_label(self) -> str:
        """Lower-case ASCII words joined by `_`; a helper without a label has the tool's name for one."""
        joined = "_".join(self.label.lower().split())
        kept = "".join(char for char in joined if char.isascii() and (char.isalnum() or char in "-_"))
        return kept[:LABEL_CHARS] or "subagent"


class VariantsArguments(Arguments):
    goal: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class SendArguments(Arguments):
    agent_id: AgentNumber
    prompt: str = ""
    label: str | None = None
    interrupt: bool = False


class MergeArguments(Arguments):
    agent_id: AgentNumber


class ListArguments(Arguments):
    all: bool = False


class AwaitArguments(Arguments):
    timeout_s: float | None = Field(default=None, ge=0)
    agent_ids: tuple[AgentNumber, ...] | None = None


class LogsArguments(Arguments):
    agent_id: AgentNumber
    limit: int = Field(default=5, ge=0)
    max_bytes: int | None = Field(default=None, ge=1)
    since_ms: int | None = None
    before_ms: int | None = None
    cursor: int | None = None
    """An entry number: what comes after it, oldest first."""


class WatchdogArguments(Arguments):
    agent_id: AgentNumber
    interval_s: float = Field(default=300.0, ge=0, le=MOST_INTERVAL_S)
    message: str = WATCHDOG_MESSAGE
    cancel: bool = False


class CancelArguments(Arguments):
    agent_id: AgentNumber
    reason: str = ""


class PruneArguments(Arguments):
    agent_ids: tuple[AgentNumber, ...] | None = None
    all: bool = False
    completed_only: bool = True


# ── port ──────────────────────────────────────────────────────────────────────────────────────────
# The subagent tools' port for look-ups: the runtime implements it over the tree's projection and logs.


LoggedEvent = tuple[int, int, dict[str, Any]]
"""(entry number, Unix milliseconds, Event)."""


class LogUnreadable(Exception):
    """A part of an agent's log was sealed and cannot be read; the message says which, for the model."""


class Tree(Protocol):
    """A session's view of its tree."""

    @property
    def version(self) -> str:
        """Of the program: what a new session's first line names."""
        ...

    async def reserve(self, call: str, wanted: int) -> tuple[AgentId, SessionId, str | None]:
        """A new agent's number, session id and rollout path; the same again for the same call.

        `wanted` numbers are taken in one go: as many as calls of one response may need.
        """
        ...

    async def registry(self) -> RegistryView:
        """Reads the agents of the tree."""
        ...

    async def log(self, session: str) -> list[LoggedEvent]:
        """The newest events of an agent's log, oldest first; raises `LogUnreadable`."""
        ...
