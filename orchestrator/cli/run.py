"""`dendro run` and `dendro review`: one task, or one code review, watched from this terminal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation, prompt_text, warn_if_read_only
from orchestrator.core.frozen import record
from orchestrator.terminal.faults import ExitCode, Fault, refuse
from orchestrator.terminal.origin import Origin

if TYPE_CHECKING:
    from orchestrator.broker.records import SessionHead
    from orchestrator.core.ids import SessionId
    from orchestrator.gateways.client import Client
    from orchestrator.protocol.ops import OverrideTurnContext, WorkspaceSource
    from orchestrator.protocol.review import ReviewRequest
    from orchestrator.protocol.scalars import ModeKind
    from orchestrator.settings import Settings
    from orchestrator.terminal.watched_turn import Conversation
    from orchestrator.wiring.open_deployment import Opened
    from workers.companion import Companion


@record
class Wish:
    """The arguments of `dendro run`, or of `dendro review`."""

    prompt: str | None
    origin: Origin
    images: tuple[Path, ...]
    json: bool
    review: ReviewRequest | None = None
    """The change to review, where no prompt begins the task."""
    plan: bool = False
    """Whether the prompt is the goal of a planning session."""
    mode: ModeKind | None = None
    """The collaboration mode from the next turn on; None leaves it as it is."""
    workspace: WorkspaceSource | None = None
    """The first content of a portable folder."""
    applies: bool = False
    """Whether the work is merged into the person's folder at the task's end."""
    detached: bool = False
    """Whether nobody here waits for the task."""


Prompt = Annotated[str | None, typer.Argument(metavar="PROMPT", help="What to do; `-` reads it from stdin.")]
Resume = Annotated[str | None, typer.Option("--resume", metavar="ID", help="Go on with this session.")]
_FORK = "Go on from where this session stands, in a session of its own."
ForkOption = Annotated[str | None, typer.Option("--fork", metavar="ID", help=_FORK)]
_AT = "With --fork: from the end of the turn that ended with this response."
At = Annotated[str | None, typer.Option("--at", metavar="RESPONSE_ID", help=_AT)]
Json = Annotated[bool, typer.Option("--json", help="Events as NDJSON on stdout.")]
NoWorker = Annotated[
    bool, typer.Option("--no-worker", help="Start no worker: others serve the session's pool.")
]
_CWD = "Where to work, instead of here."
_DETACH = "Hand the task in, print the session's id, and leave; a worker of its pool does it."
Detach = Annotated[bool, typer.Option("--detach", help=_DETACH)]
Cwd = Annotated[
    Path | None, typer.Option("--cwd", "-C", metavar="DIR", exists=True, file_okay=False, help=_CWD)
]
Model = Annotated[
    str | None, typer.Option("--model", "-m", metavar="MODEL", help="Instead of the configured one.")
]
_PLAN = "Plan what the prompt says: the agent only reads, and puts a plan to you."
Planning = Annotated[bool, typer.Option("--plan", help=_PLAN)]
_MODE = "The collaboration mode from here on: plan, code, pair_programming or execute."
Mode = Annotated[str | None, typer.Option("--mode", metavar="MODE", help=_MODE)]
_PORTABLE = "Work in a copy of the folder that any worker of the pool can make; the folder stays as it is."
Portable = Annotated[bool, typer.Option("--portable", help=_PORTABLE)]
_FROM = "With --portable: begin with a repository's commit, which a worker clones."
From = Annotated[str | None, typer.Option("--from", metavar="URL[#REF]", help=_FROM)]
_SETUP = "With --portable: a script that prepares the copy, before the first command runs in it."
Setup = Annotated[
    Path | None, typer.Option("--setup", metavar="FILE", exists=True, dir_okay=False, help=_SETUP)
]
_APPLY = "With --portable: merge the work into the folder when the task is done, as `dendro apply` does."
Apply = Annotated[bool, typer.Option("--apply", help=_APPLY)]
_IMAGE = "Shown to the model; may be repeated."
Image = Annotated[
    list[Path] | None,
    typer.Option("--image", "-i", metavar="FILE", exists=True, dir_okay=False, help=_IMAGE),
]


def run(
    ctx: typer.Context,
    prompt: Prompt = None,
    resume: Resume = None,
    fork: ForkOption = None,
    at: At = None,
    json: Json = False,
    no_worker: NoWorker = False,
    cwd: Cwd = None,
    model: Model = None,
    image: Image = None,
    plan: Planning = False,
    mode: Mode = None,
    portable: Portable = False,
    origin_url: From = None,
    setup: Setup = None,
    apply: Apply = False,
    detach: Detach = False,
) -> None:
    """Runs one task and shows it as it happens: commands, text, patches, tokens.

    Without a prompt, at a terminal, it is a conversation: a line begins a task, or
    is what the agent at work reads next; /help shows more. Ctrl-D leaves.
    Asks at the terminal before a command that needs approval. Ctrl-C
    interrupts the turn, a second one leaves. With --detach the session's id is
    printed and the command ends: with 0 if a worker serves the session's pool,
    with 3 if none does, and it waits for one. Without a terminal a needed
    approval or answer, a budget that is spent, or an agent that is quarantined
    ends it with exit code 3; the session waits for a person.

    \b
    dendro run "fix the failing test" -m gpt-5
    dendro run
    dendro run --resume 0199a2b4 "now write the changelog"
    dendro run --plan "add a login"
    dendro run --mode plan "how would you add a login?"
    dendro run --detach --portable "port the tests"
    dendro run --fork 0199a2b4 "try it with threads instead"
    dendro run --portable --apply "port the tests"
    dendro run --portable --setup install.sh "port the tests"
    dendro run --portable --from https://git.example/app.git#main "fix it"
    git diff | dendro run - --json > events.ndjson
    """
    invocation = Invocation.of(ctx)
    if setup is not None and not portable:
        raise Fault("--setup prepares a portable copy: add --portable", ExitCode.USAGE)
    settings = invocation.settings(
        {"model": model, "cwd": str(cwd) if cwd else None, **_setup_settings(setup)}
    )
    text = None if prompt is None else prompt_text(prompt)
    origin = Origin.of(resume, fork, at)
    workspace = first_content(settings, origin, origin_url, portable=portable)
    if apply and (workspace is None or workspace.folder is None):
        raise Fault("--apply is for a portable copy of this folder: use it with --portable", ExitCode.USAGE)
    if detach and (apply or json):
        other = "--apply" if apply else "--json"
        raise Fault(f"--detach leaves before there is anything for {other}: use one of them", ExitCode.USAGE)
    wish = Wish(
        text,
        origin,
        tuple(image or ()),
        json,
        plan=plan,
        mode=_mode(mode),
        workspace=workspace,
        applies=apply,
        detached=detach,
    )
    if origin.is_new and workspace is None:
        warn_if_read_only(settings)
    raise typer.Exit(carried_out(invocation, settings, wish, own_worker=not (no_worker or detach)))


def _mode(text: str | None) -> ModeKind | None:
    """The mode of this name; raises `Fault` for one that the command line does not offer."""
    from orchestrator.protocol.scalars import ModeKind

    offered = (ModeKind.PLAN, ModeKind.CODE, ModeKind.PAIR_PROGRAMMING, ModeKind.EXECUTE)
    if text is None:
        return None
    if text not in offered:
        raise Fault(f"--mode {text!r}: one of {', '.join(offered)} is expected", ExitCode.USAGE)
    return ModeKind(text)


def _setup_settings(setup: Path | None) -> dict[str, object]:
    """The settings by which a file is the set-up, whatever else names one."""
    if setup is None:
        return {}
    return {"workspace.setup": str(setup.absolute()), "workspace.setup_script": ""}


def first_content(
    settings: Settings, origin: Origin, url: str | None, *, portable: bool
) -> WorkspaceSource | None:
    """The first content of a portable folder; raises `Fault` where it does not go with what was said."""
    from orchestrator.protocol.ops import WorkspaceSource

    if not portable:
        if url is not None:
            raise Fault("--from is for a portable folder: add --portable", ExitCode.USAGE)
        return None
    if not origin.is_new:
        raise Fault("--portable is for a new session: one that goes on keeps its folder", ExitCode.USAGE)
    if url is None:
        return WorkspaceSource(folder=str(settings.session_defaults.cwd))
    address, _, ref = url.partition("#")
    return WorkspaceSource(git=address, ref=ref or None)


def carried_out(invocation: Invocation, settings: Settings, wish: Wish, *, own_worker: bool) -> ExitCode:
    """The exit code of a wish that was carried out; raises `Fault` for one that cannot be."""
    import uvloop

    from orchestrator.cli.processes import companion

    _check(wish, settings, own_worker)
    with companion(invocation, wanted=own_worker) as worker:
        if worker is not None and wish.origin.resume is None:
            worker.start()
        if wish.detached:
            return uvloop.run(_leave_behind(settings, wish))
        code: ExitCode = uvloop.run((_converse if _is_conversation(wish) else _run)(settings, wish, worker))
        if worker is not None and code == ExitCode.INTERRUPTED:
            worker.dismiss()
    return code


def _check(wish: Wish, settings: Settings, own_worker: bool) -> None:
    begins, talks = _begins(wish), _is_conversation(wish)
    no_goal = wish.prompt is None or bool(wish.images)
    nothing_to_do = not begins and not talks and wish.origin.resume is None
    refuse(
        (wish.prompt is not None and not wish.prompt.strip(), "the prompt is empty"),
        (wish.detached and not begins, "--detach needs a prompt: what is to be done while you are away"),
        (
            wish.workspace is not None and talks,
            "--portable needs a prompt; `dendro run --resume ID` talks to it later",
        ),
        (wish.plan and no_goal, "--plan takes a prompt, the goal, and no images"),
        (
            wish.plan and wish.mode is not None,
            "--plan is a task of its own, --mode a way to hold the conversation: use one of them",
        ),
        (nothing_to_do, "give a prompt, or --resume ID; `dendro run --help` has examples"),
    )
    from orchestrator.config_keys import OPENAI

    provider = settings.model.providers[settings.model.provider]
    if own_worker and provider.unset_key and provider.base_url == OPENAI:
        remedy = provider.env_key_instructions or f"export {provider.unset_key}=…"
        raise Fault(f"{provider.unset_key} is not set: {remedy}, or run `dendro demo`", ExitCode.USAGE)


def _begins(wish: Wish) -> bool:
    """Whether the command line itself begins a task."""
    return wish.prompt is not None or wish.review is not None


def _is_conversation(wish: Wish) -> bool:
    """Whether a person is at the terminal and no prompt was given."""
    from orchestrator.terminal.watched_turn import at_a_terminal

    return not _begins(wish) and not wish.json and at_a_terminal()


async def _to_resume(found: Opened, id: str, *, begins: bool) -> SessionHead:
    """The session as it was left; raises `Fault` if it is to go on, and has nothing to go on with."""
    from orchestrator.gateways.resume import to_resume

    head = await to_resume(found, id)
    if not begins and head.at_rest:
        raise Fault(f"session {head.session} is {head.status}: give it a prompt", ExitCode.USAGE)
    return head


async def _converse(settings: Settings, wish: Wish, worker: Companion | None) -> ExitCode:
    from orchestrator.terminal.chat import Opening, converse

    opening = Opening(wish.origin, wish.images, _override(settings, wish), wish.mode)
    return await converse(settings, opening, worker)


async def _run(settings: Settings, wish: Wish, worker: Companion | None) -> ExitCode:
    from orchestrator.broker.follow import BEGINNING, EqCursor
    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.submit import left_behind
    from orchestrator.terminal.live import JsonView, LiveView
    from orchestrator.terminal.notifications import Calling, notifications
    from orchestrator.terminal.watched_turn import Conversation, Seat, at_a_terminal, take_up_requests

    view = JsonView() if wish.json else LiveView()
    async with opened(settings, view.note, insists=True) as found:
        client, cursor = found.client(), BEGINNING
        if wish.origin.resume is None:
            session = await _for_the_wish(found, client, wish, view.note)
        else:
            head = await _to_resume(found, wish.origin.resume, begins=_begins(wish))
            session, cursor = head.session, EqCursor.at(head)
            if worker is not None:
                worker.start()
        calling = notifications(settings, session, view.note, await client.head(session))
        seat = Seat(client, session, Calling(view, calling), at_a_terminal() and not wish.json)
        talk = Conversation(seat, None)
        with talk.hearing_ctrl_c():
            most = f" · up to {settings.agents.budget_requests:,} model requests (agents.budget_requests)"
            view.note(f"session {talk.seat.name}{most if wish.origin.resume is None else ''}")
            if not _begins(wish):
                await talk.left.unless(take_up_requests(talk, found, head))
            else:
                await talk.left.unless(_speak(found, talk, wish))
            code = await talk.run(cursor, worker)
            stopped_elsewhere = code is ExitCode.INTERRUPTED and not talk.interrupts
            looking = left_behind(found, session) if stopped_elsewhere else client.head(session)
            at_rest = await talk.left.unless(looking)
            gone = at_rest is None and not talk.left.is_set()
            await talk.left.unless(calling.end())
        view.end(talk.seat.name, code, at_rest, gone=gone)
        if wish.applies and code is ExitCode.DONE and at_rest is not None:
            code = await _applied(found, at_rest, settings, view.note)
    return code


async def _leave_behind(settings: Settings, wish: Wish) -> ExitCode:
    """Hands a task in, and says who does it; the id alone is on stdout."""
    from orchestrator.cli.invocation import opened
    from orchestrator.terminal.live import LiveView
    from orchestrator.terminal.watched_turn import Conversation, Seat
    from orchestrator.views.sessions import no_worker
    from orchestrator.views.workers import serving_pool

    view = LiveView()
    async with opened(settings, view.note) as found:
        client = found.client()
        session = await _for_the_wish(found, client, wish, view.note)
        await _speak(found, Conversation(Seat(client, session, view, interactive=False), None), wish)
        typer.echo(session)
        head = await client.head(session)
        pool = head.pool if head is not None else settings.session_defaults.pool
        workers = await serving_pool(found.broker.claims, pool)
    if not workers:
        view.note(f"handed in, and kept; {no_worker(pool)}")
        return ExitCode.WAITING
    view.note(f"handed in; {workers[0]} or another worker of pool {pool} does it: dendro attach {session}")
    return ExitCode.DONE


async def _for_the_wish(found: Opened, client: Client, wish: Wish, say: Callable[[str], None]) -> SessionId:
    """The session that is to do what was said: a new one, or one that goes on."""
    from orchestrator.terminal.origin import forked
    from orchestrator.wiring.open_deployment import new_session, portable_session

    if wish.workspace is not None:
        return await portable_session(found, client, wish.workspace, source="exec")
    if wish.origin.is_new:
        return await new_session(found.settings, client, source="exec")
    if wish.origin.resume is None:
        return (await forked(found, client, wish.origin, say)).session
    return (await _to_resume(found, wish.origin.resume, begins=True)).session


async def _applied(
    found: Opened, head: SessionHead, settings: Settings, say: Callable[[str], object]
) -> ExitCode:
    """Merges what the task has made of the copy into the folder that it was made from."""
    from orchestrator.cli.checkout import Wanted, applied, top_of

    wanted = Wanted(top_of(settings.session_defaults.cwd))
    return ExitCode.DONE if await applied(found, head, wanted, say) else ExitCode.FAILED


def _override(settings: Settings, wish: Wish) -> OverrideTurnContext | None:
    """A session that goes on keeps its settings, but for what the command line names."""
    from orchestrator.protocol.ops import OverrideTurnContext
    from orchestrator.wiring.new_sessions import named_settings

    named = {} if wish.origin.resume is None else named_settings(settings)
    return OverrideTurnContext.model_validate(named) if named else None


async def _speak(found: Opened, talk: Conversation, wish: Wish) -> None:
    """Hands in what the command line says; the conversation follows the task that it becomes."""
    from orchestrator.protocol import ops
    from orchestrator.protocol.inputs import TextInput
    from orchestrator.protocol.plans import PlanRequest
    from orchestrator.terminal.origin import changed_from_here, image_items

    override = await changed_from_here(found, talk.seat.session, _override(found.settings, wish), wish.mode)
    if override is not None:
        await talk.submit(override)
    if wish.review is not None:
        talk.task_id = await talk.submit(ops.Review(review_request=wish.review))
        return
    if wish.plan:
        talk.task_id = await talk.submit(ops.Plan(plan_request=PlanRequest(goal=wish.prompt or "")))
        return
    images = await image_items(talk.seat.client, talk.seat.session, wish.images)
    talk.task_id = await talk.submit(ops.UserInput(items=(TextInput(text=wish.prompt or ""), *images)))


# ── review ────────────────────────────────────────────────────────────────────────────────────────


_IN_WORDS = "What to review, in words; `-` reads it from stdin."
_UNCOMMITTED = "What is not committed: staged, unstaged and unknown files; the default."


def review(
    ctx: typer.Context,
    prompt: Annotated[str | None, typer.Argument(metavar="PROMPT", help=_IN_WORDS)] = None,
    uncommitted: Annotated[bool, typer.Option("--uncommitted", help=_UNCOMMITTED)] = False,
    base: Annotated[
        str | None, typer.Option("--base", metavar="BRANCH", help="What this branch changes against it.")
    ] = None,
    commit: Annotated[
        str | None, typer.Option("--commit", metavar="SHA", help="What this commit changes.")
    ] = None,
    resume: Resume = None,
    json: Json = False,
    no_worker: NoWorker = False,
    cwd: Cwd = None,
    model: Model = None,
) -> None:
    """Reviews a change and shows what is wrong with it, each finding with its place.

    The reviewer only reads, and asks nobody. With --resume the session keeps
    the findings in its conversation: ask it to mend them. The exit code is 0
    when the review is done, whatever it found.

    \b
    dendro review
    dendro review --base main
    dendro review --commit 1a2b3c4 --json > events.ndjson
    dendro review "only the parser: can an input make it raise?"
    dendro review --resume 0199a2b4 --uncommitted
    """
    asked = _asked(prompt, uncommitted, base, commit)
    invocation = reviewing_with(model, Invocation.of(ctx))
    settings = invocation.settings({"model": model, "cwd": str(cwd) if cwd else None})
    if resume is None or cwd is not None:
        check_names(asked, settings.session_defaults.cwd)
    wish = Wish(None, Origin(resume=resume), (), json, asked)
    raise typer.Exit(carried_out(invocation, settings, wish, own_worker=not no_worker))


def reviewing_with(model: str | None, invocation: Invocation) -> Invocation:
    """The same options with `model` as the reviewer's: who names one here means it, whatever a file says."""
    import json
    from dataclasses import replace

    if model is None:
        return invocation
    return replace(invocation, overrides=(*invocation.overrides, f"review_model={json.dumps(model)}"))


