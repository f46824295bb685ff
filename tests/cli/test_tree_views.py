"""Drawings of a tree, patterns of answers, and how amounts are read: no process needed."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest
from rich.console import Console

from orchestrator.broker.records import Account, Registry, SessionHead, Spend, StoredEntry
from orchestrator.broker.worker_state import Serving
from orchestrator.cli.budget import amounts
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import AwaitWork, Phase
from orchestrator.core.entries import encode_entry
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.registry import Agent, RegistryView
from orchestrator.protocol import events as ev
from orchestrator.protocol.agents import LifecycleChange
from orchestrator.protocol.events import SubagentLifecycle
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.policy import ReviewDecision
from orchestrator.requests import request_of
from orchestrator.rollouts.tree_log import differs
from orchestrator.terminal.faults import ExitCode, Fault, explain
from orchestrator.terminal.tree_view import as_value, budget_parts, drawing, headline, waits_for
from orchestrator.views import Contradiction, ViewError
from orchestrator.views.approvals import Asked, Decided, chosen
from orchestrator.views.event_text import lifecycle_text
from orchestrator.views.sessions import status_of
from orchestrator.views.tree import (
    AgentPicture,
    Doing,
    TreePicture,
    TreeReader,
    doing_of,
    machine_of,
    message_summary,
    uncounted,
    used_of,
)
from orchestrator.wiring.deployment import worker_name
from tests.core.driver import a_command

TREE = TreeId("01a1f84b-eb09-7009-9fd7-ebc79e95569f")
NOW_MS = 1_800_000_000_000


# ── pictures ──────────────────────────────────────────────────────────────────────────────────


def agent(number: int, parent: int | None, **given: Any) -> AgentPicture:
    summary = {"agent_id": number, "status": "running", "label": f"a{number}"} | given.pop("summary", {})
    return AgentPicture(
        agent_id=number,
        parent=parent,
        session=SessionId(f"{number:032x}"),
        summary=summary if number else {},
        status=given.pop("status", "running"),
        holder=given.pop("holder", None),
        used=given.pop("used", Spend()),
        doing=given.pop("doing", Doing(since_ms=NOW_MS - 5_000)),
        **given,
    )


def picture(*agents: AgentPicture, **budget: Account) -> TreePicture:
    registry = Registry(TREE, 9, {}, {"spawned": len(agents) - 1}, {"slots": 8}, budget, {}, {})  # type: ignore[arg-type]
    return TreePicture(registry, {found.agent_id: found for found in agents}, NOW_MS)


def drawn(found: TreePicture) -> str:
    console = Console(width=300, highlight=False, force_terminal=False)
    with console.capture() as capture:
        console.print(headline(found))
        console.print(drawing(found))
    return capture.get()


def test_spectator_sees_what_an_await_waits_for_and_how_long_at_most() -> None:
    wait = Doing(since_ms=NOW_MS - 90_000, waits_for="agents", until_ms=NOW_MS + 600_000)
    named = Doing(since_ms=NOW_MS, waits_for="agents", awaited=(2,))
    text = drawn(
        picture(
            agent(0, None, status="waiting", doing=wait),
            agent(1, 0, status="waiting", doing=named),
            agent(2, 1),
            agent(3, 0, summary={"status": "idle"}, status="idle"),
        )
    )
    assert "0 root  waiting 1m · waits for agents 1 (at most 10m more)" in text
    assert "1 a1  waiting · waits for agents 2 · 00000001\n" in text
    assert "│   └── 2 a2  running 5s" in text
    assert "└── 3 a3  idle 5s" in text


def test_spectator_sees_unread_mail_cost_and_a_cancel_on_its_way() -> None:
    text = drawn(
        picture(
            agent(0, None),
            agent(
                1,
                0,
                summary={"pending_messages": 2, "pending_interrupts": 1},
                used=Spend(1_200, 34_500, 3),
                canceling=True,
            ),
        )
    )
    assert "1 a1  running 5s · being cancelled · ✉ 2 · ⚡ 1 · 1,200 tokens · $0.0345" in text


def test_spectator_sees_how_much_an_agent_has_changed_in_its_folder() -> None:
    told = drawn(picture(agent(0, None), agent(1, 0, change={"files": 1, "insertions": 120, "deletions": 4})))
    assert "+120 −4 in 1 file" in told


def test_spectator_sees_the_machine_of_each_agent() -> None:
    found = picture(
        agent(0, None, holder="big-host-4242-3f0a1b", copy_on="before"),
        agent(1, 0, summary={"status": "idle"}, status="idle", copy_on="two\x1b[31m"),
        agent(2, 0, holder="my-odd-name"),
        agent(3, 0),
    )
    text = drawn(found)
    assert "0 root  running 5s · on big-host" in text
    assert "1 a1  idle 5s · last on two" in text
    assert "\x1b" not in text
    assert "2 a2  running 5s · 00000002" in text
    told = [one["machine"] for one in as_value(found)["agents"]]
    assert told == ["big-host", "two\x1b[31m", None, None]


def test_machine_of_a_worker_is_read_from_the_name_that_workers_take() -> None:
    assert machine_of(worker_name()) == socket.gethostname()


def test_spectator_sees_who_had_ended_before_a_cancel_reached_them() -> None:
    done = agent(1, 0, summary={"status": "idle"}, status="idle", canceling=True)
    assert "1 a1  idle 5s · ended for good" in drawn(picture(agent(0, None), done))
    value = as_value(picture(agent(0, None), done))["agents"][1]
    assert (value["canceling"], value["ended_for_good"]) == (False, True)
    stopped = agent(1, 0, summary={"status": "canceled"}, status="idle", canceling=True)
    assert "ended for good" not in drawn(picture(agent(0, None), stopped))
    assert as_value(picture(agent(0, None), stopped))["agents"][1]["ended_for_good"]


def test_spectator_sees_which_worker_an_agent_lacks_and_since_when() -> None:
    lost = agent(
        1,
        0,
        status="lost",
        wants_worker="a worker of pool p, since w1 is lost",
        lost_ms=NOW_MS - 42_000,
        doing=Doing(since_ms=NOW_MS - 90_000, waits_for="agents", until_ms=NOW_MS + 600_000),
    )
    queued = agent(2, 0, summary={"status": "queued"}, status="due", wants_worker="a worker of pool p")
    found = picture(agent(0, None), lost, queued)
    text = drawn(found)
    assert (
        "1 a1  lost 42s · no worker serves it: it needs a worker of pool p, since w1 is lost · 00000001\n"
        in text
    )
    assert "2 a2  queued 5s · no worker serves it: it needs a worker of pool p · 00000002\n" in text
    told = as_value(found)["agents"][1]
    assert (told["session_status"], told["since_ms"]) == ("lost", NOW_MS - 42_000)
    assert (told["waits_for"], told["until_ms"]) == ("a worker of pool p, since w1 is lost", None)


SERVED = Serving(NOW_MS, NOW_MS + 1)
LOST = Serving(NOW_MS, NOW_MS - 1)
DUE = Serving(NOW_MS, due=True)
PARKED = Serving(NOW_MS)


@pytest.mark.parametrize(
    ("known", "serving", "standing", "word"),
    [
        ({"status": "running"}, SERVED, "", "running"),
        ({"status": "running"}, LOST, "", "lost"),
        ({"status": "waiting"}, DUE, "", "due"),
        ({"status": "waiting"}, PARKED, "", "waiting"),
        ({"status": "waiting"}, SERVED, "", "running"),
        ({"status": "running", "quarantined": True}, PARKED, "running", "quarantined"),
        ({"status": "idle", "archived": True}, PARKED, "canceled", "archived"),
        ({"status": "idle"}, PARKED, "canceled", "canceled"),
        ({"status": "idle"}, PARKED, "failed", "failed"),
        ({"status": "idle"}, PARKED, "ready", "ready"),
        ({"status": "idle"}, PARKED, "running", "running"),
        ({"status": "awaiting_approval"}, PARKED, "running", "awaiting_approval"),
        ({"status": "running"}, LOST, "running", "lost"),
    ],
)
def test_list_says_in_one_word_how_a_session_stands(
    known: dict[str, Any], serving: Serving, standing: str, word: str
) -> None:
    assert status_of(replace(head(1), **known), serving, standing) == word


def test_spectator_is_never_steered_by_what_an_agent_said() -> None:
    text = drawn(picture(agent(0, None), agent(1, 0, doing=Doing(since_ms=NOW_MS, last="\x1b[2Jgone\u202e"))))
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_spectator_sees_each_budget_with_its_share() -> None:
    tokens = Account("tokens", 900, 50, 1_000)
    cost = Account("cost", 1_000_000, 0, None)
    text = drawn(picture(agent(0, None), tokens=tokens, cost=cost))
    assert "0 agents made, 0 at work of 8 slots · tokens 900 of 1,000 (90%) · $1.0000 cost" in text


@pytest.mark.parametrize(
    ("spent", "limit", "told", "style"),
    [
        (0, 1_000, "tokens 0 of 1,000 (0%)", ""),
        (799, 1_000, "tokens 799 of 1,000 (80%)", ""),
        (800, 1_000, "tokens 800 of 1,000 (80%)", "yellow"),
        (999, 1_000, "tokens 999 of 1,000 (100%)", "yellow"),
        (1_000, 1_000, "tokens 1,000 of 1,000 (100%)", "bold red"),
        (2_000, 1_000, "tokens 2,000 of 1,000 (200%)", "bold red"),
        (0, 0, "tokens 0 of 0 (100%)", "bold red"),
        (5, 0, "tokens 5 of 0 (100%)", "bold red"),
        (5, None, "5 tokens", ""),
    ],
)
def test_budget_stands_out_from_four_fifths_on_and_more_when_it_is_used_up(
    spent: int, limit: int | None, told: str, style: str
) -> None:
    found = picture(
        agent(0, None), tokens=Account("tokens", spent, 0, limit), wall=Account("wall", 9, 0, None)
    )
    assert list(budget_parts(found.registry)) == [(told, style)]


@pytest.mark.parametrize("awaited", [(1,), (2,), (2, 1), ()])
def test_agents_that_an_await_names_are_told_and_else_all_that_work(awaited: tuple[int, ...]) -> None:
    wait = Doing(since_ms=NOW_MS, waits_for="agents", awaited=awaited)
    done = agent(3, 0, summary={"status": "idle"}, status="idle")
    found = picture(agent(0, None, status="waiting", doing=wait), agent(1, 0), agent(2, 0), done, agent(4, 1))
    assert waits_for(found, found.agents[0]) == f"agents {', '.join(map(str, awaited or (1, 2)))}"


def test_program_reads_the_same_tree() -> None:
    value = as_value(
        picture(agent(0, None), agent(1, 0, status="awaiting_approval", doing=Doing(waits_for="an approval")))
    )
    assert [found["agent_id"] for found in value["agents"]] == [0, 1]
    assert value["agents"][1]["waits_for"] == "an approval"
    assert orjson.loads(orjson.dumps(value)) == value


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            {
                "event": "created",
                "subagent": {
                    "agent_id": 1,
                    "session_id": "s",
                    "origin": "spawn",
                    "status": "queued",
                    "started_at_ms": 0,
                    "label": "x",
                    "summary": "do",
                },
            },
            "+ agent 1 (x) was made: do",
        ),
        (
            {"event": "status", "status": "canceled", "agent_id": 2, "cancel": "presumed"},
            "✗ agent 2 was cancelled: presumed",
        ),
        ({"event": "status", "status": "running", "agent_id": 2}, ""),
        ({"event": "deleted", "agent_id": 2}, "- agent 2 was taken off the list"),
    ],
)
def test_person_is_told_the_turns_of_an_agents_life(message: dict[str, Any], text: str) -> None:
    assert lifecycle_text(SubagentLifecycle.model_validate(message)) == text


@pytest.mark.parametrize(("sandboxed", "where"), [(False, "outside the sandbox: "), (True, "")])
def test_spectator_reads_first_that_a_request_leaves_the_sandbox(sandboxed: bool, where: str) -> None:
    reach = {"reach": {"sandboxed": sandboxed, "text": "…"}}
    command = {"type": "exec_approval_request", "command": ["make"], **reach}
    patch = {"type": "apply_patch_approval_request", "changes": {"/etc/hosts": {}}, **reach}
    assert message_summary(command) == f"? {where}make"
    assert message_summary(patch) == f"? {where}± /etc/hosts"


# ── the end of a log ──────────────────────────────────────────────────────────────────────────


def stored(*entries: tuple[int, e.Entry]) -> list[StoredEntry]:
    return [
        StoredEntry(seq, 1, encode_entry(entry, at_ms, {}).line, b"", b"")
        for seq, (at_ms, entry) in enumerate(entries, 1)
    ]


def head(seq: int) -> SessionHead:
    return SessionHead(
        SessionId("s"), TREE, "p", AgentId(1), None, seq, b"", "0-0", "0-0", 0, 1, None, "idle", b"", 0, 0,
        b"", 1, 0, 0, 0, False, False, NOW_MS,
    )  # fmt: skip


def test_reader_learns_since_when_and_what_for_an_agent_waits() -> None:
    wait = AwaitWork((AgentId(4),), 1, NOW_MS + 9)
    log = stored(
        (NOW_MS - 30, e.event("t", ev.AgentMessage(message="first\nsecond"))),
        (NOW_MS - 20, e.fact(f.CallMoved(CallId("c"), Phase.WAITING, work=wait))),
        (NOW_MS - 10, e.fact(f.MailTaken(("k",)))),
    )
    doing = doing_of(log, head(3))
    assert (doing.since_ms, doing.waits_for, doing.awaited) == (NOW_MS - 20, "agents", (4,))
    assert (doing.until_ms, doing.last) == (NOW_MS + 9, "first")


def test_reader_learns_of_every_agent_that_an_await_names() -> None:
    wait = AwaitWork((AgentId(4), AgentId(7)), 1, NOW_MS + 9)
    log = stored((NOW_MS - 20, e.fact(f.CallMoved(CallId("c"), Phase.WAITING, work=wait))))
    assert doing_of(log, head(1)).awaited == (4, 7)


@pytest.mark.parametrize(("of_tree", "of_log", "told"), [(0, 7, 7), (5, 7, 7), (9, 7, 9), (0, 0, 0)])
def test_agent_has_the_tokens_of_its_tree_or_of_its_log_whichever_are_more(
    of_tree: int, of_log: int, told: int
) -> None:
    """The tree's accounts begin with the first child."""
    assert agent(1, 0, used=Spend(tokens=of_tree), doing=Doing(tokens=of_log)).tokens == told


