"""Arguments of the subagent tools: floors, caps, defaults, and who may do what to whom."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from orchestrator.core import commands as c
from orchestrator.core.agent_views import LABEL_CHARS
from orchestrator.core.calls import Await, Call, Calls, Merge, Phase
from orchestrator.core.frozen import replace
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.packs import FolderChange, Pack
from orchestrator.core.registry import Agent, RegistryView
from orchestrator.core.settings import PortableFolder, SessionFacts, TreeRules, TurnSettings
from orchestrator.core.state import State, Task
from orchestrator.core.tree import Child, TreeView
from orchestrator.core.workspace import Merged, Offer, Workspace
from orchestrator.protocol.ids import CallId, SnapshotId, SubmissionId
from orchestrator.tools.agent_tools import AGENT_TOOLS, NAMES, OFFERED
from orchestrator.tools.arguments import BadArguments
from orchestrator.tools.subagents import AgentCall, LoggedEvent, assess_agent_call


def an_agent(id: int, path: str, status: str = "running") -> Agent:
    record = {
        "agent_id": id,
        "parent_agent_id": int(path.split("/")[-2]),
        "session_id": f"s{id}",
        "parent_session_id": f"s{path.split('/')[-2]}",
        "origin": "spawn",
        "status": status,
        "label": None,
        "summary": None,
        "reasoning_header": None,
        "started_at_ms": 100 - id,
        "agent_path": path,
        "turn": 0,
    }
    return Agent(record)


FAMILY = RegistryView(
    {1: an_agent(1, "0/1"), 2: an_agent(2, "0/1/2"), 3: an_agent(3, "0/3"), 4: an_agent(4, "0/1/4", "failed")}
)


@dataclass
class FakeTree:
    """A tree of four agents."""

    view: RegistryView = FAMILY
    events: list[LoggedEvent] = field(default_factory=list)
    version: str = "1"

    async def reserve(self, call: str, wanted: int) -> tuple[AgentId, SessionId, str | None]:
        return AgentId(9), SessionId("s9"), "/data/9.jsonl"

    async def registry(self) -> RegistryView:
        return self.view

    async def log(self, session: str) -> list[LoggedEvent]:
        return self.events


async def asked(
    name: str, me: int = 0, tree: FakeTree | None = None, state: State | None = None, **arguments: Any
) -> Any:
    """The assessment of a call by agent `me`, or what its model reads instead."""
    path = "0" if me == 0 else FAMILY.agents[me].path
    facts = SessionFacts(
        SessionId(f"s{me}"), TreeId("s0"), AgentId(me), agent_path=path, tree_rules=TreeRules()
    )
    item = {
        "type": "function_call",
        "name": name,
        "arguments": orjson.dumps(arguments).decode(),
        "call_id": "c",
    }
    asking = AgentCall(Call(CallId("c"), name, item), state or State(facts=facts), tree or FakeTree(), 0, "")
    try:
        return await assess_agent_call(asking)
    except BadArguments as error:
        return str(error)


def output(assessment: Any) -> Any:
    assert isinstance(assessment, c.Immediate), assessment
    assert isinstance(assessment.output, str)
    return orjson.loads(assessment.output)


@pytest.mark.parametrize(
    ("given", "seconds"), [({}, 1800), ({"timeout_s": 0}, 1800), ({"timeout_s": 300}, 300)]
)
async def test_await_waits_as_long_as_it_may_unless_it_is_told(given: dict[str, Any], seconds: int) -> None:
    assert await asked("subagent_await", **given) == Await(seconds * 1000)


@pytest.mark.parametrize("seconds", [1, 299, 1801, -1])
async def test_await_outside_of_its_bounds_is_an_error_and_not_corrected(seconds: int) -> None:
    assert "timeout_s" in await asked("subagent_await", timeout_s=seconds)


async def test_await_of_nobody_in_particular_is_an_error() -> None:
    assert "agent_ids" in await asked("subagent_await", agent_ids=[])


@pytest.mark.parametrize("given", [{}, {"goal": " \n"}])
async def test_variants_of_no_goal_are_an_error(given: dict[str, Any]) -> None:
    assert "goal" in await asked("propose_plan_variants", **given)


async def test_watchdog_barks_every_half_minute_at_most() -> None:
    assert "at least 30" in await asked("subagent_watchdog", agent_id=1, interval_s=29)
    set_ = await asked("subagent_watchdog", agent_id=1)
    assert (set_.interval_ms, bool(set_.message)) == (300_000, True)


@pytest.mark.parametrize("cancel", [False, True])
@pytest.mark.parametrize("seconds", [604_801, 1e18, 1e300, 1e306, -1])
async def test_watchdog_whose_interval_no_timer_could_hold_is_an_error(seconds: float, cancel: bool) -> None:
    refused = await asked("subagent_watchdog", agent_id=1, interval_s=seconds, cancel=cancel)
    assert "interval_s" in str(refused)
    longest = await asked("subagent_watchdog", agent_id=1, interval_s=604_800)
    assert longest.interval_ms == 604_800_000


@pytest.mark.parametrize("name", ["subagent_cancel", "subagent_watchdog"])
async def test_agents_have_power_over_what_is_below_them_alone(name: str) -> None:
    assert not isinstance(await asked(name, me=1, agent_id=2), str)
    assert "not below you" in await asked(name, me=1, agent_id=3)
    assert "not below you" in await asked(name, me=2, agent_id=1)


@pytest.mark.parametrize("whom", [0, 2])
async def test_agent_has_itself_and_the_root_reminded(whom: int) -> None:
    assert (await asked("subagent_watchdog", me=2, agent_id=whom)).target.session == f"s{whom}"


async def test_interrupt_goes_down_alone_and_a_message_anywhere() -> None:
    assert "not below you" in await asked(
        "subagent_send_message", me=2, agent_id=3, prompt="x", interrupt=True
    )
    assert "root is not interrupted" in await asked("subagent_send_message", me=2, agent_id=0, interrupt=True)
    assert (await asked("subagent_send_message", me=2, agent_id=3, prompt="x")).target.session == "s3"
    assert (await asked("subagent_send_message", me=2, agent_id=0, prompt="x")).target.session == "s0"


async def test_unknown_agent_is_an_error_that_names_the_remedy() -> None:
    for name in ("subagent_send_message", "subagent_logs", "subagent_cancel", "subagent_watchdog"):
        assert "subagent_list" in await asked(name, agent_id=77, prompt="x")


async def test_root_writes_neither_to_itself_nor_too_much() -> None:
    assert "itself" in await asked("subagent_send_message", agent_id=0, prompt="x")
    assert "too long" in await asked("subagent_send_message", agent_id=1, prompt="x" * 33_000)


async def test_list_shows_the_callers_children_by_age_and_all_on_demand() -> None:
    shown = output(await asked("subagent_list"))["sessions"]
    assert [entry["agent_id"] for entry in shown] == [3, 1]
    assert output(await asked("subagent_list", me=1, all=True))["sessions"].__len__() == 4


async def test_cancel_names_everything_at_work_below() -> None:
    found = await asked("subagent_cancel", agent_id=1)
    assert [target.agent_id for target in found.below] == [2]


async def test_prune_wants_to_be_told_whom() -> None:
    assert "all: true" in await asked("subagent_prune")
    found = await asked("subagent_prune", agent_ids=[4, 77])
    assert ([t.agent_id for t in found.targets], found.unknown) == ([4], (77,))
    twice = await asked("subagent_prune", agent_ids=[4, 77, 4, 77])
    assert ([t.agent_id for t in twice.targets], twice.unknown) == ([4], (77,)), "each once"
    assert "none of these" in await asked("subagent_prune", me=1, agent_ids=[3])
    assert {t.agent_id for t in (await asked("subagent_prune", me=1, all=True)).targets} == {2, 4}


async def test_spawn_needs_a_prompt_and_cleans_its_label() -> None:
    assert "prompt" in await asked("subagent_spawn", prompt="  ")
    made = await asked("subagent_spawn", prompt="x", label="  two \n words " + "x" * 80)
    assert made.spec.label is not None
    assert made.spec.label.startswith("two words x")
    assert len(made.spec.label) == 64


@pytest.mark.parametrize("model", [" ", "m" * 201])
async def test_name_of_a_model_that_is_empty_or_long_is_an_error(model: str) -> None:
    assert "model" in await asked("subagent_spawn", prompt="x", model=model)


def events(count: int) -> list[LoggedEvent]:
    return [(n, 1000 + n, {"id": "t", "msg": {"type": "warning", "message": "x" * 50}}) for n in range(count)]


async def test_logs_show_the_newest_and_page_backward_by_time() -> None:
    tree = FakeTree(events=events(10))
    newest = output(await asked("subagent_logs", tree=tree, agent_id=1))
    assert [e["timestamp_ms"] for e in newest["events"]] == [1005, 1006, 1007, 1008, 1009]
    assert (newest["total_available"], newest["more_available"]) == (10, True)
    earlier = output(await asked("subagent_logs", tree=tree, agent_id=1, before_ms=newest["earliest_ms"]))
    assert earlier["latest_ms"] == 1004
    assert earlier["total_available"] == 5


async def test_logs_are_cut_by_bytes_from_the_oldest_on() -> None:
    page = output(await asked("subagent_logs", tree=FakeTree(events=events(10)), agent_id=1, max_bytes=200))
    assert [e["timestamp_ms"] for e in page["events"]] == [1005, 1006]
    assert page["more_available"] is True


async def test_limit_of_zero_means_one() -> None:
    page = output(await asked("subagent_logs", tree=FakeTree(events=events(3)), agent_id=1, limit=0))
    assert page["returned"] == 1


def portable(offer: Offer | None = None, merged: Merged | None = None) -> State:
    """A root of a portable tree with one child, which may have come to rest."""
    child = Child(AgentId(1), SessionId("s1"), "spawn", "idle", 1)
    return State(
        facts=SessionFacts(portable=PortableFolder("/w", "repo")),
        tree=TreeView(children={AgentId(1): child}),
        workspace=Workspace(
            offered={"1": offer} if offer is not None else {}, merged={"1": merged} if merged else {}
        ),
    )


async def test_agent_with_a_folder_of_its_own_is_told_so() -> None:
    apart = await asked("subagent_spawn", state=portable(), prompt="work")
    assert "yours alone" in apart.spec.role
    assert "not alone" not in apart.spec.role
    assert "not alone" in (await asked("subagent_spawn", prompt="work")).spec.role


async def test_agent_that_is_to_have_a_copy_of_a_machines_folder_is_told_so() -> None:
    apart = await asked("subagent_spawn", prompt="work", workspace="own")
    assert apart.spec.workspace == "own"
    assert "yours alone" in apart.spec.role


PACKS = (Pack("0.pack", "0", 1, whole=True), Pack("1.pack", "1", 1))


async def test_merge_takes_what_the_agent_has_changed_since_it_began() -> None:
    offer = Offer(SnapshotId("t1"), SnapshotId("s0"), PACKS, FolderChange(2, 5, 1, ("a", "b")))
    found = await asked("subagent_merge", state=portable(offer), agent_id=1)
    assert found == Merge(AgentId(1), SnapshotId("s0"), SnapshotId("t1"), PACKS, 2, ("a", "b"))


async def test_merge_into_a_machines_folder_names_it_and_the_tool_is_offered_with_the_first_copy() -> None:
    offer = Offer(SnapshotId("t1"), SnapshotId("s0"), PACKS)
    state = replace(portable(offer), facts=SessionFacts(agents=True))
    (tool,) = (tool for tool in AGENT_TOOLS if tool.names == ("subagent_merge",))
    assert tool.offered(state) is None
    given = replace(state, workspace=replace(state.workspace, given={"1": "/repo"}))
    assert tool.offered(given) is not None
    assert (await asked("subagent_merge", state=given, agent_id=1)).folder == "/repo"


async def test_second_merge_takes_what_is_new_since_the_first() -> None:
    first = Merged(SnapshotId("t1"), (Pack("old.pack", "9", 1),))
    found = await asked(
        "subagent_merge", state=portable(Offer(SnapshotId("t2"), SnapshotId("s0"), PACKS), first), agent_id=1
    )
    assert (found.base, found.snapshot) == ("t1", "t2")
    assert [pack.name for pack in found.packs] == ["old.pack", "0.pack", "1.pack"]


async def test_merge_of_what_was_merged_changes_nothing() -> None:
    offer, first = Offer(SnapshotId("t1"), SnapshotId("s0"), PACKS), Merged(SnapshotId("t1"), PACKS)
    found = await asked("subagent_merge", state=portable(offer, first), agent_id=1)
    assert isinstance(found, c.Immediate)
    assert "nothing to merge" in str(found.output)


TAKEN_BACK = FolderChange(0, 0, 0)
CHANGED = FolderChange(1, 2, 0, ("a",))


@pytest.mark.parametrize("change", [None, TAKEN_BACK, CHANGED])
@pytest.mark.parametrize("known", [None, "s0", "t1", "t2"])
@pytest.mark.parametrize("offered", ["s0", "t1", "t2"])
async def test_there_is_nothing_to_merge_where_the_snapshot_is_that_which_was_merged_and_only_there(
    offered: str, known: str | None, change: FolderChange | None
) -> None:
    """Work that an agent has taken back since it was merged changes nothing since its beginning."""
    merged = Merged(SnapshotId(known), PACKS[:1]) if known is not None else None
    offer = Offer(SnapshotId(offered), SnapshotId("s0"), PACKS, change)
    found = await asked("subagent_merge", state=portable(offer, merged), agent_id=1)
    if offered == (known or "s0"):
        assert isinstance(found, c.Immediate)
        assert "nothing to merge" in str(found.output)
    else:
        files, names = (change.files, change.names) if change is not None else (0, ())
        base = SnapshotId(known or "s0")
        assert found == Merge(AgentId(1), base, SnapshotId(offered), PACKS, files, names)


@pytest.mark.parametrize(
    ("state", "agent_id", "told"),
    [
        (None, 1, "has no copy of your folder"),
        (portable(), 7, "agent 7 is not a child of yours"),
        (portable(), 1, "wait for its result first"),
        (portable(Offer(SnapshotId("t1"), unsaved=True)), 1, "not stored yet"),
    ],
)
async def test_merge_that_cannot_be_says_why(state: State | None, agent_id: int, told: str) -> None:
    assert told in await asked("subagent_merge", state=state, agent_id=agent_id)


def test_twelve_tools_are_known_and_none_takes_unknown_properties() -> None:
    assert len(NAMES) == len(OFFERED) == 12
    assert all(spec["parameters"]["additionalProperties"] is False for spec in OFFERED)


def sized(seq: int, size: int) -> LoggedEvent:
    """An event of so many bytes."""
    event = {"id": "t", "msg": {"type": "warning", "message": ""}}
    event["msg"]["message"] = "x" * (size - len(orjson.dumps(event)))  # type: ignore[index]
    return seq, 1000 + seq, event


@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize("most", [None, 300, 1_000])
async def test_cursor_pages_through_a_whole_log_whatever_its_events_hold(
    limit: int, most: int | None
) -> None:
    sizes = [100, 400, 1_000, 1_001, 90, 70_000, 65_536, 65_537, 80]
    tree = FakeTree(events=[sized(seq, size) for seq, size in enumerate(sizes, 1)])
    bound: dict[str, Any] = {"max_bytes": most} if most else {}
    cursor, seen, named = 0, [], []
    while True:
        page = output(
            await asked("subagent_logs", tree=tree, agent_id=1, cursor=cursor, limit=limit, **bound)
        )
        if not page["returned"]:
            break
        seen += [event["timestamp_ms"] - 1000 for event in page["events"]]
        for event in page["events"]:
            told = event["event"]
            if "bytes" in told["msg"]:
                assert told == {"id": "t", "msg": {"type": "warning", "bytes": told["msg"]["bytes"]}}
                named.append(told["msg"]["bytes"])
        assert page["cursor"] > cursor
        assert page["more_available"] is (len(seen) < len(sizes))
        cursor = page["cursor"]
    assert seen == list(range(1, len(sizes) + 1)), "each once, in order"
    assert named == [size for size in sizes if size > (most or 65_536)]


@pytest.mark.parametrize("more", [0, 1])
async def test_page_of_a_log_has_as_many_bytes_as_it_may(more: int) -> None:
    tree = FakeTree(events=[sized(1, 100), sized(2, 150 + more), sized(3, 80)])
    page = output(await asked("subagent_logs", tree=tree, agent_id=1, max_bytes=250))
    assert [event["timestamp_ms"] for event in page["events"]] == ([1001] if more else [1001, 1002])
    assert (page["cursor"], page["more_available"]) == (1 if more else 2, True)


@pytest.mark.parametrize(
    ("bounds", "seen"),
    [
        ({"since_ms": 1002}, [3, 4, 5]),
        ({"before_ms": 1004}, [1, 2, 3]),
        ({"since_ms": 1001, "before_ms": 1005}, [2, 3, 4]),
        ({"cursor": 2}, [3, 4, 5]),
        ({"cursor": 1, "before_ms": 1004}, [2, 3]),
        ({"cursor": 1, "limit": 2}, [2, 3]),
        ({"since_ms": 1001, "limit": 2}, [4, 5]),
        ({"cursor": 5}, []),
    ],
)
async def test_bounds_of_a_page_leave_out_what_they_name(bounds: dict[str, Any], seen: list[int]) -> None:
    tree = FakeTree(events=[sized(seq, 100) for seq in range(1, 6)])
    page = output(await asked("subagent_logs", tree=tree, agent_id=1, **bounds))
    assert [event["timestamp_ms"] - 1000 for event in page["events"]] == seen
    assert page["cursor"] == (seen[-1] if seen else bounds.get("cursor"))


@pytest.mark.parametrize(
    ("label", "kept"),
    [
        ("Find the  Bug!", "find_the_bug"),
        ("a-b_C 9", "a-b_c_9"),
        ("Ärger ²", "rger_"),
        ("日本", "subagent"),
        ("", "subagent"),
        ("  ", "subagent"),
        ("x" * 500, "x" * LABEL_CHARS),
    ],
)
async def test_helper_is_named_by_plain_letters(label: str, kept: str) -> None:
    helper = await asked("spawn_subagent", prompt="look", description=" what\n it does ", label=label)
    assert (helper.spec.label, helper.description) == (kept, "what it does")


@pytest.mark.parametrize(
    ("name", "given", "keys"),
    [
        ("subagent_spawn", {"prompt": "x"}, ["7:c"]),
        ("subagent_fork", {}, ["7:c"]),
        ("spawn_subagent", {"prompt": "x", "description": "y"}, ["7:c"]),
        ("propose_plan_variants", {"goal": "x"}, ["7:c:1", "7:c:2", "7:c:3"]),
    ],
)
async def test_agent_of_each_call_of_each_request_is_another_one_and_the_same_again(
    name: str, given: dict[str, Any], keys: list[str]
) -> None:
    asked_for: list[str] = []

    class Reserving(FakeTree):
        async def reserve(self, call: str, wanted: int) -> tuple[AgentId, SessionId, str | None]:
            asked_for.append(call)
            return await super().reserve(call, wanted)

    facts = SessionFacts(SessionId("s0"), TreeId("s0"), AgentId(0), agent_path="0", tree_rules=TreeRules())
    for _ in range(2):
        await asked(name, tree=Reserving(), state=State(facts=facts, requests=7), **given)
    assert asked_for == keys * 2


async def test_as_many_agents_are_reserved_at_once_as_calls_of_the_tool_are_still_to_be_decided() -> None:
    names = ("subagent_spawn", "subagent_spawn", "subagent_fork", "subagent_spawn")
    item = {"type": "function_call", "arguments": "{}"}
    phases = (Phase.RUNNING, Phase.PROPOSED, Phase.PROPOSED, Phase.PROPOSED)
    calls = [
        Call(CallId(f"c{n}"), name, {**item, "name": name, "call_id": f"c{n}"}, phase=phase)
        for n, (name, phase) in enumerate(zip(names, phases, strict=True))
    ]
    wanted_at_once: list[int] = []

    class Reserving(FakeTree):
        async def reserve(self, call: str, wanted: int) -> tuple[AgentId, SessionId, str | None]:
            wanted_at_once.append(wanted)
            return await super().reserve(call, wanted)

    facts = SessionFacts(SessionId("s0"), TreeId("s0"), AgentId(0), agent_path="0", tree_rules=TreeRules())
    task = Task(
        SubmissionId("t"), "user", TurnSettings("/", "never", {"mode": "read-only"}, "m"), calls=Calls(calls)
    )
    await asked("subagent_spawn", tree=Reserving(), state=State(facts=facts, task=task), prompt="x")
    assert wanted_at_once == [2]