def _asked(prompt: str | None, uncommitted: bool, base: str | None, commit: str | None) -> ReviewRequest:
    """The request of the command line; raises `Fault` for one that no session would take."""
    from orchestrator.core.review import request_fault
    from orchestrator.protocol.review import BaseBranch, Commit, CustomReview, ReviewRequest
    from orchestrator.terminal.origin import typed_request

    text = None if prompt is None else prompt_text(prompt)
    if (text is not None) + uncommitted + (base is not None) + (commit is not None) > 1:
        raise Fault("give one of PROMPT, --uncommitted, --base and --commit", ExitCode.USAGE)
    if text is not None:
        request = ReviewRequest(target=CustomReview(instructions=text))
    elif base is not None:
        request = ReviewRequest(target=BaseBranch(branch=base))
    elif commit is not None:
        request = ReviewRequest(target=Commit(sha=commit))
    else:
        request = typed_request("")
    if (why := request_fault(request)) is not None:
        raise Fault(why.removeprefix("review_request.target."), ExitCode.USAGE)
    return request


def check_names(asked: ReviewRequest, folder: Path) -> None:
    """Raises `Fault` where the folder's repository has nothing of the name that the request compares with.

    Where git does not answer, the reviewer has to find out.
    """
    from orchestrator.protocol.review import BaseBranch, Commit
    from orchestrator.sandbox.git import GitFailed, repository_above, run_git

    match asked.target:
        case BaseBranch(branch=name):
            # The reviewer looks at a branch's upstream where there is no such branch here.
            option, kinds, upstream = "base", "branch, tag or commit", f"refs/remotes/*/{name}"
        case Commit(sha=name):
            option, kinds, upstream = "commit", "commit", ""
        case _:
            return
    try:
        if repository_above(folder) is None:
            return
        # Nothing of git has a name that begins so: it would be read as an option.
        if not name.startswith("-"):
            found = run_git(folder, "rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
            if found.code != 1 or (upstream and run_git(folder, "for-each-ref", "--count=1", upstream).text):
                return
    except GitFailed:
        return
    raise Fault(
        f"--{option} {name}: no {kinds} of the repository in {folder} has this name, so there is nothing to "
        "review; `git branch --all` and `git log` show the names, and `git fetch` brings what others have",
        ExitCode.USAGE,
    )
