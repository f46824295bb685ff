"""`dendro approvals`: what waits for a person, in a tree or in the whole fleet, and its answer."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.faults import ExitCode, Fault
from orchestrator.cli.invocation import Invocation
from orchestrator.core.counts import age

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from orchestrator.protocol.policy import ReviewDecision
    from orchestrator.views.approvals import Asked, Needed, Wishes
    from orchestrator.wiring.open_deployment import Opened

AT_ONCE = 32
_PATTERN = "A call, or a glob over each plain command or each path; may be repeated."
_DENIAL = "A call, or a glob over any part of a command or any path; may be repeated."


def approvals(
    ctx: typer.Context,
    id: Annotated[
        str | None, typer.Argument(metavar="ID", help="Only the tree that this session belongs to.")
    ] = None,
    allow: Annotated[list[str] | None, typer.Option("--allow", metavar="PATTERN", help=_PATTERN)] = None,
    deny: Annotated[list[str] | None, typer.Option("--deny", metavar="PATTERN", help=_DENIAL)] = None,
    for_session: Annotated[
        list[str] | None,
        typer.Option("--for-session", metavar="PATTERN", help="Allow, and do not ask that agent again."),
    ] = None,
    all: Annotated[
        bool, typer.Option("--all", help="Answer in every tree of the fleet, without ID.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="What is open as a JSON array.")] = False,
) -> None:
    """Lists the requests that wait for a person, and answers them.

    Of each: how long it waits, the tree with its name, the agent, the folder; and
    below, the call and what it is for. The oldest first.

    Each answer is a submission to the agent that asked, with your name in its
    log. An answer that comes second says who decided, and how; a glob that only
    means earlier requests is an error that says so.

    A glob allows a script only if it is plain and each of its commands matches;
    redirects, substitutions and variables need the call's id. It denies as soon
    as any part matches.

    \b
    dendro approvals
    dendro approvals 0199a2b4 --allow "git fetch*" --deny 3:call_7
    dendro approvals --all --for-session "npm test*"
    """
    import asyncio

    from orchestrator.protocol.policy import ReviewDecision

    wishes = {
        ReviewDecision.APPROVED: allow or [],
        ReviewDecision.APPROVED_FOR_SESSION: for_session or [],
        ReviewDecision.DENIED: deny or [],
    }
    if any(wishes.values()) and id is None and not all:
        raise Fault("name the tree to answer in, or say --all for the whole fleet", ExitCode.USAGE)
    if id is not None and all:
        raise Fault("either one tree's ID, or --all", ExitCode.USAGE)
    asyncio.run(_approvals(Invocation.of(ctx), id, wishes, json=json))


async def _approvals(invocation: Invocation, id: str | None, wishes: Wishes, *, json: bool) -> None:
    import asyncio

    from orchestrator.cli.invocation import opened
    from orchestrator.cli.terminal import plain
    from orchestrator.gateways.approvals import decide
    from orchestrator.views.approvals import Decided, chosen, open_requests_of
    from orchestrator.views.decisions import decided_before

    async with opened(invocation.settings()) as found:
        tree = await found.find_tree(id) if id is not None else None
        asked = await open_requests_of(found, tree)
        if not any(wishes.values()):
            await _list(found, asked, json=json)
            return
        before = await decided_before(found, tree, asked, wishes)
        client, gate = found.client(), asyncio.Semaphore(AT_ONCE)

        async def answered(request: Asked, decision: ReviewDecision) -> Decided:
            async with gate:
                return await decide(client, found, request, decision)

        choice = chosen(asked, before.without_calls(wishes), before.similar)
        done = await asyncio.gather(*(answered(*one) for one in choice.decisions))
    for why in choice.passed_over:
        typer.echo(plain(why), err=True)
    for line in (*before.calls.values(), *(decided.line() for decided in done)):
        typer.echo(plain(line))


async def _list(found: Opened, asked: Sequence[Asked], *, json: bool) -> None:
    from orchestrator.views.approvals import needed

    asking = await needed(found, asked)
    if json:
        import orjson

        from orchestrator.cli.terminal import json_for_stdout

        values = [one.value() for one in asking]
        typer.echo(json_for_stdout(orjson.dumps(values, option=orjson.OPT_INDENT_2)))
        return
    if not asking:
        typer.echo("nothing waits for a person")
        return
    from rich.console import Console

    console, now_ms = Console(highlight=False), time.time() * 1000
    for one in asking:
        for line, style in needed_lines(one, now_ms):
            # Not wrapped here: a pipe gets what stands there, and a terminal wraps by itself.
            console.print(line, style=style, soft_wrap=True, markup=False)


def needed_lines(one: Needed, now_ms: float) -> Iterator[tuple[str, str]]:
    """A request in two lines, with their styles."""
    from orchestrator.cli.terminal import one_line

    agent = f"agent {one.asked.agent_path}" + (f" ({one.label})" if one.label else "")
    waits = f"{age((now_ms - one.asked.opened_ms) / 1000):<4}"
    parts = (one.title, agent if one.asked.agent_id else "the root", one.folder)
    yield f"{waits} {one.tree}  {one_line(' · '.join(part for part in parts if part))}", "bold"
    yield f"     {one_line(f'{one.asked.call}  {_wish(one)}')}", ""


def _wish(one: Needed) -> str:
    from orchestrator.views.event_text import variables_text

    request = one.asked.request
    verb = "run" if request["type"] == "exec_approval_request" else "change"
    variables = variables_text(request) if verb == "run" else ""
    parts = (f"{verb} {one.asked.subject}", f"with {variables}" if variables else "")
    reason = f" ({request['reason']})" if request.get("reason") else ""
    return " ".join(part for part in parts if part) + reason
