"""`dendro export` and `dendro import`: a session's log as a file, and a session from a file."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Protocol

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.core.counts import counted
from orchestrator.core.frozen import record
from orchestrator.home import without_links

if TYPE_CHECKING:
    from orchestrator.core.ids import SessionId
    from orchestrator.core.settings import PortableFolder, TurnSettings
    from orchestrator.rollouts.imports import ImportPlan
    from orchestrator.settings import Settings


def export(
    ctx: typer.Context,
    session: Annotated[str, typer.Argument(metavar="ID", help="A session id, or the beginning of one.")],
    file: Annotated[str, typer.Argument(metavar="FILE", help="Where to; `-` is stdout.")] = "-",
    full: Annotated[
        bool, typer.Option("--full", help="Every entry, for `dendro import` and replay.")
    ] = False,
) -> None:
    """Writes a session's log: in Codex's line shapes, or whole.

    Large texts are put back in. Either kind verifies offline; only a full
    one rebuilds the state, and only the other one tells the lives of the
    session's agents, from the tree's log.

    \b
    dendro export 0199a2b4 rollout.jsonl
    dendro export 0199a2b4 --full | zstd > session.jsonl.zst
    """
    import asyncio

    asyncio.run(_export(Invocation.of(ctx), session, file, full))


async def _export(invocation: Invocation, session: str, file: str, full: bool) -> None:
    from orchestrator.cli.invocation import opened
    from orchestrator.rollouts.export import Tally, exported, header_of

    async with opened(invocation.settings()) as found:
        head = await found.find(session)
        with _output(file) as out:
            if full:
                out.write(header_of(head, _key_id(found.settings)).encode(found.secret) + b"\n")
            tally = Tally()
            async for lines in exported(found, head, full, tally):
                out.write(lines)
    if file != "-":
        print(f"{head.session}: {tally.summary(head.seq)}: {file}", file=sys.stderr)


def _key_id(settings: Settings) -> str:
    return settings.chain.key_id if settings.chain.key else ""


class _Lines(Protocol):
    """Takes the lines of a file, each whole."""

    def write(self, lines: bytes, /) -> object: ...


@record
class _Stdout:
    """Standard output: a program gets the very bytes, a terminal the same values."""

    out: BinaryIO

    def write(self, lines: bytes, /) -> None:
        from orchestrator.terminal.text import json_for_stdout

        self.out.write(json_for_stdout(lines))


@contextmanager
def _output(file: str) -> Iterator[_Lines]:
    """Stdout, or a file of mode 600 that appears under its name only when it is complete."""
    if file == "-":
        yield _Stdout(sys.stdout.buffer)
        sys.stdout.buffer.flush()
        return
    from orchestrator.private_files import replacing

    path = Path(file)
    try:
        with replacing(path) as out:
            yield out
    except OSError as error:
        if Path(str(error.filename)).name.startswith(f".{path.name}."):
            # Nobody has asked for the file that it grows in.
            raise OSError(error.errno, error.strerror, file) from None
        raise


# ── import ────────────────────────────────────────────────────────────────────────────────────────


def import_(
    ctx: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="An export, a rollout or a bundle."),
    ],
    pool: Annotated[
        str | None, typer.Option("--pool", metavar="POOL", help="Which workers may run it.")
    ] = None,
    accept_old_header: Annotated[
        bool, typer.Option("--accept-old-header", help="A keyed file whose first line bears no code, too.")
    ] = False,
    trust: Annotated[
        bool, typer.Option("--trust", help="Its policies, approvals and work under way count as they stand.")
    ] = False,
) -> None:
    """Makes a session from a file, and prints its id.

    A full export becomes a session in the same state under a new id, its
    chain made anew. Codex's rollout becomes an idle session with its
    history and last settings; of a bundle, the root of its tree becomes one
    as from a full export. Nothing runs until somebody speaks to it, or the time
    is over for which it waits for an answer or for agents; and a file with one
    bad line makes no session at all.

    Whoever wrote a file may have written anything into it. So its policies
    count only as far as your own settings go, and in another folder than this
    one its commands only read; what it says to be approved is not. --trust is
    for a file that you have made yourself. A full export that your chain key
    proves needs none.

    \b
    dendro import session.jsonl
    dendro run --resume "$(dendro import rollout.jsonl)" "go on"
    """
    import asyncio

    settings = Invocation.of(ctx).settings({"pool": pool})
    session, plan, lacking = asyncio.run(_import(settings, file, accept_old_header, trust))
    for line in _import_summary(plan, lacking):
        print(line, file=sys.stderr)
    print(session)


async def _import(
    settings: Settings, file: Path, accept_old_header: bool, trust: bool
) -> tuple[SessionId, ImportPlan, int]:
    """The new session, its plan, and the packs of its folder that this deployment's archive has not."""
    import os
    import time
    from contextlib import ExitStack

    from orchestrator.cli.invocation import opened
    from orchestrator.core.frozen import replace
    from orchestrator.gateways.folder_facts import Workspace
    from orchestrator.gateways.principals import machine_user
    from orchestrator.rollouts import RolloutError
    from orchestrator.rollouts.bundle_export import OpenBundle
    from orchestrator.rollouts.bundle_form import NewerFormat
    from orchestrator.rollouts.bundle_members import BadContainer, is_bundle
    from orchestrator.rollouts.file_format import BadLine, lines_in, read_rollout
    from orchestrator.rollouts.imports import Newcomer, plan_import, store
    from orchestrator.rollouts.replay import instead_in, instead_of
    from orchestrator.terminal.faults import Fault
    from orchestrator.views.workspaces import copied_to
    from orchestrator.wiring.deployment import chain_key, worker_name
    from orchestrator.wiring.new_sessions import VERSION, new_birth

    now_ms = time.time_ns() // 1_000_000
    birth = new_birth(settings, Workspace(), now_ms, os.urandom)
    facts = replace(birth.facts, imported_from=_text_path(file))
    bound = None if trust else partial(_bounded, birth.settings)
    newcomer = Newcomer(facts, birth.settings, VERSION, now_ms, bound, machine_user().sender("cli"))
    key, blobs = chain_key(settings), dict[str, bytes]()
    with ExitStack() as stack:
        try:
            bundled = stack.enter_context(OpenBundle(file, key)) if is_bundle(file) else None
            lines = bundled.lines() if bundled is not None else lines_in(stack.enter_context(file.open("rb")))
            text = read_rollout(lines, blobs)
            told = instead_of(bundled.lines(), blobs) if bundled is not None else instead_in(file, blobs)
            old = accept_old_header
            plan = plan_import(text, newcomer, blobs, key, accept_old_header=old, instead=told)
        except (BadLine, RolloutError, NewerFormat, BadContainer) as error:
            raise Fault(f"{file}: {error}; nothing was imported") from None
        if bundled is not None and bundled.agents:
            left = f"{counted(bundled.agents, 'agent')} of its tree stay in the bundle"
            plan = replace(plan, notes=(*plan.notes, f"{left}: of the root alone a session is made"))
        async with opened(settings) as found:
            await found.may_create()
            own = plan.facts
            announced_ms = await found.broker.commits.announce(own.session_id) if plan.packs else 0
            given = (bundled.copy_pack,) if bundled is not None else ()
            lacking = await copied_to(found.packs(), own.tree_id, own.session_id, plan.packs, *given)
            made = await store(found, plan, blobs, now_ms, worker_name(), announced_ms)
            return made, plan, lacking


