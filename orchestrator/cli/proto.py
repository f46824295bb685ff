"""`dendro proto`: submissions and events as NDJSON on stdio, a drop-in for Codex's `proto`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from orchestrator.cli.invocation import Invocation, warn_if_read_only
from orchestrator.cli.run import At, ForkOption, From, NoWorker, Portable, Resume, first_content
from orchestrator.terminal.faults import ExitCode
from orchestrator.terminal.origin import Origin
from orchestrator.views import SetAside

if TYPE_CHECKING:
    from orchestrator.core.ids import SessionId
    from orchestrator.protocol.ops import WorkspaceSource
    from orchestrator.settings import Settings
    from workers.companion import Companion


def proto(
    ctx: typer.Context,
    resume: Resume = None,
    fork: ForkOption = None,
    at: At = None,
    no_worker: NoWorker = False,
    portable: Portable = False,
    origin_url: From = None,
) -> None:
    """Serves one session on stdio: submissions in, events out, as NDJSON.

    The first line out is `session_configured`. The end of stdin ends it when
    nothing runs any more; exit code 3 if the session waits for an answer then,
    1 if nobody can go on with it.
    --fork makes a session that goes on where another stands, or where its
    turn --at ended; that other session stays as it is. With --portable the
    session works in a copy of this folder, or of a repository.

    \b
    echo '{"id":"1","op":{"type":"user_input","items":[{"type":"text","text":"hi"}]}}' | dendro proto
    dendro proto --resume 0199a2b4 --no-worker
    dendro proto --fork 0199a2b4 --at resp_68d1
    """
    import uvloop

    from orchestrator.cli.processes import companion

    invocation = Invocation.of(ctx)
    settings = invocation.settings()
    origin = Origin.of(resume, fork, at)
    workspace = first_content(settings, origin, origin_url, portable=portable)
    if origin.is_new and workspace is None:
        warn_if_read_only(settings)
    with companion(invocation, wanted=not no_worker) as worker:
        if worker is not None and origin.resume is None:
            worker.start()
        try:
            code = uvloop.run(_serve(settings, origin, worker, workspace))
        except BrokenPipeError:
            # The client has gone. What runs goes on with whoever serves the pool.
            code = ExitCode.FAILED
        if worker is not None and code == ExitCode.FAILED:
            worker.dismiss()
    raise typer.Exit(code)


async def _serve(
    settings: Settings, origin: Origin, worker: Companion | None, workspace: WorkspaceSource | None
) -> ExitCode:
    from orchestrator.broker.follow import BEGINNING
    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.ndjson import Ending, NdjsonConnection, Streams
    from orchestrator.gateways.resume import greeting, to_resume, until_read
    from orchestrator.terminal.origin import forked
    from orchestrator.terminal.streams import read_stdin, write_json
    from orchestrator.wiring.open_deployment import new_session, portable_session

    async with opened(settings, insists=True, kind="gateway") as found:
        client, cursor = found.client(via="proto"), BEGINNING
        if workspace is not None:
            session = await portable_session(found, client, workspace)
        elif origin.is_new:
            session = await new_session(settings, client)
        else:
            if origin.resume is None:
                head = await forked(found, client, origin)
            else:
                head = await to_resume(found, origin.resume)
                if worker is not None:
                    worker.start()
                    await worker.outliving(until_read(found, head), _go_on(head.session))
            session = head.session
            told = await greeting(found, head, await client.history())
            cursor = told.cursor
            await write_json(told.lines())
        streams = Streams(read_stdin, write_json)
        connection = NdjsonConnection(client, session, streams, settings.wire.line_limit_bytes)
        serving = connection.serve(cursor)
        if worker is not None:
            serving = worker.outliving(serving, _go_on(session))
        ending = await serving
    if ending is Ending.QUARANTINED:
        raise SetAside(session)
    return ExitCode.WAITING if ending is Ending.WAITING else ExitCode.DONE


def _go_on(session: SessionId) -> str:
    return f"go on with: dendro proto --resume {session}"
