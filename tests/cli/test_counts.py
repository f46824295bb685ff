"""Counts are said in the same words by every command."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from orchestrator.broker.records import Account, BudgetKind, Registry
from orchestrator.core.counts import counted
from orchestrator.core.ids import TreeId
from orchestrator.terminal.live import Live
from orchestrator.terminal.tree_view import budget_parts
from tests.cli.machine import Machine, says
from tests.cli.parked_tree import parked_tree


@pytest.mark.parametrize(
    ("number", "noun", "said"),
    [
        (0, "agent", "0 agents"),
        (1, "agent", "1 agent"),
        (1_200, "token", "1,200 tokens"),
        (1, "entry", "1 entry"),
        (2, "entry", "2 entries"),
    ],
)
def test_person_reads_a_count_with_its_noun(number: int, noun: str, said: str) -> None:
    assert counted(number, noun) == said


def test_person_reads_of_one_token_and_one_request_what_is_true_of_one() -> None:
    assert Live(Console(file=io.StringIO())).figures({"blended_total": 1}) == "1 token"


def test_person_reads_a_budget_without_a_limit_in_the_words_of_the_agent() -> None:
    accounts: dict[BudgetKind, Account] = {
        "tokens": Account("tokens", 1_200, 0, None),
        "requests": Account("requests", 1, 0, None),
    }
    registry = Registry(TreeId("t"), 0, {}, {}, {}, accounts, {}, {})
    assert [part for part, _ in budget_parts(registry)] == ["1,200 tokens", "1 request"]


@pytest.mark.realredis
def test_person_reads_the_same_counts_of_a_session_from_every_command(machine: Machine) -> None:
    with machine.model(says("The moon is made of basalt.")) as user:
        ran = user.run("run", "what is the moon made of?")
    (used,) = re.findall(r"^([\d,]+ tokens), 100% of the context left · ", ran.stderr, re.M)
    (row,) = machine.sessions()
    session = row["session_id"]
    assert used == counted(row["blended_total"], "token")
    drawn = machine.run("tree", session, "--once").stdout
    assert drawn.count(f" · {used}") == 2, f"of the agent and of its tree: {drawn}"
    assert "requests 1 of " in drawn
    assert re.search(rf"^tokens +{used.split()[0]} ", machine.run("budget", session).stdout, re.M)

    exported = machine.run("export", session, "session.jsonl", "--full").stderr
    (entries,) = re.findall(r": (\d+ entries), ", exported)
    for source in (session, "session.jsonl"):
        assert f": {entries} follow from each other" in machine.run("verify", source).stdout
    (stand,) = re.findall(r"([\d,]+) stand in the file", exported)
    assert f" {stand} that stand in the file" in machine.run("import", "session.jsonl").stderr


@pytest.mark.realredis
def test_person_reads_how_many_agents_there_are_from_every_command(machine: Machine) -> None:
    with parked_tree(machine) as trees:
        assert trees.says("tree", trees.root).splitlines()[1].startswith("7 agents made, 1 at work of ")
        assert re.search(r" 7: [^ ]* ?", trees.says("sessions"))
        code, why = trees.refused("rm", trees.root)
        assert code == 2
        assert "is not done: " in why
        removed = trees.says("rm", trees.root, "--force", "--yes")
        assert removed.endswith(" and its 7 agents, 8 rollout files\n")
