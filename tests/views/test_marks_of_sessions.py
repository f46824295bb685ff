"""Marks that the sessions' own logs tell: acts of people, folders that changed, roots taken over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from orchestrator.broker.records import StoredEntry
from orchestrator.core import facts as f
from orchestrator.core.calls.exec import DOUBT
from orchestrator.core.entries import Entry, encode_entry, event, fact
from orchestrator.core.ids import SessionId
from orchestrator.core.sender import Sender
from orchestrator.core.settings import TurnSettings
from orchestrator.core.tree import Mail
from orchestrator.protocol.events import WarningEvent
from orchestrator.protocol.ids import ResponseId, SubmissionId
from orchestrator.views.tree_past import MOST_LOGS, MOST_OF_SESSIONS, NEWEST, Mark, TreePast
from tests.views.test_tree_past import Listed, entry, past_of
from tests.views.test_workspaces import SAID, saved

SETTINGS = TurnSettings("/work", "never", {"mode": "read-only"}, "gpt-5")
USER = SubmissionId("u1")
ANN = Sender("ann")


def mail(**content: Any) -> Entry:
    return fact(
        f.MailReceived(Mail("k", "message", 1, False, 1, {"agent_id": 0}, {"prompt": "x", **content}))
    )


def warned(text: str) -> Entry:
    return event("u1", WarningEvent(message=text))


TELLS: dict[str, tuple[Entry, str, str, str]] = {
    "a task": (fact(f.TaskBegun(USER, "user", SETTINGS, by=ANN)), "person", "words for {}", "ann"),
    "words": (fact(f.Steered(USER, {"type": "message"}, ANN)), "person", "words for {}", "ann"),
    "a letter": (mail(person="ben"), "person", "words for {}", "ben"),
    "a stop": (fact(f.Stopping("interrupted", sender=ANN)), "person", "the turn of {} was stopped", "ann"),
    "a name": (fact(f.Named("n", ANN)), "person", "{} was named", "ann"),
    "settings": (
        fact(f.SettingsChanged({"model": "m"}, ANN)), "person", "settings of {} were changed", "ann",
    ),
    "a way back": (
        fact(f.Rewound(ResponseId("r"), 0, by=ANN)), "person", "turns of {} were taken back", "ann",
    ),
    "a redaction": (
        fact(f.Redacted("s", 1, "d", "ann", "why", {})), "person", "words of {} were redacted", "ann",
    ),
    "a bundle": (
        fact(f.Bundled("d", 1, 1, 0, "k", "ann")), "person", "a bundle was made of the tree of {}", "ann",
    ),
    "a folder": (saved(1), "snapshot", "the folder of {}: 1 file changed", ""),
}  # fmt: skip
"""Entries of a log, each with its mark: the kind, the words, and the person."""
SILENT = {
    "said": SAID,
    "a task of nobody": fact(f.TaskBegun(USER, "user", SETTINGS)),
    "an agent's letter": mail(),
    "a stop of nobody": fact(f.Stopping("interrupted")),
    "a warning": warned("the disk is nearly full"),
}
LOSS = warned(f"call c1 is {DOUBT}while it ran")


class Logs(Listed):
    """A tree's log whose entries come ten milliseconds apart, and sessions' own."""

    def __init__(self, entries: int, own: Mapping[str, Sequence[tuple[Entry, int]]], *agents: str) -> None:
        super().__init__([entry(seq, {"event": "status"}, {}) for seq in range(1, entries + 1)])
        for number, name in enumerate(agents):
            status = name.partition(" ")[2] or "running"
            self.entries[number] = entry(number + 1, *born(number + 1, name.partition(" ")[0], status))
        self.has(own)

    def has(self, own: Mapping[str, Sequence[tuple[Entry, int]]]) -> None:
        self.own = {
            SessionId(name): [
                StoredEntry(seq, 1, encode_entry(told, at_ms, {}).line, b"", b"")
                for seq, (told, at_ms) in enumerate(log, 1)
            ]
            for name, log in own.items()
        }


def born(number: int, session: str, status: str) -> tuple[dict[str, Any], dict[str, Any]]:
    record = {"agent_id": number, "session_id": session, "parent_agent_id": 0, "agent_path": f"0/{number}"}
    more = {"status": status, "turn": "", "label": ""}
    return {"event": "created", "status": status}, {"record": {**record, **more}}


async def marks(past: TreePast, *, takeovers: bool = False) -> tuple[list[Mark], list[Mark]]:
    await past.read_on()
    return await past.marks_of_sessions(takeovers=takeovers)


@pytest.mark.parametrize("what", [*TELLS, *SILENT])
async def test_each_act_of_a_person_and_change_of_a_folder_is_marked_with_its_agent(what: str) -> None:
    told = TELLS[what][0] if what in TELLS else SILENT[what]
    log = [(SAID, 11), (told, 25), (SAID, 26)]
    before, found = await marks(past_of(Logs(4, {"t": log, "a": log, "b": log}, "a", "b")))
    assert before == []
    lines = [(one.seq, one.kind, one.line.text, one.line.agent_id, one.line.who) for one in found]
    if what in SILENT:
        assert lines == []
        return
    _, kind, words, who = TELLS[what]
    names = ("the root", "agent 1", "agent 2")
    assert lines == [(2, kind, words.format(name), number, who) for number, name in enumerate(names)]


@pytest.mark.parametrize(
    ("at_ms", "seq"), [(5, 0), (9, 0), (10, 1), (19, 1), (20, 2), (29, 2), (30, 3), (31, 3), (99, 3)]
)
async def test_mark_stands_at_the_last_entry_of_the_trees_log_that_is_not_behind_it(
    at_ms: int, seq: int
) -> None:
    before, found = await marks(past_of(Logs(3, {"t": [(TELLS["a name"][0], at_ms)]})))
    assert [(one.seq, one.at_ms) for one in (*before, *found)] == [(seq, at_ms)]
    assert len(before) == (seq == 0), "what came before its first entry has no place in it"


async def test_marks_of_all_logs_are_told_in_the_order_of_their_times_and_the_newest_of_many() -> None:
    each = MOST_OF_SESSIONS // 2 + 10
    logs = {
        name: [(fact(f.Named(f"{number}", Sender(f"{name}{number}"))), 100 + 2 * number + offset)
               for number in range(each)]
        for offset, name in enumerate(("t", "a"))
    }  # fmt: skip
    _, found = await marks(past_of(Logs(2, logs, "a")))
    wanted = [f"{name}{number}" for number in range(each) for name in ("t", "a")]
    assert [one.line.who for one in found] == wanted[-MOST_OF_SESSIONS:]


async def test_log_that_grows_is_read_on_and_one_that_was_put_back_is_read_anew() -> None:
    def named(*names: str) -> list[tuple[Entry, int]]:
        return [(fact(f.Named(name, Sender(name))), 10 + at) for at, name in enumerate(names)]

    logs = Logs(2, {"t": named("one"), "a": named("two")}, "a")
    past = past_of(logs)
    for own, wanted in (
        ({"t": named("one"), "a": named("two")}, {"one", "two"}),
        ({"t": named("one", "three"), "a": named("two")}, {"one", "two", "three"}),
        ({"t": named("one", "three"), "a": named("two", "four")}, {"one", "two", "three", "four"}),
        ({"t": named("other"), "a": named("two", "four")}, {"other", "two", "four"}),
        ({"t": named("other"), "a": []}, {"other"}),
        ({"t": named("other", "six"), "a": named("new")}, {"other", "six", "new"}),
    ):  # fmt: skip
        logs.has(own)
        for _ in range(2):
            _, found = await marks(past)
            assert sorted(one.line.who for one in found) == sorted(wanted), "each once"


async def test_newest_entries_of_a_long_log_are_looked_at_and_whatever_comes_behind_them() -> None:
    name, long = TELLS["a name"][0], [(SAID, 12)] * (NEWEST - 1)
    logs = Logs(2, {"t": [(name, 11), (name, 12), *long]})
    past = past_of(logs)
    assert [one.at_ms for one in (await marks(past))[1]] == [12], "the one before is too long ago"
    logs.has({"t": [(name, 11), (name, 12), *long, (name, 13), (SAID, 14), (name, 15)]})
    assert [one.at_ms for one in (await marks(past))[1]] == [12, 13, 15]


async def test_logs_of_the_root_and_of_those_at_work_are_read_first() -> None:
    name = TELLS["a name"][0]
    agents = [f"a{number} {'running' if number % 2 else 'canceled'}" for number in range(2 * MOST_LOGS)]
    own = {each.partition(" ")[0]: [(name, 500)] for each in agents}
    _, found = await marks(past_of(Logs(len(agents), {"t": [(name, 500)], **own}, *agents)))
    assert len(found) == MOST_LOGS
    numbers = sorted(one.line.agent_id or 0 for one in found)
    assert numbers[0] == 0
    assert all(number % 2 == 0 for number in numbers), "the second, the fourth, … are at work"


@pytest.mark.parametrize("takeovers", [True, False])
@pytest.mark.parametrize("agents", [0, 1])
async def test_takeover_of_the_root_alone_is_told_of_by_its_own_log_and_only_where_it_is_asked_for(
    agents: int, takeovers: bool
) -> None:
    own = {"t": [(LOSS, 15), (LOSS, 15), (TELLS["a name"][0], 16)], "a": [(LOSS, 15)]}
    _, found = await marks(past_of(Logs(2, own, *["a"][:agents])), takeovers=takeovers)
    kinds = [(one.kind, one.line.agent_id) for one in found]
    assert kinds == [*([("takeover", 0)] if takeovers else []), ("person", 0)]


@pytest.mark.parametrize(("apart_ms", "again"), [(0, False), (999, False), (-999, False), (1_000, True)])
async def test_takeover_that_the_trees_log_tells_of_too_is_told_once(apart_ms: int, again: bool) -> None:
    logs = Logs(2, {"t": [(LOSS, 5_000 + apart_ms)]})
    taken = entry(500, {"event": "updated", "agent_id": 0}, {"agent_id": 0, "takeover": 2})
    logs.entries.append(taken)
    assert taken.at_ms == 5_000
    _, found = await marks(past_of(logs), takeovers=True)
    assert len(found) == again


async def test_root_whose_tree_has_no_log_is_told_of_by_its_own_where_takeovers_are_asked_for() -> None:
    logs = Logs(0, {"t": [(TELLS["a name"][0], 5), (LOSS, 6)]})
    assert await marks(past_of(logs)) == ([], [])
    before, found = await marks(past_of(logs), takeovers=True)
    assert ([(one.seq, one.kind) for one in before], found) == ([(0, "person"), (0, "takeover")], [])
