"""Filters of lists: each text, status and folder of a session that they look at, and nothing else."""

from __future__ import annotations

from itertools import product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.views.fleet import FleetFilter
from orchestrator.views.sessions import Filter
from orchestrator.views.thread_list import ThreadFilter

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
