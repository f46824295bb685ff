"""Whole lives of sessions, each told once: for golden rollouts, and for what must hold of every event."""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.core.commands import Immediate
from orchestrator.core.context import initial_context
from orchestrator.core.entries import item
from orchestrator.core.settings import Rules, TurnSettings
from tests.core.driver import (
    SETTINGS,
    Session,
    a_command,
    a_patch,
    assistant,
    exec_end,
    op,
    patch_end,
    text,
)


def talk() -> Session:
    """Two turns of plain conversation, reasoning and a web search, then the end."""
    session = Session(rules=Rules(show_raw_reasoning=True))
    for opening in initial_context(TurnSettings.of(SETTINGS), "be brief", "bash"):
        session.record(item(opening))
    session.say("hello", "u1")
    session.begin()
    session.item(
        {
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": "greet"}],
            "content": [{"type": "reasoning_text", "text": "they greet, so I greet"}],
            "encrypted_content": "opaque",
        }
    )
    session.item({"type": "web_search_call", "id": "ws1", "action": {"type": "search", "query": "greetings"}})
    session.item(assistant("good day"))
    session.ends(rate_limits={"primary": {"used_percent": 1.5}, "secondary": None})
    session.say("and again", "u2")
    session.answers("good day again")
    session.submit(op("get_path"), "path")
    session.shutdown()
    return session


def work() -> Session:
    """Commands and patches: run unasked, approved, denied, granted, and one that the sandbox stopped."""
    session = Session(settings={"approval_policy": "on-failure"}, facts={"approval_timeout_ms": 60_000})
    session.say("fix it", "u1")
    session.begin()
    session.calls("c1", "c2", "c3")
    session.calls("p1", "p2", name="apply_patch")
    session.calls("plan", name="update_plan")
    session.runs("c1", "ls")
    session.finishes("c1", "a.txt", events=(exec_end("c1"),))
    session.ends()
    session.assessed("c2", a_command("make"))
    session.finishes("c2", "denied", events=(exec_end("c2", 1),), sandbox_denied=True)
    session.decides("c2", "approved_for_session", who="ann")
    session.finishes("c2", "made", events=(exec_end("c2"),))
    session.assessed("c3", a_command("rm", "-rf", "/", dangerous=True))
    session.decides("u1", "denied", who="ann")
    session.assessed("p1", a_patch())
    session.finishes("p1", "Success.", events=(patch_end("p1"),), applied=True)
    session.assessed("p2", a_patch("/other/b.txt", outside=["/other/b.txt"]))
    session.decides("p2", "approved_for_session", kind="patch", who="bob")
    session.finishes("p2", "Success.", events=(patch_end("p2"),), applied=True)
    session.assessed("plan", Immediate("Plan updated"))
    session.answers("fixed")
    session.say("once more", "u2")
    session.asks_for("c4")
    session.assessed("c4", a_command("rm", "-rf", "/", dangerous=True))
    session.fires("approval:c4")
    session.answers("as you like")
    return session


def trouble() -> Session:
    """Broken streams, limits, a lost worker, a fatal answer."""
    session = Session(rules=Rules(stream_max_retries=3))
    session.say("go", "u1")
    session.begin()
    session.item(assistant("half"))
    session.breaks("stream", "connection reset", http_used=1)
    session.begin()
    session.breaks("limited", "slow down", http_used=1, delay_ms=60_000)
    session.fires("retry")
    session.begin()
    session.calls("c1", "c2")
    session.calls("p1", name="apply_patch")
    session.runs("c1", "make")
    session.is_taken_over()
    session.runs("c2", "make", "again")
    session.is_taken_over()
    session.assessed("p1", a_patch())
    session.is_taken_over(p1="none")
    session.assessed("p1", a_patch())
    session.is_taken_over(p1="all")
    session.begin()
    session.calls("c3")
    session.runs("c3")
    session.breaks("fatal", "invalid request", codex_error_info="bad_request")
    session.stopped(c3=0.5)
    return session


def impatience() -> Session:
    """Input over input, steering, interrupts, a configuration in between, a shutdown over a queue."""
    session = Session(facts={"on_user_input": "steer"})
    session.say("first", "u1")
    session.begin()
    session.say("also", "u2")
    session.item(assistant("hm"))
    session.ends("r1")
    session.asks_for("c1")
    session.runs("c1")
    session.interrupt()
    session.say("queued", "u3")
    session.stopped(c1=1.5)
    session.begin()
    session.say("from the start", "u4", last_response_id="r1")
    session.say("and more", "u5")
    session.stopped()
    session.stopped()
    session.submit(op("configure_session", model="gpt-5-codex", effort="high"), "conf")
    turn = {
        "items": [text("look "), {"type": "image", "image_url": "data:image/png;base64,AA"}],
        "cwd": "/new",
        "approval_policy": "untrusted",
        "sandbox_policy": {"mode": "workspace-write", "writable_roots": ["/r"], "network_access": True},
        "model": "codex-mini-latest",
        "effort": "low",
        "summary": "concise",
    }
    session.submit(op("user_turn", **turn), "u6")
    session.asks_for("c1")
    session.assessed("c1", a_command("make"))
    session.submit(op("override_turn_context", cwd="/newer", effort=None), "over")
    session.decides("c9", "approved", id="wrong")
    session.decides("c1", "abort", who="ann")
    session.decides("c1", "approved", id="late")
    session.say("last", "u7")
    session.begin()
    session.submit(op("user_turn", **turn), "u8")
    session.shutdown()
    session.stopped()
    session.say("back", "u9")
    session.stopped()
    session.answers("welcome back")
    return session


def long_talk() -> Session:
    """Compaction: by hand, by itself, and one that fails."""
    session = Session(rules=Rules(auto_compact_limit=1_000))
    for opening in initial_context(TurnSettings.of(SETTINGS), None, "bash"):
        session.record(item(opening))
    session.say("one", "u1")
    session.answers("first")
    session.compact("k1")
    session.begin()
    session.item(assistant("the first summary"))
    session.ends()
    session.say("two", "u2")
    session.begin()
    session.calls("c1")
    session.ends(usage={"total_tokens": 1_000})
    session.runs("c1")
    session.finishes("c1", "x" * 5_000)
    session.begin()
    session.item(assistant("the second summary"))
    session.ends(usage={"total_tokens": 1_000})
    session.answers("done")
    session.compact("k2")
    session.begin()
    session.ends()
    return session


LIVES: dict[str, Callable[[], Session]] = {
    life.__name__: life for life in (talk, work, trouble, impatience, long_talk)
}
