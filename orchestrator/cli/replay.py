"""`dendro replay`: folds a log again and holds the result against the live state."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.core.counts import counted
from orchestrator.terminal.faults import ExitCode

if TYPE_CHECKING:
    from orchestrator.core.state import State
    from orchestrator.rollouts.replay import Folded

KINDS = {
    "full": "full export",
    "exported": "export in Codex's shapes: facts of Dendro's own are left out, so the state is partial",
    "foreign": "Codex's rollout: it has no hash chain",
}


def replay(
    ctx: typer.Context,
    source: Annotated[
        str, typer.Argument(metavar="ID|FILE", help="A session id, the beginning of one, or a file.")
    ],
    at: Annotated[int | None, typer.Option("--at", metavar="SEQ", min=1, help="Fold only so far.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The whole state as JSON.")] = False,
    accept_old_header: Annotated[
        bool, typer.Option("--accept-old-header", help="A keyed file whose first line bears no code, too.")
    ] = False,
) -> None:
    """Folds a session's log again, and compares with the live state.

    The hash chain is checked on the way. The state's SHA-256 is held against
    the one that the session's last worker had folded live; exit code 1 if
    they differ, or if the chain is broken; 2 if the chain's key is not
    configured here.

    \b
    dendro replay 0199a2b4
    dendro replay 0199a2b4 --at 120 --json | jq .state.task
    dendro replay session.jsonl
    """
    import asyncio

    folded = asyncio.run(_folded(Invocation.of(ctx), source, at, accept_old_header))
    from orchestrator.terminal.text import json_for_stdout, one_line

    if json:
        typer.echo(json_for_stdout(_as_json(folded)))
    else:
        for line in summary(folded):
            print(one_line(line))
    wrong = folded.broken or folded.matches is False
    raise typer.Exit(ExitCode.FAILED if wrong else ExitCode.USAGE if folded.unchecked else ExitCode.DONE)


async def _folded(invocation: Invocation, source: str, at: int | None, accept_old_header: bool) -> Folded:
    from orchestrator.cli.invocation import existing_file, opened
    from orchestrator.rollouts.replay import fold_file, fold_session
    from orchestrator.wiring.deployment import chain_key

    settings = invocation.settings()
    path = existing_file(source)
    if path is not None:
        return fold_file(path, at, chain_key(settings), accept_old_header=accept_old_header)
    async with opened(settings) as found:
        return await fold_session(found, await found.find(source), at)


def _as_json(folded: Folded) -> bytes:
    import orjson

    from orchestrator.core.lines import given
    from orchestrator.core.snapshot import digest, encode

    live = folded.live
    value: dict[str, Any] = {
        "kind": folded.kind or "session",
        "session_id": folded.state.facts.session_id or given(folded.state.meta.id),
        "seq": folded.seq,
        "head": folded.head.hex(),
        "state_sha256": digest(folded.state),
        "live": {"seq": live.seq, "state_sha256": live.sha256} if live else None,
        "matches": folded.matches,
        "broken": {"seq": folded.broken.seq, "reason": folded.broken.reason} if folded.broken else None,
        "unchecked": folded.unchecked or None,
        "state": orjson.Fragment(encode(folded.state)),
    }
    return orjson.dumps(value)


def summary(folded: Folded) -> Iterator[str]:
    """The state for a person, then the verdicts."""
    from orchestrator.core.snapshot import digest

    if folded.kind is not None:
        yield f"file       {KINDS[folded.kind]}"
    if folded.unchecked:
        # Nothing was folded: the state is that of a session to which nothing was ever said.
        yield f"chain      {_chain(folded)}"
        yield f"live fold  {_live(folded)}"
        return
    for name, value in _facts(folded.state):
        yield f"{name:<10} {value}"
    left_out = f", {folded.omitted} facts left out" if folded.omitted else ""
    redacted = f", {folded.redacted} redacted" if folded.redacted else ""
    yield f"log        {folded.seq} entries, {folded.lines} folded{left_out}{redacted}"
    yield f"state      sha256 {digest(folded.state)}"
    yield f"chain      {_chain(folded)}"
    yield f"live fold  {_live(folded)}"


def _facts(state: State) -> Iterator[tuple[str, str]]:
    from orchestrator.core.tokens import context_left
    from orchestrator.rollouts.session_summary import title

    facts, settings, tokens = state.facts, state.settings, state.tokens
    yield "session", facts.session_id or str(state.meta.id or "unknown")
    yield "title", title(state) or "(nothing was said yet)"
    yield "status", f"{state.status}{f', last task {state.outcome}' if state.outcome else ''}"
    sandbox = settings.sandbox_policy.get("mode", "")
    yield "settings", f"{settings.model} by {settings.model_provider}, {settings.approval_policy}, {sandbox}"
    yield "cwd", settings.cwd
    kinds = Counter(str(item.get("type")) for item in state.history)
    shares = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    yield "history", f"{counted(len(state.history), 'item')}{f': {shares}' if shares else ''}"
    if tokens is not None:
        left = context_left(tokens, settings.context_window)
        share = f", {left:.0%} of the context left" if left is not None else ""
        yield "tokens", f"{tokens.total.blended_total:,}{share}"
    if state.task is not None:
        calls = "; ".join(f"{call.name} {call.call_id} {call.phase}" for call in state.task.calls)
        yield "task", f"{state.task.id} ({state.task.kind}){f': {calls}' if calls else ''}"
    if state.queue:
        yield "queued", ", ".join(waiting.id for waiting in state.queue)


def _chain(folded: Folded) -> str:
    if folded.kind == "foreign":
        return "none"
    if folded.unchecked:
        return folded.unchecked
    if folded.broken is not None:
        return f"BROKEN at entry {folded.broken.seq}: {folded.broken.reason}"
    return f"holds, head {folded.head.hex()[:16]}…"


def _live(folded: Folded) -> str:
    if folded.unchecked:
        return "nothing to compare: nothing was folded"
    if folded.matches is None:
        return "nothing to compare: " + _why_not(folded)
    live = folded.live
    assert live is not None
    at = f"at entry {live.seq}"
    return f"equal {at}" if folded.matches else f"DIFFERENT {at}: live {live.sha256}"


def _why_not(folded: Folded) -> str:
    if folded.redacted:
        verb = "was" if folded.redacted == 1 else "were"
        return f"{counted(folded.redacted, 'entry')} in the log {verb} redacted"
    if not folded.complete:
        return "the file does not hold every entry"
    if folded.live is None:
        return "the session has not come to rest yet"
    return f"the live fold was taken at entry {folded.live.seq}"