@pytest.mark.parametrize(
    ("path", "known", "above"),
    [
        ("0/1/2", {1, 2}, 1),
        ("0/1/2", {2}, 0),
        ("0/1/3/2", {1, 2}, 1),
        ("0/1/3/2", {1, 3, 2}, 3),
        ("0/2", {2}, 0),
    ],
)
async def test_agent_is_drawn_below_the_nearest_that_was_not_pruned(
    path: str, known: set[int], above: int
) -> None:
    tree = Looked()
    for number in known:
        tree.add(number, path if number == 2 else f"0/{number}")
    found = await tree.picture()
    assert found.agents[2].parent == above


async def test_reader_reads_a_log_again_when_it_has_grown_or_was_put_back_and_not_otherwise() -> None:
    """Also where it is as long again as it was."""
    tree = Looked()
    tree.add(1, "0/1")
    reader = TreeReader(cast(Any, tree), TREE)
    for seq, life, reads in ((1, 1, 2), (1, 1, 2), (2, 1, 3), (2, 1, 3), (1, 1, 4), (1, 2, 5), (1, 2, 5)):
        tree.seq[1], tree.life = seq, life
        await reader.picture()
        assert tree.reads == reads


@pytest.mark.parametrize(
    ("spent", "told"),
    [
        ([], ""),
        ([Spend(tokens=5, cost=9, requests=3)], ""),
        ([Spend(tokens=5, requests=3), Spend(tokens=5, cost=9, requests=2)], "3 earlier requests"),
        ([Spend(requests=3), Spend(tokens=5, requests=1)], "1 earlier request "),
    ],
)
def test_person_is_told_how_many_requests_a_cost_budget_does_not_count(spent: list[Spend], told: str) -> None:
    cost, requests = sum(each.cost for each in spent), sum(each.requests for each in spent)
    accounts = {
        "cost": Account("cost", cost or 1, 0, None),
        "requests": Account("requests", requests, 0, None),
    }
    agents = {AgentId(at): SimpleNamespace(used=each) for at, each in enumerate(spent)}
    registry = replace(picture(agent(0, None), **accounts).registry, agents=cast(Any, agents))
    found = uncounted(registry)
    assert told in f"{found} " if told else not found


