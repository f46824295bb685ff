"""Lists: each text, status and folder that filters look at, and nothing else; orders and limits of rows."""

from __future__ import annotations

from itertools import permutations, product
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from orchestrator.broker.records import DaySpend, Spend, TreeAccount
from orchestrator.gateways.app_server.methods import fleet
from orchestrator.views.fleet import FleetFilter
from orchestrator.views.sessions import Filter
from orchestrator.views.spend import spend_of
from orchestrator.views.thread_list import ThreadFilter

ROOT_ID = "01a3185c-5000-7000-b0a1-e61358a8daf5"
NOTHING: dict[str, Any] = {
    "name": None,
    "title": None,
    "label": None,
    "cwd": None,
    "status": "idle",
    "model": "m",
}


@pytest.mark.parametrize("member", ["name", "title", "label", "cwd", "model", "status"])
@pytest.mark.parametrize("said", ["Parser", "the PARSER of it", "arser"])
def test_words_are_looked_for_in_name_first_words_label_and_folder(member: str, said: str) -> None:
    row = {**NOTHING, member: said}
    assert Filter("parser").wants(row) is (member in ("name", "title", "label", "cwd") and said != "arser")


@pytest.mark.parametrize(
    ("folder", "cwd", "lies"),
    [
        ("", None, True),
        ("/a", None, False),
        ("/a", "/a", True),
        ("/a", "/a/b", True),
        ("/a", "/ab", False),
        ("/a/b", "/a", False),
    ],
)
@pytest.mark.parametrize("statuses", [(), ("idle",), ("running",), ("running", "idle")])
@pytest.mark.parametrize("text", ["", "word", "other"])
def test_session_is_listed_where_each_part_of_the_filter_wants_it(
    folder: str, cwd: str | None, lies: bool, statuses: tuple[str, ...], text: str
) -> None:
    row = {**NOTHING, "cwd": cwd, "title": "a word"}
    stands = not statuses or "idle" in statuses
    assert Filter(text, frozenset(statuses), folder).wants(row) is (lies and stands and text != "other")


@pytest.mark.parametrize("pool", ["", "gpu", "cpu"])
@pytest.mark.parametrize("who", ["", "ann", "ben"])
@pytest.mark.parametrize("text", ["", "Fix", "none"])
def test_tree_is_listed_where_each_part_of_the_filter_wants_it(pool: str, who: str, text: str) -> None:
    head = SimpleNamespace(pool="gpu", labels=SimpleNamespace(who="ann"))
    wanted = pool in ("", "gpu") and who in ("", "ann") and text in ("", "Fix")
    assert FleetFilter(text, pool, who).wants(cast(Any, head), "fix it\n/home/ann\nann") is wanted


MEMBERS = {
    "preview": "first WORDS",
    "name": "a name of Words",
    "cwd": "/home/words",
    "model": "words",
    "effort": "words",
}


@pytest.mark.parametrize("member", MEMBERS)
def test_thread_is_found_by_its_first_words_its_name_and_its_folder(member: str) -> None:
    known = {"preview": "", "name": None, "cwd": "/w", "model": "m", "effort": None} | {
        member: MEMBERS[member]
    }
    thread = SimpleNamespace(
        ephemeral=False, spawned=None, source="cli", begun=True, model_provider="p", **known
    )
    wanted = member in ("preview", "name", "cwd")
    assert ThreadFilter(text="words").wants(cast(Any, thread)) is wanted


def test_thread_is_listed_where_each_part_of_the_filter_wants_it() -> None:
    choices = product(
        [frozenset(), frozenset({"/w/"}), frozenset({"/x"}), frozenset({"/x", "/w"})],
        [frozenset(), frozenset({"p"}), frozenset({"q"})],
        [frozenset({"cli"}), frozenset({"exec"}), frozenset({"cli", "exec"})],
        ["", "hello", "none"],
        [True, False],
        [True, False],
    )
    for cwds, providers, kinds, text, ephemeral, begun in choices:
        thread = SimpleNamespace(
            ephemeral=ephemeral,
            spawned=None,
            source="cli",
            begun=begun,
            cwd="/w",
            model_provider="p",
            preview="Hello",
            name=None,
        )
        wants = ThreadFilter(cast(Any, kinds), cwds, text=text, providers=providers).wants(cast(Any, thread))
        assert wants is (
            not ephemeral
            and begun
            and "cli" in kinds
            and (not cwds or "/w" in cwds or "/w/" in cwds)
            and (not providers or "p" in providers)
            and text != "none"
        )