def _bounded(own: TurnSettings, told: TurnSettings, portable: PortableFolder | None) -> TurnSettings:
    """The settings of a stranger's file, with policies that permit no more than the person's own do here."""
    from orchestrator.core.frozen import replace
    from orchestrator.gateways.permissions import Policies

    cwd, here = without_links(Path(told.cwd)), [without_links(Path(own.cwd))]
    if portable is not None:
        # It is a copy of the worker's own, below the folder that is for such copies.
        here.append(Path(portable.root))
    if own.sandbox_policy["mode"] == "workspace-write" and not any(map(cwd.is_relative_to, here)):
        own = replace(own, sandbox_policy={"mode": "read-only"})
    bound = Policies.of(own)
    try:
        confined = Policies(bound.approval, told.sandbox_policy).within(bound)
    except (KeyError, TypeError, ValueError):
        confined = False  # what the file has there is no policy
    if not confined:
        told = replace(told, sandbox_policy=own.sandbox_policy)
    if not Policies(told.approval_policy, bound.sandbox).within(bound):
        told = replace(told, approval_policy=own.approval_policy)
    return told


def _text_path(file: Path) -> str | None:
    """The file's path, by which clients find its session; None for one that is no text."""
    path = str(file.absolute())
    return path if path.isprintable() else None


def _import_summary(plan: ImportPlan, lacking: int) -> list[str]:
    """The lines that a person should read about the new session."""
    state = plan.state
    made = f"a session of {counted(len(plan.entries), 'entry')}, from {plan.lines:,} that stand in the file"
    left_out = f" ({plan.left_out:,} are left out of it but for their digests)" if plan.left_out else ""
    lines = [f"{made}{left_out}; status {state.status}, model {state.settings.model}"]
    lines += plan.notes
    if plan.bounded:
        from orchestrator.gateways.permissions import Policies

        lines.append(
            "it permits more than your own settings do here, and that is not taken over; in force: "
            f"{Policies.of(state.settings).in_words}. Set others when you resume it (-c sandbox_mode=…, "
            "-c approval_policy=…), or import it again with --trust, if you have made the file yourself"
        )
    if lacking:
        lines.append(
            f"this deployment's archive lacks {counted(lacking, 'pack')} of its portable folder: no command "
            "can run in it; copy them there (`upkeep.archive_url`) and import the file again"
        )
    if state.task is not None:
        lines.append("a task was under way: calls that had begun are in doubt, and nothing starts by itself")
    return lines