@pytest.mark.parametrize(("told", "named", "behind"), [(0, 0, 0), (2, 0, 2), (0, 5, 5), (2, 5, 5), (5, 2, 5)])
@pytest.mark.parametrize("spawned", [0, 1])
async def test_imported_tree_has_left_as_many_agents_behind_as_its_log_or_its_import_tells_of(
    told: int, named: int, behind: int, spawned: int
) -> None:
    """A tree that has made agents of its own left none behind."""
    tree = Looked()
    tree.spawned, tree.meta = spawned, orjson.dumps({"children": named})
    born = ev.SubagentLifecycle(event=LifecycleChange.UPDATED)
    tree.log = stored(*[(NOW_MS, e.event("", born))] * told, (NOW_MS, e.event("", ev.TaskStarted())))
    assert (await tree.picture()).left_behind == (0 if spawned else behind)


class Looked:
    """A tree as its reader looks at it, and how often a log was read."""

    def __init__(self) -> None:
        self.fields: dict[str, bytes] = {}
        self.seq: dict[int, int] = {0: 1}
        self.reads = 0
        self.life = 1
        """The second: the agent's log was put back, and has other entries."""
        self.log: list[StoredEntry] = []
        self.meta = b""
        self.spawned = 1
        self.trees = self.logs = self

    def add(self, number: int, path: str) -> None:
        record = {
            "agent_id": number,
            "session_id": f"s{number}",
            "agent_path": path,
            "status": "idle",
            "turn": 1,
        }
        self.fields[f"a:{number}"] = orjson.dumps(record)
        self.seq[number] = 1

    async def projection(self, tree: TreeId) -> Any:
        registry = picture(agent(0, None), agent(1, 0)).registry
        return replace(registry, counters=cast(Any, {"spawned": self.spawned})), self.fields

    async def heads(self, sessions: Sequence[SessionId], damaged: Any) -> tuple[SessionHead, ...]:
        numbers = [int(session[1:]) if session.startswith("s") else 0 for session in sessions]
        return tuple(
            replace(
                head(self.seq[number]),
                session=session,
                agent_id=AgentId(number),
                head=self.chain(number),
                meta=self.meta,
            )
            for session, number in zip(sessions, numbers, strict=True)
        )

    def chain(self, number: int) -> bytes:
        return bytes([self.seq[number], self.life if number else 1])

    async def read_rollout(self, session: SessionId, after: int, count: int) -> list[StoredEntry]:
        self.reads += 1
        return self.log

    async def serving(self, heads: Any) -> Any:
        return {one.session: Serving(NOW_MS) for one in heads}

    def now_ms(self) -> int:
        return NOW_MS

    async def picture(self) -> TreePicture:
        return await TreeReader(cast(Any, self), TREE).picture()


