"""An auditor's answers about each kind of call, of text, of secret and of cost, from the entries alone."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

import pytest

from orchestrator.broker.records import Spend
from orchestrator.core import calls as w
from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.calls import Phase
from orchestrator.core.entries import Entry
from orchestrator.core.frozen import replace
from orchestrator.core.ids import AgentId
from orchestrator.core.packs import FileCounts, Pack
from orchestrator.core.sender import Sender
from orchestrator.core.tokens import Price, Served
from orchestrator.protocol.ids import CallId, SnapshotId, SubmissionId
from orchestrator.views import ViewError
from orchestrator.views.audit_cost import By, Total, cost
from orchestrator.views.audit_questions import PATTERNS, Answer, context, egress, file, redactions, secrets
from orchestrator.views.audit_who import Logs, digest_of
from tests.core.driver import USAGE, WORKSPACE, Session, a_command, exec_end, op, text

ANN = Sender("ann@host", "", "admin", "terminal", "machine")
BEN = Sender("ben", "", "approve", "app-server", "ab12")
CLOSED: Mapping[str, Any] = {"mode": "workspace-write", "network_access": False}
OPEN: Mapping[str, Any] = {"mode": "workspace-write", "network_access": True}
FREE: Mapping[str, Any] = {"mode": "danger-full-access"}


def logs_of(*sessions: Session) -> Logs:
    """The logs of sessions that are called s1, s2 and so on."""
    logs = Logs()
    for number, session in enumerate(sessions, 1):
        for seq, line in enumerate(session.lines, 1):
            logs.add(f"s{number}", seq, 1, line)
    return logs


def working(policy: Mapping[str, Any] = CLOSED) -> Session:
    session = Session(settings={"approval_policy": "never", "sandbox_policy": dict(policy)})
    session.submit(op("user_input", items=[text("go")]), "u1", by=ANN)
    return session


def writes(logs: Logs, *entries: Entry, session: str = "s1", at_ms: int = 1) -> None:
    """Entries behind a log, as another version may have written them: no state is made of them."""
    last = max((one.seq for one in logs.told if one.session == session), default=0)
    for seq, entry in enumerate(entries, last + 1):
        logs.add(session, seq, 1, e.encode_entry(entry, at_ms, {}).line)


def moved(work: w.CallWork, call: str = "c") -> Entry:
    return e.fact(f.CallMoved(CallId(call), Phase.RUNNING, 1, work))


def output(call: str = "c", said: str = "back") -> Entry:
    return e.item({"type": "function_call_output", "call_id": call, "output": said})


def a_run(*words: str, sandboxed: bool) -> w.ExecWork:
    return w.ExecWork((), words or ("curl", "https://a.example/x"), WORKSPACE, (), None, {}, sandboxed)


MCP = w.McpWork((), "docs", "search", {"q": "x"}, WORKSPACE)
PATCH = w.PatchWork((), "*** Begin Patch", WORKSPACE, {}, "", (), {}, None)
MERGE = w.MergeWork((), AgentId(1), None, SnapshotId("c0ffee"), (), 1, ("a.py",))
STDIN = w.StdinWork(1, CallId("c0"), "y\n", 10, 10)
CLIENT = w.ClientToolWork("tool", "editor", 1_000)
CUSTOM = w.CustomWork((), "deploy", {}, "", WORKSPACE)
AWAIT = w.AwaitWork((AgentId(1),), 1, 1)
ASKS = w.QuestionWork(({"header": "h", "question": "q"},))


# ── what left the machine ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("work", "policy", "what"),
    [
        (a_run(sandboxed=True), CLOSED, None),
        (a_run(sandboxed=True), OPEN, "with network"),
        (a_run(sandboxed=True), FREE, "with network"),
        (a_run(sandboxed=False), CLOSED, "outside the sandbox"),
        (a_run(sandboxed=False), OPEN, "outside the sandbox"),
        (MCP, CLOSED, "mcp"),
        (PATCH, FREE, None),
        (MERGE, FREE, None),
    ],
)
async def test_call_of_each_kind_may_have_left_the_machine_or_not(
    work: w.CallWork, policy: Mapping[str, Any], what: str | None
) -> None:
    logs = logs_of(working(policy))
    writes(logs, moved(work), output())
    found = [one.values async for one in egress(logs) if one.values["what"] != "request"]
    assert [one.get("why", one["what"]) for one in found] == ([what] if what else [])
    if found:
        assert found[0]["hosts"] == (["mcp:docs"] if what == "mcp" else ["a.example"])
        assert found[0]["bytes_back"] == len("back")


async def test_each_call_is_told_once_with_what_came_back_to_it_and_also_where_nothing_did() -> None:
    logs = logs_of(working(OPEN), working(OPEN))
    ends = e.fact(f.TaskEnded("failed"))
    for session in ("s1", "s2"):
        writes(
            logs,
            *(moved(a_run("curl", f"https://{call}.example/", sandboxed=True), call) for call in "abcd"),
            *(output(call, call * size) for call, size in (("b", 7), ("a", 3))),
            ends,
            moved(MCP, "e"),
            # Another call of a later task, under the id of one before.
            moved(MCP, "c"),
            output("c", "cc"),
            session=session,
        )
    logs.told.sort(key=lambda one: one.session)
    told: dict[tuple[str, str], list[int | None]] = {}
    for one in [one async for one in egress(logs)]:
        assert one.proved
        told.setdefault((one.values["session"], one.values["call"]), []).append(one.values.get("bytes_back"))
    back = {"a": [3], "b": [7], "c": [None, 2], "d": [None], "e": [None]}
    assert told == {(session, call): sizes for session in ("s1", "s2") for call, sizes in back.items()}


async def test_web_search_leaves_the_machine_though_the_provider_makes_it() -> None:
    session = working()
    session.begin()
    session.item({"type": "web_search_call", "action": {"type": "search", "query": "see https://b.example/"}})
    session.ends(usage=USAGE)
    [search] = [one async for one in egress(logs_of(session)) if one.values["what"] == "search"]
    assert (search.values["hosts"], search.proved) == (["b.example"], True)


# ── where texts came from ─────────────────────────────────────────────────────────────────────────


ORIGINS: list[tuple[w.CallWork, Mapping[str, Any], str, bool]] = [
    (a_run(sandboxed=True), CLOSED, "local command", False),
    (a_run(sandboxed=True), OPEN, "command with network", True),
    (a_run(sandboxed=False), CLOSED, "command with network", True),
    (STDIN, CLOSED, "local command", False),
    (STDIN, OPEN, "command with network", True),
    (MCP, CLOSED, "MCP server docs", True),
    (CLIENT, CLOSED, "a client's tool", True),
    (CUSTOM, CLOSED, "tool deploy", True),
    (PATCH, OPEN, "Dendro: patch", False),
    (MERGE, OPEN, "Dendro: merge", False),
    (ASKS, OPEN, "person", False),
    (AWAIT, OPEN, "agent", False),
]


async def shown_to(logs: Logs, network: bool = False) -> list[Answer]:
    """The items that the model was shown before its last call."""
    answers = [one async for one in context(logs, "decides", network=network)]
    return [one for one in answers if one.values["what"] == "item"]


def decides(session: Session) -> None:
    session.begin()
    session.calls("decides")


@pytest.mark.parametrize(("work", "policy", "origin", "network"), ORIGINS)
async def test_output_of_a_call_of_each_kind_has_its_origin(
    work: w.CallWork, policy: Mapping[str, Any], origin: str, network: bool
) -> None:
    session = working(policy)
    session.asks_for("c1")
    session.assessed("c1", a_command("ls"))
    session.finishes("c1", "the output", events=(exec_end("c1"),))
    decides(session)
    logs = Logs()
    for seq, line in enumerate(session.lines, 1):
        kind = e.stored_kind(line)
        is_move = kind is f.CallMoved and b'"exec"' in line
        logs.add("s1", seq, 1, e.encode_entry(moved(work, "c1"), 1, {}).line if is_move else line)
    by_output = [one for one in await shown_to(logs) if one.values["item"] == "function_call_output"]
    assert [(one.values["origin"], one.values["network"]) for one in by_output] == [(origin, network)]
    assert bool(await shown_to(logs, network=True)) == network


TEXTS: list[tuple[str, str, str]] = [
    ("user", "<user_instructions>\n\nbe brief\n\n</user_instructions>", "instructions file"),
    ("user", "<environment_context>\n</environment_context>", "Dendro: the environment"),
    ("user", "<skill>\n<name>s</name>\n</skill>", "skill"),
    ("user", "what a person says", "person: ben (scope approve, token ab12) through app-server"),
    ("developer", "You are agent 1 of a tree", "Dendro: the agent's part"),
    ("developer", "anything else", "Dendro"),
    ("assistant", "what a model says", "model"),
]


@pytest.mark.parametrize(("role", "words", "origin"), TEXTS)
async def test_message_of_each_kind_has_its_origin(role: str, words: str, origin: str) -> None:
    session = Session(settings={"approval_policy": "never"}, told_by_test=True)
    session.submit(op("user_input", items=[text("go")]), "u1", by=ANN)
    session.answers("done")
    session.submit(op("user_input", items=[text("and on")]), "u2", by=BEN)
    kind = "output_text" if role == "assistant" else "input_text"
    session.record(e.item({"type": "message", "role": role, "content": [{"type": kind, "text": words}]}))
    decides(session)
    shown = {one.values["sha256"]: one.values["origin"] for one in await shown_to(logs_of(session))}
    assert shown[digest_of(words)] == origin
    assert shown[digest_of("go")].startswith("person: ann@host"), "each task has its own person"


async def test_what_was_shown_to_one_session_is_not_told_of_another() -> None:
    one, other = working(OPEN), working(OPEN)
    one.answers("only here")
    decides(other)
    shown = await shown_to(logs_of(one, other))
    assert digest_of("go") in {answer.values["sha256"] for answer in shown}
    assert digest_of("only here") not in {answer.values["sha256"] for answer in shown}


# ── secrets ───────────────────────────────────────────────────────────────────────────────────────


A, N = "aB3" * 30, "0123456789abcdef" * 5
FORMS: dict[str, str] = {
    "private key": "-----BEGIN OPENSSH PRIVATE KEY-----",
    "AWS access key": "AKIAIOSFODNN7EXAMPLE",
    "AWS secret key": f"aws_secret_access_key = {A[:40]}",
    "GitHub token": f"ghp_{A[:36]}",
    "GitHub fine-grained token": f"github_pat_{A[:60]}",
    "GitLab token": f"glpat-{A[:20]}",
    "Slack token": f"xoxb-{A[:12]}",
    "Slack webhook": f"https://hooks.slack.com/services/T01/B01/{A[:16]}",
    "OpenAI key": f"sk-proj-{A[:20]}",
    "Anthropic key": f"sk-ant-{A[:20]}",
    "Google API key": f"AIza{A[:35]}",
    "Google OAuth secret": f"GOCSPX-{A[:28]}",
    "Stripe key": f"sk_live_{A[:16]}",
    "npm token": f"npm_{A[:36]}",
    "PyPI token": f"pypi-{A[:50]}",
    "Docker token": f"dckr_pat_{A[:20]}",
    "Hugging Face token": f"hf_{A[:30]}",
    "SendGrid key": f"SG.{A[:16]}.{A[:16]}",
    "Twilio key": f"SK{N[:32]}",
    "DigitalOcean token": f"dop_v1_{N[:64]}",
    "JSON web token": f"eyJ{A[:10]}.eyJ{A[:10]}.{A[:10]}",
    "address with a password": "postgres://ann:hunter22@db.example/x",
    "bearer token": f"Authorization: Bearer {A[:12]}",
    "password": "password: 'hunter22'",
    "password in a variable": "DB_PASSWORD=hunter22",
    "value withheld by Dendro": "[redacted]",
}


@pytest.mark.parametrize("kind", PATTERNS)
async def test_secret_of_each_form_is_found_once_by_what_it_is(kind: str) -> None:
    session = working()
    session.record(e.item({"type": "message", "role": "user", "content": [_words(f"it is {FORMS[kind]}")]}))
    [found] = [one for one in [one async for one in secrets(logs_of(session))] if one.entries]
    assert found.values["kind"] == kind
    assert FORMS[kind] not in repr(asdict(found)) or kind == "value withheld by Dendro"


def _words(words: str) -> dict[str, str]:
    return {"type": "input_text", "text": words}


async def test_secret_was_in_the_requests_of_the_conversation_that_has_it_and_in_no_other() -> None:
    one, other = working(), working()
    one.answers("before")
    one.submit(op("user_input", items=[text("go on")]), "u2", by=ANN)
    one.begin()
    one.item({"type": "message", "role": "assistant", "content": [_words(FORMS["npm token"])]})
    one.ends(usage=USAGE)
    for number in (3, 4):
        one.submit(op("user_input", items=[text("more")]), f"u{number}", by=ANN)
        one.answers("done")
    other.answers("of another session")
    [found] = [answer async for answer in secrets(logs_of(one, other)) if answer.values["what"] == "secret"]
    assert [request.split()[1] for request in found.values["requests"]] == ["3", "4"]
    assert found.values["agents"] == ["0"]
    one.submit(op("compact"), "u5")
    one.answers("a summary without it")
    one.submit(op("user_input", items=[text("more")]), "u6", by=ANN)
    one.answers("done")
    [found] = [answer async for answer in secrets(logs_of(one)) if answer.values["what"] == "secret"]
    assert [request.split()[1] for request in found.values["requests"]] == ["3", "4", "5"]


# ── cost ──────────────────────────────────────────────────────────────────────────────────────────


def spends(session: Session, micro: int, by: Sender | None, served: str = "") -> None:
    session.submit(op("user_input", items=[text("go")]), f"u{session.seq}", by=by)
    session.begin()
    session.item({"type": "message", "role": "assistant", "content": []})
    told = Served("https://api.example", served) if served else None
    session.ends(usage=USAGE, price=Price(micro, 1.0, 0.1, 2.0), served=told)


DAY_MS = 86_400_000
SUMS: dict[By, Mapping[str, int]] = {
    "who": {"ann@host": 11, "ben": 100, "nobody (mail began the task)": 1_000},
    "behalf": {"ann@host": 11, "ben": 1_100},
    "token": {"machine": 11, "ab12": 1_100},
    "agent": {"0": 111, "0.1": 1_000},
    "model": {"asked": 1_010, "a-2026": 101},
    "day": {"2026-01-01": 1, "2026-01-02": 1_110},
}


@pytest.mark.parametrize("by", SUMS)
async def test_cost_is_summed_by_each_that_can_be_asked_for_the_dearest_first(by: By) -> None:
    first_ms = 1_767_225_600_000
    root = Session(settings={"model": "asked"}, now_ms=first_ms)
    spends(root, 1, ANN, "a-2026")
    root.now_ms += DAY_MS
    spends(root, 10, ANN)
    spends(root, 100, BEN, "a-2026")
    logs = logs_of(root)
    assert root.state.settings is not None
    settings, facts = root.state.settings, replace(root.state.facts, agent_path="0.1", behalf=BEN)
    priced = f.RequestCompleted(1, usage=USAGE, price=Price(1_000, 1.0, 0.1, 2.0))
    begun = f.TaskBegun(SubmissionId("1"), "user", settings)
    own: tuple[f.Fact, ...] = (f.Configured(settings, facts), begun, priced)
    writes(logs, *map(e.fact, own), session="s2", at_ms=first_ms + DAY_MS)
    groups = await cost(logs, by)
    assert {group.name: group.cost_micro for group in groups} == SUMS[by]
    assert [group.cost_micro for group in groups] == sorted(SUMS[by].values(), reverse=True)
    assert sum(group.requests for group in groups) == 4


ENDS: dict[str, Callable[[Session], object]] = {
    "priced": lambda session: session.ends(usage=USAGE, price=Price(5, 1.0, 0.1, 2.0)),
    "without a price": lambda session: session.ends(usage=USAGE),
    "without usage": lambda session: session.ends(usage=None),
    "broken": lambda session: session.breaks("fatal", "no"),
    "unsent": lambda session: session.happens(c.ResponseBroken(session.request_n, "unsent", "later", 1)),
}


@pytest.mark.parametrize(("end", "unpriced"), [(end, int(end == "without a price")) for end in ENDS])
async def test_request_that_used_tokens_and_has_no_price_is_alone_of_unknown_cost(
    end: str, unpriced: int
) -> None:
    session = working()
    session.begin()
    ENDS[end](session)
    [group] = await cost(logs_of(session), "agent")
    assert (group.requests, group.unpriced) == (1, unpriced)
    assert group.cost_micro == (5 if end == "priced" else 0)


# ── what was read, answered and changed ───────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("path", "outside"),
    [
        ("a", ""),
        (f"{WORKSPACE}/a", ""),
        (WORKSPACE, ""),
        ("below/../a", ""),
        ("../a", f"{posixpath.dirname(WORKSPACE)}/a".replace("//", "/")),
        (f"{WORKSPACE}2/a", f"{WORKSPACE}2/a"),
        ("/etc/passwd", "/etc/passwd"),
    ],
)
async def test_command_that_reads_outside_of_its_folder_is_told(path: str, outside: str) -> None:
    read = {"type": "read", "cmd": f"cat {path}", "name": path, "path": path}
    work = w.ExecWork((), ("cat", path), WORKSPACE, (read,), None, {})
    logs = logs_of(working())
    writes(logs, moved(work))
    found = [
        one.values for one in [one async for one in secrets(logs)] if one.values["what"] == "read outside"
    ]
    assert [one["paths"] for one in found] == ([[outside]] if outside else [])


async def test_each_secret_answer_of_a_person_is_told_and_no_other_answer() -> None:
    logs = logs_of(working())
    answers = {"c1": True, "c2": False, "c3": True}
    for call, secret in answers.items():
        writes(
            logs, e.fact(f.Answered(CallId(call), SubmissionId("u1"), "answered", "ann", secret="x" * secret))
        )
    found = [one.values async for one in secrets(logs) if one.values["what"] == "secret answer"]
    assert [one["call"] for one in found] == ["c1", "c3"]


def saved(snapshot: str, *names: str, files: int = 0) -> Entry:
    pack = Pack("packs/1", "ab" * 32, 10, whole=True)
    counts = FileCounts(files or len(names), 0, 0)
    return e.fact(f.WorkspaceSaved(SnapshotId(snapshot), None, pack, counts, names, (), 1))


async def test_last_snapshot_with_another_content_of_a_file_is_told_of_each_session() -> None:
    logs = logs_of(working(), working())
    writes(logs, saved("c1", "a.txt"), saved("c2", "b.txt", "a.txt"), saved("c3", "b.txt"))
    writes(logs, saved("d1", "a.txt"), saved("d2", "b.txt", files=9), session="s2")
    logs.told.sort(key=lambda one: one.session)
    told = [one async for one in file(logs, "a.txt")]
    snapshots = [(one.values["what"], one.values["snapshot"], one.proved) for one in told]
    assert snapshots == [
        ("snapshot", "c1", True),
        ("snapshot", "c2", True),
        ("snapshot", "d1", True),
        ("snapshot", "d2", False),
        ("final", "c2", True),
        ("final", "d1", True),
    ]


async def test_entry_is_meant_by_its_session_and_number_or_by_the_number_in_the_first_log() -> None:
    sessions = []
    for words in ("in the first", "in the second"):
        session = Session(settings={"approval_policy": "never"})
        session.submit(op("user_input", items=[text(words)]), "u1", by=ANN)
        decides(session)
        sessions.append(session)
    logs, last = logs_of(*sessions), sessions[0].seq
    assert sessions[1].seq == last
    for wanted, words in (
        (f"s1:{last}", "in the first"),
        (f"s2:{last}", "in the second"),
        (f"{last}", "in the first"),
    ):
        shown = {one.values.get("sha256") for one in [one async for one in context(logs, wanted)]}
        assert {digest_of("in the first"), digest_of("in the second")} & shown == {digest_of(words)}
    for nothing in ("s1:²", "s1:" + "9" * 5_000, "s1:0"):
        # No number of an entry: a call of that name, and there is none.
        found = [one async for one in context(logs, nothing)]
        assert digest_of("in the first") not in {one.values.get("sha256") for one in found}


IDS = [
    "0199a2b4-0000-7000-8000-000000000a01",
    "0199a2b4-0001-7000-8000-00000000beef",
    "0199a2b5-0002-7000-8000-000000000a02",
    "0199a2b5-0003-7000-8000-00000000cafe",
]
"""A root, and its agents behind it."""


@pytest.mark.parametrize(
    ("part", "named"),
    [
        *((id, number) for number, id in enumerate(IDS)),
        *((id.replace("-", "")[-8:], number) for number, id in enumerate(IDS)),
        ("BEEF", 1),
        ("0199a2b40001", 1),
        ("0199a2b4", 0),
        ("0199", 0),
        ("0199a2b5", "part of the ids of 2 sessions"),
        ("eef", None),
        ("dead", None),
        ("0199a2b4-0001-7000-8000-00000000bee", 1),
    ],
)
async def test_entry_is_meant_by_its_number_and_any_part_of_its_sessions_id(
    part: str, named: int | str | None
) -> None:
    logs = Logs()
    for number, id in enumerate(IDS):
        session = Session(settings={"approval_policy": "never"})
        session.submit(op("user_input", items=[text(f"words {number}")]), "u1", by=ANN)
        decides(session)
        for seq, line in enumerate(session.lines, 1):
            logs.add(id, seq, 1, line)
    last = logs.told[-1].seq
    if isinstance(named, str):
        with pytest.raises(ViewError, match=named):
            _ = [one async for one in context(logs, f"{part}:{last}")]
        return
    shown = {one.values.get("sha256") for one in [one async for one in context(logs, f"{part}:{last}")]}
    said = {digest_of(f"words {number}"): number for number in range(len(IDS))}
    assert {said[digest] for digest in said.keys() & shown} == ({named} if named is not None else set())


async def test_requests_that_were_lost_are_of_unknown_usage_in_each_session() -> None:
    lost, whole, last = working(), working(), working()
    for session in (lost, last):
        session.begin()
    whole.answers("done")
    total = Total()
    await cost(logs_of(lost, whole, last), "agent", total)
    assert (total.unknown, total.requests, total.tokens) == (2, 1, USAGE["total_tokens"])
    assert total.compared(Spend(500, 0, 3)) == "", "the registry has an estimate of each"
    assert total.compared(Spend(USAGE["total_tokens"] - 1, 0, 3)) != "", "and never less than the logs"


@pytest.mark.parametrize(("epoch", "imported"), [(0, True), (1, False)])
async def test_sum_of_an_imported_session_is_not_held_against_its_registry(
    epoch: int, imported: bool
) -> None:
    logs, total = Logs(), Total()
    for seq, line in enumerate(working().lines, 1):
        logs.add("s1", seq, epoch, line)
    await cost(logs, "agent", total)
    assert total.imported == imported


async def test_redaction_is_told_with_the_bundles_that_were_made_before_it() -> None:
    logs, digests = Logs(), ["ab" * 32, "cd" * 32, "ef" * 32]
    made = [f.Bundled(digest, 1, 1, 0, "a key", "ann@host") for digest in digests]
    goes = [f.Redacted(f"session:s{number}", 4, "00" * 32, "ann@host", "why", {}) for number in (1, 2)]
    told: list[tuple[str, int, f.Fact]] = [
        ("s1", 1, made[0]),
        ("s1", 2, goes[0]),
        ("s1", 3, made[1]),
        ("s1", 5, made[2]),
        ("s2", 4, goes[1]),
    ]
    for session, day, fact in told:
        writes(logs, e.fact(fact), session=session, at_ms=day * DAY_MS)
    found = [one.values for one in [one async for one in redactions(logs)]]
    assert [one["digest"] for one in found if one["what"] == "bundled"] == digests
    before = {one["entry"]: one["bundles"] for one in found if one["what"] == "redacted"}
    assert before == {"s1:4": digests[:1], "s2:4": digests[:2]}
