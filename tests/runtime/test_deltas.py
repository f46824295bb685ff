"""Deltas on their way to the people: early, never too late, and not in the log unless asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.records import Claim, CommitRequest, Committed, Refused
from orchestrator.core.commit_parts import NewEvent
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import Rules
from orchestrator.model.prompt import ItemAdded, ItemDone, ReasoningRawDelta, TextDelta
from orchestrator.model.provider_errors import RetryableModelError
from orchestrator.protocol import ops
from orchestrator.protocol.plans import PlanRequest
from orchestrator.protocol.scalars import CollaborationMode, ItemEvents
from orchestrator.runtime.committing import PIECE_CHARS, TAKEN_BYTES, Delta, Deltas, Writing
from orchestrator.runtime.journal import Step, Writer
from orchestrator.runtime.loader import BEGINNING
from orchestrator.runtime.runner import Ended
from orchestrator.runtime.step import Decisions
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import calls, ends, message


async def test_deltas_come_before_the_text_that_they_lead_up_to(harness: Harness) -> None:
    session = await harness.session()
    words = [TextDelta(f"word{number} ") for number in range(50)]
    harness.models.will([*words, message("all of them"), ends()])
    await harness.say(session)
    task = asyncio.create_task(harness.run(session))
    events = await harness.until(session, "task_complete")
    await task
    kinds = [event.type for event in events]
    text = "".join(e.msg["delta"] for e in events if e.type == "agent_message_delta")
    assert text == "".join(f"word{number} " for number in range(50))
    assert max(i for i, k in enumerate(kinds) if k == "agent_message_delta") < kinds.index("agent_message")
    assert not await harness.logged_events(session, "agent_message_delta")


async def test_deltas_are_shown_while_the_text_is_still_coming(harness: Harness) -> None:
    session, silence = await harness.session(), Gate()
    harness.models.will([TextDelta("early"), silence, message("early and late"), ends()])
    await harness.say(session)
    task = asyncio.create_task(harness.run(session))
    assert (await harness.until(session, "agent_message_delta"))[-1].msg["delta"] == "early"
    assert not silence.opened.is_set()
    silence.open()
    await task


@pytest.mark.parametrize("shown", [False, True])
async def test_raw_reasoning_is_shown_to_those_who_asked_for_it(harness: Harness, shown: bool) -> None:
    session = await harness.session()
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm, so."}]}
    harness.models.will([ReasoningRawDelta("Hm, "), ItemDone(thought), message("So."), ends()])
    await harness.say(session)
    await harness.run(session, rules=Rules(show_raw_reasoning=shown))
    kinds = {event.type for event in await harness.until(session, "task_complete")}
    raw = {"agent_reasoning_raw_content_delta", "agent_reasoning_raw_content"}
    assert kinds & raw == (raw if shown else set())


async def test_raw_reasoning_of_an_item_is_shown_under_the_items_name(harness: Harness) -> None:
    session = await harness.session()
    thought = {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm, so."}]}
    harness.models.will(
        [ItemAdded({"id": "rs_1", **thought}), ReasoningRawDelta("Hm, "), ItemDone(thought), ends()]
    )
    await harness.submit(session, ops.ConfigureSession(item_events=ItemEvents.ALL))
    task = await harness.say(session)
    await harness.run(session, rules=Rules(show_raw_reasoning=True))
    told = [event.msg for event in await harness.until(session, "task_complete")]
    (delta,) = (msg for msg in told if msg["type"] == "reasoning_raw_content_delta")
    named = (delta["turn_id"], delta["item_id"], delta["content_index"])
    assert (*named, delta["delta"]) == (task, "rs_1", 0, "Hm, ")


async def test_text_of_an_item_that_no_provider_has_begun_is_shown_under_the_items_name(
    harness: Harness,
) -> None:
    session = await harness.session()
    harness.models.will([TextDelta("Hm"), message("Hm"), ends()])
    await harness.submit(session, ops.ConfigureSession(item_events=ItemEvents.ALL))
    task = await harness.say(session)
    await harness.run(session)
    told = [event.msg for event in await harness.until(session, "task_complete")]
    (delta,) = (msg for msg in told if msg["type"] == "agent_message_content_delta")
    done = [msg["item"]["id"] for msg in told if msg["type"] == "item_completed"]
    assert delta["item_id"] == done[-1] == f"{task}-1-1"


async def plans(harness: Harness, session: SessionId) -> None:
    """Runs a turn in plan mode."""
    given = {"model": "gpt-5", "reasoning_effort": None, "developer_instructions": None}
    mode = CollaborationMode.model_validate({"mode": "plan", "settings": given})
    await harness.submit(session, ops.OverrideTurnContext(collaboration_mode=mode))
    await harness.say(session)
    await harness.run(session)


async def test_plan_is_what_the_whole_message_says_and_not_what_its_pieces_said(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will(
        [
            TextDelta("See\n<proposed_plan>\n- early\n"),
            message("Here\n<proposed_plan>\n- late\n</proposed_plan>"),
            ends(),
        ]
    )
    await plans(harness, session)
    told = [event.msg for event in await harness.until(session, "task_complete")]
    assert "".join(msg["delta"] for msg in told if msg["type"] == "plan_delta") == "- early\n"
    assert [msg["item"]["text"] for msg in told if msg["type"] == "item_completed"] == ["- late"]
    assert [msg["message"] for msg in told if msg["type"] == "agent_message"] == ["Here"]
    (kept,) = await harness.logged_events(session, "item_completed")
    assert kept["item"]["text"] == "- late"
    assert not await harness.logged_events(session, "plan_delta")
    assert not await harness.logged_events(session, "item_started")


@pytest.mark.parametrize("before", ["", "Intro\n"])
async def test_plan_of_a_message_that_no_provider_has_begun_is_shown_as_a_plan(
    harness: Harness, before: str
) -> None:
    session = await harness.session()
    pieces = [*(f"{before}<proposed_plan>\n- a", "\n- b\n", "</proposed_plan>\n"), "Outro"]
    harness.models.will([*map(TextDelta, pieces), message("".join(pieces)), ends()])
    await plans(harness, session)
    told = [event.msg for event in await harness.until(session, "task_complete")]
    items = [m["type"] for m in told if m["type"] in ("item_started", "item_completed")]
    assert items == ["item_started", "item_completed"]
    for kind, text in (("plan_delta", "- a\n- b\n"), ("agent_message_delta", f"{before}Outro")):
        assert "".join(m["delta"] for m in told if m["type"] == kind) == text


async def test_plan_whose_stream_breaks_begins_anew_and_is_completed_once(harness: Harness) -> None:
    session = await harness.session()
    whole = "<proposed_plan>\n- a\n</proposed_plan>"
    harness.models.will(
        [TextDelta("<proposed_plan>\n- lost\n"), RetryableModelError("cut", delay_s=0.01)],
        [TextDelta(whole), message(whole), ends()],
    )
    await plans(harness, session)
    told = [event.msg for event in await harness.until(session, "task_complete")]
    shown = [m["type"] for m in told if m["type"] in ("item_started", "item_completed", "stream_error")]
    assert shown == ["item_started", "stream_error", "item_started", "item_completed"]
    (kept,) = await harness.logged_events(session, "item_completed")
    assert kept["item"]["text"] == "- a"


async def test_plan_that_comes_whole_begins_before_it_is_completed(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([message("<proposed_plan>\n- a"), ends()])
    await plans(harness, session)
    told = [event.type for event in await harness.until(session, "task_complete")]
    assert [kind for kind in told if kind.startswith("item_")] == ["item_started", "item_completed"]


async def test_end_of_a_message_that_only_looks_like_a_tag_is_shown(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([TextDelta("Intro\n"), TextDelta("<propo"), message("Intro\n<propo"), ends()])
    await plans(harness, session)
    told = [event.msg for event in await harness.until(session, "task_complete")]
    assert "".join(m["delta"] for m in told if m["type"] == "agent_message_delta") == "Intro\n<propo"


async def test_planning_session_shows_no_piece_of_what_its_model_says(harness: Harness) -> None:
    session = await harness.session()
    harness.models.will([TextDelta("I read on."), message("I read on."), ends()])
    await harness.submit(session, ops.Plan(plan_request=PlanRequest(goal="Add login")))
    await harness.run(session)
    told = {event.type for event in await harness.until(session, "task_complete")}
    assert "entered_plan_mode" in told
    assert not told & {"agent_message", "agent_message_delta", "agent_message_content_delta"}


async def test_deltas_join_the_rollout_where_the_setting_asks_for_it(harness: Harness) -> None:
    session = await harness.session()
    harness.tools.deltas["c1"] = ["b25l", "dHdv"]
    harness.models.will([TextDelta("Well"), message("Well"), calls("c1"), ends()])
    await harness.say(session)
    assert await harness.run(session, rollout_deltas=True) is Ended.PARKED
    kinds = [event["type"] for event in await harness.logged_events(session)]
    assert kinds.index("agent_message_delta") < kinds.index("agent_message")
    assert kinds.count("exec_command_output_delta") == 2
    assert kinds.index("exec_command_begin") < kinds.index("exec_command_output_delta")
    assert await harness.digest(session) == await harness.live_digest(session)


async def test_megabytes_that_come_at_once_are_shown_in_small_events_and_their_step_is_committed(
    harness: Harness,
) -> None:
    session = await harness.session()
    text = "so it is " * 300_000
    harness.models.will([TextDelta(text), TextDelta("."), message("all of it"), ends()])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    shown = [e for e in await harness.until(session, "task_complete") if e.type == "agent_message_delta"]
    assert "".join(event.msg["delta"] for event in shown) == text + "."
    assert max(len(event.msg["delta"]) for event in shown) <= PIECE_CHARS


TEXTS: Mapping[str, Callable[[str], dict[str, Any]]] = {
    "of an answer": lambda text: {"type": "agent_message_delta", "delta": text},
    "of an item": lambda text: {
        "type": "agent_message_content_delta",
        "thread_id": "t" * 36,
        "item_id": "i" * 50,
        "delta": text,
    },
    "of a command": lambda text: {"type": "exec_command_output_delta", "chunk": text},
}


def many(deltas: Deltas) -> bool:
    return deltas.many


def written(told: Mapping[str, Any]) -> int:
    return len(orjson.dumps({"id": "t", "msg": told}))


@pytest.mark.parametrize("letter", ["x", "\n", "ä", "€", "😀", "\x00"])
@pytest.mark.parametrize("kind", TEXTS)
def test_more_than_256_kib_of_deltas_as_they_are_written_are_many_for_a_commit(
    kind: str, letter: str
) -> None:
    deltas, told = Deltas(), TEXTS[kind](letter * 4_000)
    count = TAKEN_BYTES // written(told)
    for number in range(count):
        # Others come between: what continues the last one is joined to it.
        deltas.add(f"{number % 2}", told)
    output = TEXTS["of a command"]
    left = TAKEN_BYTES - count * written(told) - written(output(""))
    if left >= 0:
        deltas.add("t", output("x" * left))
    assert not many(deltas)
    deltas.add("t", {"type": "warning", "message": ""})
    assert many(deltas)
    deltas.take(1)
    assert not many(deltas)


@pytest.mark.parametrize("letter", ["x", "€", "\n"])
async def test_step_carries_no_delta_behind_what_it_leads_up_to_however_much_came_before(letter: str) -> None:
    """Redis is away while a text of a megabyte comes, and its message with it."""
    sent: list[tuple[str, Sequence[NewEvent]]] = []

    async def emit(claim: Claim, events: Sequence[NewEvent]) -> None:
        sent.append(("emit", events))

    async def commit(request: CommitRequest, successor: object) -> Committed:
        sent.append(("commit", request.events))
        return Committed(1, b"\0" * 32, "0-0", 0, False, 0, 0, last_commit="c")

    commits = SimpleNamespace(emit=emit, commit=commit)
    broker = SimpleNamespace(commits=commits, config=SimpleNamespace(core_version=1))
    folders = SimpleNamespace(machine="m")
    ports: Any = SimpleNamespace(
        broker=broker, folders=folders, random_bytes=bytes, spawn=lambda work, name: work.close()
    )
    claim: Any = SimpleNamespace(session="s", tree="t")
    writing = Writing(ports, claim, "")
    pieces = [letter * 3_000 for _ in range(400)]
    for piece in pieces:
        writing.delta(Delta("t", {"type": "agent_message_delta", "delta": piece}), BEGINNING)
    step = Step(BEGINNING, Writer(1, bytes), 0)
    step.show(NewEvent(b"{}", 0, ""))
    await writing.commit(step, "0-0", "keep", None)
    told = [event.payload for _, events in sent for event in events]
    assert told.pop() == b"{}"
    assert "".join(orjson.loads(each)["msg"]["delta"] for each in told) == "".join(pieces)
    assert [kind for kind, _ in sent] == [*["emit"] * (len(sent) - 1), "commit"]
    assert all(sum(len(event.payload) for event in events) < 300_000 for _, events in sent)


async def test_commit_that_is_refused_leaves_its_deltas_and_its_core_version_to_the_next() -> None:
    sent: list[CommitRequest] = []
    done = Committed(1, b"\0" * 32, "0-0", 0, False, 0, 0, last_commit="c")

    async def commit(request: CommitRequest, successor: object) -> Committed | Refused:
        sent.append(request)
        return Refused("marked", "") if len(sent) == 1 else done

    broker = SimpleNamespace(commits=SimpleNamespace(commit=commit), config=SimpleNamespace(core_version=7))
    folders = SimpleNamespace(machine="m")
    ports: Any = SimpleNamespace(
        broker=broker, folders=folders, restore=None, random_bytes=bytes, spawn=lambda work, _: work.close()
    )
    writing = Writing(ports, cast(Any, SimpleNamespace(session="s", tree="t")), "")
    writing.delta(Delta("t", {"type": "agent_message_delta", "delta": "one"}), BEGINNING)
    for _ in range(3):
        await writing.commit(Step(BEGINNING, Writer(1, bytes), 0), "0-0", "keep", None)
    assert [len(request.events) for request in sent] == [1, 1, 0]
    # An older worker may not take the session from its first entries on.
    assert [request.min_core for request in sent] == [7, 7, None]
    assert [request.expect_commit for request in sent] == ["", "", "c"]


@pytest.mark.parametrize("running", ["t1", "t2"])
@pytest.mark.parametrize("behind_entries", [False, True])
def test_delta_of_a_task_that_is_over_is_shown_only_if_it_is_a_process_s(
    behind_entries: bool, running: str
) -> None:
    sent, step = list[str](), cast(Any, SimpleNamespace(entries=[b""] * behind_entries, base=BEGINNING))
    step.show = lambda event: sent.append("with the step")
    step.position = SimpleNamespace(state=SimpleNamespace(task=SimpleNamespace(id=running)), seq=1, head=b"")
    own: Any = SimpleNamespace(
        _writing=SimpleNamespace(delta=lambda delta, base: sent.append("by itself")),
        _bisect=SimpleNamespace(arrived=[0]),
    )
    told = {"type": "agent_message_delta", "delta": "x"}
    for delta in (Delta("t1", told), Delta("t1", told, lasting=True)):
        Decisions._show(own, step, delta)
        own._bisect.arrived = [0]
    way = "with the step" if behind_entries else "by itself"
    assert sent == [way] * (2 if running == "t1" else 1)


async def test_delta_behind_a_finished_text_is_shown_though_the_text_is_not_in_the_log_yet(
    harness: Harness,
) -> None:
    session = await harness.session()
    harness.models.will([TextDelta("one"), message("one"), TextDelta("two"), message("two"), ends()])
    await harness.say(session)
    await harness.run(session)
    events = await harness.until(session, "task_complete")
    shown = [event.msg for event in events if event.type in ("agent_message", "agent_message_delta")]
    assert [msg.get("delta") or msg["message"] for msg in shown] == ["one", "one", "two", "two"]


def test_text_that_continues_an_earlier_one_stays_behind_what_came_between() -> None:
    deltas = Deltas()
    told = {"type": "agent_message_delta", "delta": "one "}
    other = {"type": "agent_reasoning_delta", "delta": "hm"}
    for one in (told, other, {**told, "delta": "two"}):
        deltas.add("t1", one)
    shown = [orjson.loads(event.payload)["msg"]["delta"] for event in deltas.take(1)]
    assert shown == ["one ", "hm", "two"]


def test_text_of_another_task_or_of_a_kind_that_is_not_joined_stands_alone() -> None:
    deltas = Deltas()
    told = {"type": "agent_message_delta", "delta": "one "}
    for task, one in (("t1", told), ("t2", told), ("t2", told), ("t2", {"type": "warning"})):
        deltas.add(task, one)
    shown = [orjson.loads(event.payload) for event in deltas.take(1)]
    assert [(event["id"], event["msg"].get("delta")) for event in shown] == [
        ("t1", "one "),
        ("t2", "one one "),
        ("t2", None),
    ]


@pytest.mark.parametrize("place", ["item_id", "summary_index", "content_index"])
def test_text_of_another_item_or_part_is_not_joined_to_the_one_before(place: str) -> None:
    deltas, told = Deltas(), {"type": "reasoning_content_delta", "item_id": "r", "summary_index": 0}
    for at in (1, 1, 2, 1):
        deltas.add("t", {**told, "content_index": 0, place: at, "delta": f"{at} "})
    shown = [orjson.loads(event.payload)["msg"] for event in deltas.take(1)]
    assert [(one[place], one["delta"]) for one in shown] == [(1, "1 1 "), (2, "2 "), (1, "1 ")]


def test_deltas_of_a_refused_commit_are_sent_with_the_next_one_before_what_came_since() -> None:
    deltas = Deltas()
    for text in ("one ", "two "):
        deltas.add("t", {"type": "agent_message_delta", "delta": text})
    assert len(deltas.take(3)) == 1
    deltas.add("t", {"type": "agent_message_delta", "delta": "three"})
    deltas.give_back()
    told = [orjson.loads(event.payload)["msg"]["delta"] for event in deltas.take(4)]
    assert "".join(told) == "one two three"
    deltas.give_back()
    assert deltas
    deltas.take(5)
    assert not deltas