@pytest.mark.parametrize(
    ("limits", "nearest"),
    [
        ({}, None),
        ({"tokens": 1_000}, "tokens"),
        ({"tokens": 1_000, "cost": 1_000}, "cost"),
        ({"tokens": 500, "cost": 10_000}, "tokens"),
        ({"tokens": 1_000, "cost": 10_000, "requests": 4}, "requests"),
        ({"requests": 300, "cost": 300, "tokens": 300}, "cost"),
        ({"tokens": 1_000, "requests": 0}, "requests"),
    ],
)
def test_row_of_a_tree_tells_the_limit_of_which_the_largest_part_is_spent(
    limits: dict[str, int], nearest: str | None
) -> None:
    used = Spend(tokens=100, cost=200, requests=3)
    spent = {"tokens": 100, "cost": 200, "requests": 3}
    row = SimpleNamespace(account=TreeAccount(used, limits))
    told = None if nearest is None else {"kind": nearest, "spent": spent[nearest], "limit": limits[nearest]}
    assert fleet._budget(cast(Any, row)) == told


DAYS = (
    DaySpend("2026-01-01", "", "cheap", "ann", Spend(900, 1, 1)),
    DaySpend("2026-01-01", "", "dear", "ann", Spend(10, 70, 1)),
    DaySpend("2026-01-02", "", "dear", "ann", Spend(10, 5, 1)),
    DaySpend("2026-01-02", "", "long", "ann", Spend(20, 5, 1)),
)


@pytest.mark.parametrize("found", [*permutations(DAYS)])
async def test_spend_is_told_by_day_and_the_costliest_first_within_one(found: tuple[DaySpend, ...]) -> None:
    trees = SimpleNamespace(spent_on=AsyncMock(return_value=found))
    broker = SimpleNamespace(server_ms=AsyncMock(return_value=1), trees=trees)
    table = await spend_of(cast(Any, broker), 2, ("day", "model"))
    assert [(row.day[-1], row.model) for row in table.rows] == [
        ("1", "dear"),
        ("1", "cheap"),
        ("2", "long"),
        ("2", "dear"),
    ]


@pytest.mark.parametrize(
    ("agent", "standing", "status", "state"),
    [
        (0, "ready", "idle", "idle"),
        (1, "ready", "idle", "ready"),
        (0, "failed", "idle", "failed"),
        (1, "failed", "idle", "failed"),
        (0, "running", "running", "working"),
        (1, "running", "running", "working"),
    ],
)
def test_agent_of_a_tree_is_ready_with_a_result_and_its_root_is_idle(
    agent: int, standing: str, status: str, state: str
) -> None:
    picture = SimpleNamespace(agent_id=agent, standing=standing, status=status)
    assert fleet._agent_state(cast(Any, picture)) == state


@pytest.mark.parametrize("entries", range(6))
@pytest.mark.parametrize("limit", [1, 2, 3, 6])
async def test_pages_of_a_trees_log_have_each_entry_once_and_none_behind_the_first(
    entries: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = [SimpleNamespace(tree_seq=seq) for seq in range(entries, 0, -1)]

    async def back(tree: str, before: int | None, most: int) -> list[SimpleNamespace]:
        return [entry for entry in log if before is None or entry.tree_seq < before][:most]

    logs = SimpleNamespace(read_tree_back=back)
    ports = SimpleNamespace(found=SimpleNamespace(broker=SimpleNamespace(logs=logs)))
    monkeypatch.setattr(fleet, "_root", AsyncMock(return_value=SimpleNamespace(tree="t")))
    monkeypatch.setattr(fleet, "_log_row", lambda entry: entry.tree_seq)
    pages, before = list[list[int]](), None
    while before is not None or not pages:
        asked = fleet.TreeLog(treeId=ROOT_ID, before=before, limit=limit)
        page: Any = await fleet.tree_log_page(cast(Any, SimpleNamespace(ports=ports)), asked)
        pages.append(page["data"])
        before = page["nextBefore"]
    assert [seq for page in pages for seq in page] == [*range(entries, 0, -1)]
    assert all(pages) or not entries