def test_reader_forgets_a_wait_that_is_over() -> None:
    command = ("bash", "-c", "make test")
    work = a_command(*command).work(sandboxed=True)
    begun = ev.ExecCommandBegin(call_id=CallId("c"), command=command, cwd="/", parsed_cmd=())
    log = stored(
        (NOW_MS - 20, e.fact(f.CallMoved(CallId("c"), Phase.AWAITING_APPROVAL, work=work))),
        (NOW_MS - 10, e.fact(f.CallMoved(CallId("c"), Phase.RUNNING, work=work))),
        (NOW_MS - 5, e.event("t", begun)),
    )
    doing = doing_of(log, head(3))
    assert (doing.waits_for, doing.since_ms, doing.last) == ("", NOW_MS - 10, "$ make test")


def test_reader_of_a_log_that_says_nothing_falls_back_to_its_head() -> None:
    assert doing_of([], head(0)).since_ms == NOW_MS


def test_auditor_finds_a_projection_that_is_not_the_logs_fold() -> None:
    record = {"agent_id": 1, "session_id": "s1", "agent_path": "0/1", "status": "idle", "turn": 1}
    view = RegistryView({1: Agent(record)}, 1)
    assert differs(view, view) == ""
    assert differs(view, RegistryView({1: Agent(record, marked=True)}, 1)) == "agent 1: marked"
    assert differs(view, RegistryView({}, 1)) == "agents [] instead of [1]"
    assert differs(view, RegistryView({1: Agent(record)}, 2)) == "the number of agents made"


