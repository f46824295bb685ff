"""The tree's commands as people use them: real processes, a real worker, a tree of seven agents."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.cli.cancel import _cancel
from orchestrator.cli.invocation import Invocation, opened
from orchestrator.core.ids import AgentId, TreeId
from orchestrator.core.settings import NO_HISTORY
from orchestrator.gateways.resume import greeting
from orchestrator.gateways.submit import all_below_at_rest, decide
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.terminal.faults import ExitCode
from orchestrator.views.approvals import open_requests_of
from orchestrator.views.find import Addressed, find
from orchestrator.wiring import cancelling
from orchestrator.wiring.open_deployment import Opened
from tests.cli.machine import Machine
from tests.cli.parked_tree import (
    ASKER,
    FAILING,
    HELLO,
    HISTORIAN,
    READER,
    TESTS,
    WAITER,
    ParkedTree,
    deaf_worker,
    parked_tree,
    worker,
)
from tests.servers import start_redis
from tests.views.test_threads import head

pytestmark = pytest.mark.realredis


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ParkedTree]:
    """A tree, on a server of its own, for those who only look or change what nobody else looks at."""
    with start_redis(tmp_path_factory.mktemp("standing-redis")) as server:
        machine = Machine.at(tmp_path_factory.mktemp("standing"), server.url)
        with parked_tree(machine, "-c", "agents.budget_tokens=5000000") as found:
            yield found


@pytest.fixture
def trees(machine: Machine) -> Iterator[ParkedTree]:
    with parked_tree(machine) as found:
        yield found


def test_person_sees_who_waits_for_whom(standing: ParkedTree) -> None:
    drawn = standing.says("tree", standing.root)
    assert "7 agents made, 1 at work of" in drawn
    assert re.search(rf"^0 root  waiting .* waits for agents {ASKER} \(at most \d+m more\)", drawn, re.M)
    assert re.search(rf"├── {ASKER} asker  awaiting_approval .* waits for an approval", drawn)
    assert "? outside the sandbox: git count-objects -v" in drawn
    assert re.search(rf"│   └── {READER} reader", drawn), "two levels deep"
    assert f"{FAILING} failing  failed" in drawn

    told = standing.tree()
    statuses = {agent["agent_id"]: agent.get("status") for agent in told["agents"]}
    assert statuses[ASKER] == "running"
    assert {statuses[number] for number in (HELLO, TESTS, WAITER, HISTORIAN, READER)} <= {"idle", "ready"}
    assert standing.agent(READER)["agent_path"] == f"0/{HELLO}/{READER}"
    assert standing.agent(ASKER)["waits_for"] == "an approval"
    assert told["counters"]["spawned"] == 7
    assert told["limits"]["spawned"] == 200


def test_person_reads_what_an_agent_did(standing: ParkedTree) -> None:
    asked = standing.says("logs", standing.root, str(WAITER))
    assert "» Wait for orders." in asked
    assert "the turn was interrupted" in asked
    assert "» Count the test files instead" in asked

    assert "⚡ from agent 0: Count the test files instead" in asked
    assert "✉ to agent 0: ready\n" in asked
    root = standing.says("logs", standing.root, "--limit", "0")
    assert f"⚡ to agent {WAITER}: Count the test files instead" in root
    assert f"✉ from agent {FAILING} (failing): failed: " in root
    assert re.search(rf"^✉ from agent {HELLO} \(hello\): ready: hello", root, re.M)

    own = standing.agent(WAITER)["session_id"]
    assert standing.says("logs", own) == asked, "an agent is also named by its own session"
    assert len(standing.says("logs", own, "--limit", "3", "--json").splitlines()) == 3
    assert len(standing.says("logs", standing.root, "--limit", "12").splitlines()) >= 12, (
        "each shows something"
    )
    assert "git count-objects -v" in standing.says("logs", standing.root, str(ASKER)), "what it asks for"
    assert f"+ agent {FAILING} (failing) was made" in standing.says("logs", standing.root)

    whole = standing.says("logs", standing.root, "--json").splitlines()
    place, pages = "", list[str]()
    while not pages or place:
        earlier = ("--before", place) if place else ()
        page = standing.run("logs", standing.root, "--json", "--limit", "25", *earlier)
        pages = page.stdout.splitlines() + pages
        place = page.stderr.partition("there is more: --before ")[2].strip()
    assert pages == whole

    code, words = standing.refused("logs", standing.root, "12")
    assert (code, "there are 1, 2, 3, 4, 5, 6, 7" in words) == (1, True)
    assert standing.refused("logs", "ffff", "1")[0] == 1


def test_person_allows_by_pattern_and_the_tree_goes_on(trees: ParkedTree) -> None:
    listed = trees.says("approvals")
    assert f"0/{ASKER}" in listed
    assert "run git count-objects -v" in listed
    assert trees.refused("approvals", "--allow", "*")[0] == 2, "not in the whole fleet by mistake"
    code, words = trees.refused("approvals", trees.root, "--allow", "npm *")
    assert (code, "no open request is meant by" in words) == (1, True)

    resumed = trees.run("run", "--resume", trees.root, "--no-worker")
    assert (resumed.returncode, f"? agent {ASKER} wants to run" in resumed.stdout) == (3, True), (
        "its front asks as well"
    )

    done = trees.says("approvals", trees.root, "--allow", "git count*")
    assert done.rstrip().endswith("git count-objects -v: allowed")
    assert trees.says("approvals") == "nothing waits for a person\n"
    for again in ((trees.root, "--deny", "git count*"), ("--all", "--allow", "git count*")):
        code, told = trees.refused("approvals", *again)
        assert code == 1, "nothing was answered"
        assert re.search(rf"; {ASKER}:\S+ git count-objects -v: already allowed, by \S+@\S+$", told)
    for whose in (str(ASKER), "0"):
        told = trees.says("logs", trees.root, whose)
        asked = told.index("git count-objects -v")
        decided = told.index(f"of agent {ASKER} (asker) was approved by ")
        assert asked < decided, "who allowed it is in the log, of the agent and of the root"
        assert whose == "0" or decided < told.index("$ git count-objects -v"), "and then it began"
    if trees.tree()["agents"][0]["session_status"] != "idle":
        trees.follow()
    assert f"## asker (agent {ASKER})" in (trees.machine.folder / "REPORT.md").read_text()
    assert "live fold  equal" in trees.says("replay", trees.root)


def test_parents_file_tells_the_lives_of_its_agents(standing: ParkedTree) -> None:
    def lines(number: int, *options: str) -> list[dict[str, Any]]:
        session = standing.agent(number)["session_id"]
        return [json.loads(line) for line in standing.says("export", session, *options).splitlines()]

    told = [line for line in lines(0) if "tree_seq" in line]
    assert {line["payload"]["type"] for line in told} == {"subagent_lifecycle", "agent_inbox"}
    made = [
        line["payload"]["subagent"]["agent_id"] for line in told if line["payload"].get("event") == "created"
    ]
    assert made == sorted(made) == list(range(1, 8))
    assert (numbers := [line["tree_seq"] for line in told]) == sorted(set(numbers))
    times = [line["timestamp"] for line in lines(0)]
    assert times == sorted(times)

    (born,) = [line for line in lines(HELLO) if line.get("payload", {}).get("event") == "created"]
    assert born["payload"]["subagent"]["agent_id"] == READER
    cause = next(line for line in lines(HELLO, "--full") if line.get("seq") == born["caused_by"]["seq"])
    assert (born["caused_by"]["session_id"], born["caused_by"]["chain"]) == (
        standing.agent(HELLO)["session_id"],
        cause["chain"],
    )
    assert not any("tree_seq" in line for line in [*lines(READER), *lines(0, "--full")])


def test_file_with_the_lives_of_agents_is_read_as_a_log(standing: ParkedTree) -> None:
    standing.says("export", standing.root, "woven.jsonl")
    assert "tree_seq" in (standing.machine.folder / "woven.jsonl").read_text()
    assert "entries follow from each other" in standing.says("verify", "woven.jsonl")
    assert standing.says("replay", "woven.jsonl")
    assert standing.says("import", "woven.jsonl")


def told_on_resuming(user: ParkedTree, session: str) -> list[dict[str, Any]]:
    """The summaries of the agents that a client of `dendro proto` is told of behind its greeting."""
    done = user.run("proto", "--resume", session, "--no-worker")
    messages = [json.loads(line)["msg"] for line in done.stdout.splitlines()]
    assert messages[0]["type"] == "session_configured"
    told = itertools.takewhile(lambda each: each["type"] == "subagent_lifecycle", messages[1:])
    return [each["subagent"] for each in told]


def test_client_that_resumes_is_told_of_each_agent_of_an_imported_file_too(standing: ParkedTree) -> None:
    told = {agent["agent_id"]: agent["status"] for agent in told_on_resuming(standing, standing.root)}
    agents = standing.tree()["agents"]
    assert told == {agent["agent_id"]: agent["status"] for agent in agents if agent["agent_id"]}
    standing.says("export", standing.root, "tree.jsonl")
    imported = standing.says("import", "tree.jsonl").strip()
    left = {agent["agent_id"]: agent["status"] for agent in told_on_resuming(standing, imported)}
    assert left == told | {ASKER: "canceled"}, "nothing of it runs here"
    assert "imported without its 7 agents: none made here" in standing.says("tree", imported)


def test_log_that_is_imported_whole_tells_of_the_children_that_it_had(standing: ParkedTree) -> None:
    standing.says("export", standing.root, "whole.jsonl", "--full")
    imported = standing.says("import", "--trust", "whole.jsonl").strip()

    async def told() -> list[int]:
        sources = SettingsSources(cwd=standing.machine.folder, environ=standing.machine.environ)
        async with opened(load_settings(sources)) as found:
            greeted = await greeting(found, await find(found, imported), NO_HISTORY)
            return [each["subagent"]["agent_id"] for each in greeted.events[1:]]

    assert asyncio.run(told()) == [HELLO, TESTS, ASKER, WAITER, FAILING, HISTORIAN]
    assert "imported without its 6 agents: none made here" in standing.says("tree", imported)


def test_second_answer_is_told_who_decided(trees: ParkedTree) -> None:
    async def answer_twice() -> list[str]:
        settings = load_settings(SettingsSources(cwd=trees.machine.folder, environ=trees.machine.environ))
        async with opened(settings) as found:
            (asked,) = await open_requests_of(found, None)
            client = found.client()
            first = await decide(client, found, asked, ReviewDecision.DENIED)
            client.who = "bob"
            second = await decide(client, found, asked, ReviewDecision.APPROVED)
            return [first.line(), second.line(), client.who]

    first, second, _ = asyncio.run(answer_twice())
    assert first.endswith(": denied")
    assert re.search(r": already denied, by \S+@\S+$", second)


def test_person_writes_to_an_agent_that_is_done(trees: ParkedTree) -> None:
    with trees.machine.terminal("logs", trees.root, str(TESTS), "--limit", "1", "--follow") as beside:
        beside.wait_for("✉ to agent 0: ready")
        sent = trees.says("send", trees.root, str(TESTS), "Count again.")
        assert sent.startswith(f"agent {TESTS} has it")
        trees.until(TESTS, last="1")
        beside.wait_for(r"✉ from \S+@\S+: Count again\.")
        beside.wait_for("» Count again.")
    read = trees.says("logs", trees.root, str(TESTS))
    assert read.index("✉ from ") < read.index("» Count again.")
    assert "$ git ls-files | grep -c test" in read
    code, words = trees.refused("send", trees.root, str(TESTS), " ")
    assert (code, "the text is empty" in words) == (2, True)


def test_person_interrupts_an_agent_and_then_the_whole_tree(trees: ParkedTree) -> None:
    assert trees.says("interrupt", trees.root, str(TESTS)).startswith(f"agent {TESTS} does nothing")
    assert trees.says("interrupt", trees.root, str(ASKER)) == f"agent {ASKER} was interrupted\n"
    assert trees.says("approvals") == "nothing waits for a person\n"
    assert f"of agent {ASKER} (asker) is not asked any more" in trees.says("logs", trees.root, str(ASKER))
    stopped = trees.says("interrupt", trees.root, "--tree")
    assert stopped == "the root and 7 agents below: nothing of them runs\n"
    assert trees.agent(ASKER)["status"] in ("ready", "idle")


def test_person_redirects_an_agent(trees: ParkedTree) -> None:
    trees.says("interrupt", trees.root, str(ASKER), "--message", "Count the tests, do not ask.")
    trees.follow()
    assert "» Count the tests" in trees.says("logs", trees.root, str(ASKER))
    assert trees.refused("interrupt", trees.root, "--tree", "--message", "x")[0] == 2


def test_person_cancels_an_agent_and_is_told_how_surely(trees: ParkedTree) -> None:
    done = trees.says("cancel", trees.root, str(ASKER), "--reason", "not needed")
    assert done == f"agent {ASKER} is cancelled: proved\n"
    again = trees.says("cancel", trees.root, str(ASKER))
    assert "there is nothing to cancel" in again
    assert again.endswith(f"agent {ASKER} is cancelled: proved\n")
    listed = {row["session_id"]: row["status"] for row in trees.machine.sessions()}
    stands = {number: listed[trees.agent(number)["session_id"]] for number in (ASKER, FAILING)}
    assert stands == {ASKER: "canceled", FAILING: "failed"}
    trees.follow()
    assert "It ended early (canceled)" in (trees.machine.folder / "REPORT.md").read_text()
    code, words = trees.refused("send", trees.root, str(ASKER), "come back")
    assert (code, "was cancelled" in words) == (1, True)


def test_agent_that_has_ended_when_its_cancel_is_known_to_be_taken_is_told_with_the_proof(
    trees: ParkedTree, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    submit_end = cancelling.submit_end

    async def slow(found: Opened, target: Addressed, reason: str | None, timeout_s: float) -> None:
        await submit_end(found, target, reason, timeout_s)
        patience = cancelling.Patience(60.0, None)
        assert await cancelling.wait_for_ends(found, target, [ASKER], patience, print) == []

    monkeypatch.setattr(cancelling, "submit_end", slow)
    sources = SettingsSources(cwd=trees.machine.folder, environ=trees.machine.environ)
    monkeypatch.setattr(Invocation, "settings", lambda _: load_settings(sources))
    assert asyncio.run(_cancel(Invocation(), (trees.root, ASKER), None, (60.0, None))) is ExitCode.DONE
    assert capsys.readouterr().out == f"agent {ASKER} is cancelled: proved\n"


def test_end_of_an_agent_whose_worker_was_lost_is_presumed(trees: ParkedTree) -> None:
    trees.says("send", trees.root, str(WAITER), "Wait for orders.")
    trees.until(WAITER, last="$ sleep 600")
    trees.lose_worker()
    drawn = trees.says("tree", trees.root)
    assert re.search(
        rf"{WAITER} waiter  lost .* no worker serves it: it needs a worker of pool \S+, since \S+ is lost",
        drawn,
    )
    listed = {row["session_id"]: row["status"] for row in trees.machine.sessions()}
    assert listed[trees.agent(WAITER)["session_id"]] == "lost"
    code, words = trees.refused("cancel", trees.root, str(WAITER), "--timeout", "1")
    assert (code, f"not over yet after 1 s: agent {WAITER}" in words) == (1, True)
    with worker(trees.machine):
        # It may be over before the second one asks.
        assert trees.says("cancel", trees.root, str(WAITER)).endswith(
            f"agent {WAITER} is cancelled: presumed\n"
        )
        assert trees.tree()["counters"]["slots"] == 1, "the asker's alone"


def test_person_takes_an_agent_from_a_worker_that_does_not_act(trees: ParkedTree) -> None:
    trees.worker.terminate()
    trees.worker.wait()
    with deaf_worker(trees.machine):
        trees.says("send", trees.root, str(WAITER), "Wait for orders.")
        trees.until(WAITER, last="$ sleep 600")
        done = trees.says("cancel", trees.root, str(WAITER), "--force", "--force-after", "1")
        taken, ended = done.splitlines()
        assert re.fullmatch(rf"taken from worker \S+: {trees.agent(WAITER)['session_id']}", taken)
        assert ended == f"agent {WAITER} is cancelled: presumed"
        assert trees.tree()["counters"]["slots"] == 1, "the asker's alone"


def test_person_cancels_a_tree(trees: ParkedTree) -> None:
    done = trees.says("cancel", trees.root)
    assert f"agent {ASKER} is cancelled: proved" in done
    assert "the root is closed" in done
    told = trees.tree()
    assert told["counters"]["slots"] == 0
    assert told["agents"][0]["session_status"] == "closed"


def test_person_sits_down_beside_the_root_and_answers_for_an_agent(trees: ParkedTree) -> None:
    with trees.machine.terminal("attach", trees.root) as person:
        person.wait_for(rf"\? agent {ASKER} \(asker\) wants to run")
        person.wait_for("git count-objects -v")
        person.wait_for("uit the turn")
        person.type("y\n")
        person.wait_for("7 agents reported|6 agents reported|agents reported; REPORT.md has it all")
        person.type("Count the tests\n")
        person.wait_for("» Count the tests")
        person.wait_for("grep -c test")
        person.press_ctrl_c()
        person.wait_for("left; the task goes on: worker .* has it")
        assert person.exit_code() == 0
    told = trees.says("logs", trees.root)
    assert told.count(" was approved by ") == 1, "an answer that was sent on decides nothing at the root"


def test_people_who_look_on_see_what_another_has_decided(trees: ParkedTree) -> None:
    looking = trees.machine.terminal
    with looking("tree", trees.root) as watching, looking("attach", trees.root) as beside:
        watching.wait_for("awaiting_approval")
        beside.wait_for("uit the turn")
        trees.says("approvals", trees.root, "--deny", "*")
        watching.wait_for("asker.{0,40}(idle|ready)")
        beside.wait_for(rf"request \S+ of agent {ASKER} \(asker\) was denied by \S+@")
        beside.type("go on\n")
        beside.wait_for("» go on")
        for person in (watching, beside):
            person.press_ctrl_c()
            assert person.exit_code() == 0


def test_person_follows_a_log_until_they_leave(standing: ParkedTree) -> None:
    with standing.machine.terminal("logs", standing.root, str(WAITER), "--limit", "2", "--follow") as person:
        person.wait_for("1\r\n")
        person.press_ctrl_c()
        assert person.exit_code() == 0


def test_person_sees_and_raises_a_trees_budget(standing: ParkedTree) -> None:
    shown = standing.says("budget", standing.root)
    assert re.search(r"^tokens +[\d,]+ .* +5,000,000 ", shown, re.M)
    assert " of 5,00" in standing.says("tree", standing.root).splitlines()[1]
    raised = standing.says("budget", standing.root, "--add", "tokens=1000,slots=2")
    assert "5,001,000" in raised
    limits = standing.tree()["limits"]
    assert (limits["slots"], limits["tokens"]) == (10, 5_001_000)
    code, words = standing.refused("budget", standing.root, "--add", "cost=1.50")
    assert (code, 'set model_prices."' in words) == (1, True)


def test_person_is_told_of_an_amount_that_is_none(machine: Machine) -> None:
    done = machine.run("budget", "0199", "--add", "wall=3x")
    assert (done.returncode, "--add wall: '3x' is no amount; try wall=90m" in done.stderr) == (2, True)


async def test_interrupt_of_a_tree_waits_for_agents_of_agents_and_for_no_other_branch() -> None:
    """Agent 1 has agent 2, and that has agent 3; agent 4 is one of the root."""
    looks = [{3: "running"}, {2: "queued"}, {}]

    async def agents(tree: TreeId) -> dict[str, bytes]:
        busy = looks.pop(0) | {4: "running"}
        paths = {1: "0/1", 2: "0/1/2", 3: "0/1/2/3", 4: "0/4"}
        records = {
            id: {
                "agent_id": id, "parent_agent_id": int(path.split("/")[-2]), "session_id": f"s{id}",
                "agent_path": path, "status": busy.get(id, "ready"), "turn": 1,
            }
            for id, path in paths.items()
        }  # fmt: skip
        return {f"a:{id}": orjson.dumps(record) for id, record in records.items()}

    found = cast(Any, SimpleNamespace(broker=SimpleNamespace(trees=SimpleNamespace(agents=agents))))
    below = await all_below_at_rest(found, Addressed(head(agent_id=AgentId(1))))
    assert (below, looks) == (2, [])
