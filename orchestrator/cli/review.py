"""`dendro review`: a code review, watched from this terminal."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.cli.run import Cwd, Json, Model, NoWorker, Resume, Wish, carried_out
from orchestrator.terminal.faults import ExitCode, Fault
from orchestrator.terminal.origin import Origin

if TYPE_CHECKING:
    from orchestrator.protocol.review import ReviewRequest

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
    folder: Path | None = settings.session_defaults.cwd if cwd else None
    wish = Wish(None, Origin(resume=resume), (), json, model, folder, asked)
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

    text = sys.stdin.read() if prompt == "-" else prompt
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