# ── answers ───────────────────────────────────────────────────────────────────────────────────


def asked(number: int, call: str, **request: Any) -> Asked:
    return Asked(
        SessionId(f"{number:032x}"), TREE, number, f"0/{number}", call, NOW_MS, request_of(request), 5
    )


FETCH = asked(3, "c1", type="exec_approval_request", command=["bash", "-lc", "git fetch origin"], cwd="/w")
TEST = asked(4, "c1", type="exec_approval_request", command=["npm", "test"], cwd="/w")
PATCH = asked(4, "c2", type="apply_patch_approval_request", changes={"/w/a.py": {}, "/w/b.py": {}})
OPEN = [FETCH, TEST, PATCH]
ALLOW, DENY = ReviewDecision.APPROVED, ReviewDecision.DENIED


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("git *", [FETCH]),
        ("*", OPEN),
        ("c1", [FETCH, TEST]),
        ("4:c1", [TEST]),
        ("/w/*.py", [PATCH]),
        ("*test", [TEST]),
    ],
)
def test_pattern_means_calls_commands_and_paths(pattern: str, meant: list[Asked]) -> None:
    assert [request for request, _ in chosen(OPEN, {ALLOW: [pattern]}).decisions] == meant


@pytest.mark.parametrize("pattern", ["git", "GIT *", "/w/a.py", "c9"])
def test_pattern_that_means_nothing_is_an_error_and_so_is_one_that_means_half_a_patch(pattern: str) -> None:
    with pytest.raises(ViewError, match="no open request"):
        chosen(OPEN, {ALLOW: [pattern]})


def test_two_different_answers_to_one_request_are_refused() -> None:
    with pytest.raises(Contradiction, match="two different answers") as caught:
        chosen(OPEN, {ALLOW: ["*"], DENY: ["npm *"]})
    assert explain(caught.value)[1] == ExitCode.USAGE
    assert len(chosen(OPEN, {ALLOW: ["git *", "3:c1"], DENY: ["npm *"]}).decisions) == 2


def test_request_whose_turn_ended_first_is_withdrawn_by_nobody() -> None:
    line = Decided(FETCH, "withdrawn", "", ours=False).line()
    assert line == "3:c1  git fetch origin: withdrawn, since its turn ended first"


# ── amounts ───────────────────────────────────────────────────────────────────────────────────


def test_amounts_are_read_in_the_brokers_units() -> None:
    assert amounts("tokens=500,cost=2.50, requests=3,wall=90m,slots=-1") == {
        "tokens": 500,
        "cost": 2_500_000,
        "requests": 3,
        "wall": 5_400_000,
        "slots": -1,
    }
    assert amounts("wall=30") == {"wall": 30_000}


@pytest.mark.parametrize(
    "wrong", ["tokens=many", "wall=3x", "wall=", "time=5", "tokens", "", "cost=inf", "cost=nan"]
)
def test_amount_that_is_none_is_a_wrong_use(wrong: str) -> None:
    with pytest.raises(Fault) as caught:
        amounts(wrong)
    assert caught.value.code == ExitCode.USAGE


def test_cost_of_requests_without_prices_is_unknown_and_not_zero() -> None:
    def spent(tokens: int, cost: int) -> str:
        accounts = {"tokens": Account("tokens", tokens, 0, None), "cost": Account("cost", cost, 0, None)}
        return used_of(picture(agent(0, None), **accounts).registry, "cost")

    assert spent(10, 0) == "unknown"
    assert spent(10, 5_000) == "$0.0050"
    assert spent(0, 0) == "$0.0000", "nothing was used"
