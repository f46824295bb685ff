"""`dendro approvals`: what waits for a person, in a tree or in the whole fleet, and its answer."""

from __future__ import annotations

import time
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, assert_never

import typer

from orchestrator.cli.invocation import Invocation
from orchestrator.core.counts import age
from orchestrator.core.frozen import record
from orchestrator.terminal.faults import ExitCode, Fault, refuse

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from orchestrator.core.commands import AnswerOp
    from orchestrator.core.ids import TreeId
    from orchestrator.protocol.policy import Decision
    from orchestrator.requests import Answers, PlanDecisionRequest, Question, Request
    from orchestrator.rollouts.signed_notes import Signer
    from orchestrator.views.approvals import Asked, Needed, Wishes
    from orchestrator.wiring.open_deployment import Opened

_PATTERN = "A call, or a glob over each plain command or each path; may be repeated."
_AMENDMENT = "Allow, and from now on in its session whatever begins with the prefix that the request names."
_ANSWER = "A question of a call by its header (or id), and its answer; repeated for each question."
_DENIAL = "A call, or a glob over any part of a command or any path; may be repeated."

Tree = Annotated[str | None, typer.Argument(metavar="ID", help="Only the tree that this session belongs to.")]
Allow = Annotated[list[str] | None, typer.Option("--allow", metavar="PATTERN", help=_PATTERN)]
Deny = Annotated[list[str] | None, typer.Option("--deny", metavar="PATTERN", help=_DENIAL)]
ForSession = Annotated[
    list[str] | None,
    typer.Option("--for-session", metavar="PATTERN", help="Allow, and do not ask that agent again."),
]
Amend = Annotated[list[str] | None, typer.Option("--amend", metavar="CALL", help=_AMENDMENT)]
Answer = Annotated[list[str] | None, typer.Option("--answer", metavar="'CALL HEADER=TEXT'", help=_ANSWER)]
Cancel = Annotated[
    list[str] | None, typer.Option("--cancel", metavar="CALL", help="Leave questions without an answer.")
]
Revise = Annotated[
    list[str] | None,
    typer.Option("--revise", metavar="'CALL TEXT'", help="Say what is to be changed in a plan."),
]


def approvals(
    ctx: typer.Context,
    id: Tree = None,
    allow: Allow = None,
    deny: Deny = None,
    for_session: ForSession = None,
    amend: Amend = None,
    answer: Answer = None,
    cancel: Cancel = None,
    revise: Revise = None,
    all: Annotated[
        bool, typer.Option("--all", help="Answer in every tree of the fleet, without ID.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="What is open as a JSON array.")] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on: each request as it is opened, and as it ends.")
    ] = False,
    sign: Annotated[
        Path | None, typer.Option("--sign", metavar="FILE", help="Sign answers by your Ed25519 key.")
    ] = None,
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="What your key is called; else your user name."),
    ] = None,
) -> None:
    """Lists the requests that wait for a person, and answers them.

    Of each: how long it waits, the tree with its name, the agent, the folder; and
    below, the call and what it is for. The oldest first.

    Each answer is a submission to the agent that asked, with your name in its
    log. An answer that comes second says who decided, and how; a glob that only
    means earlier requests is an error that says so.

    A glob allows a script only if it is plain and each of its commands matches;
    redirects, substitutions and variables need the call's id. It denies as soon
    as any part matches. Questions are answered by their call, all at once, and a
    prefix of commands is allowed by the call that proposes it. A plan is approved
    or rejected by its call, or sent back with --revise.

    With --sign each answer bears your signature over what is printed before it and
    over the request itself: nobody else can give it in your name. FILE is a key of
    OpenSSH or OpenSSL without a passphrase. Your verifier key goes to stderr, for
    `approvals.signers` of workers and an auditor's trust file.

    \b
    dendro approvals
    dendro approvals --follow --json
    dendro approvals 0199a2b4 --allow "git fetch*" --deny 3:call_7
    dendro approvals --all --for-session "npm test*"
    dendro approvals 0199a2b4 --allow 0:call_2 --sign ~/.ssh/id_ed25519 --name ada
    dendro approvals 0199a2b4 --answer "0:call_9 Auth=OAuth" --answer "0:call_9 Store=Redis"
    """
    import asyncio

    from orchestrator.protocol.policy import ReviewDecision

    wishes = {
        ReviewDecision.APPROVED: allow or [],
        ReviewDecision.APPROVED_FOR_SESSION: for_session or [],
        ReviewDecision.DENIED: deny or [],
    }
    words = Words.of(answer, cancel, amend, revise)
    answers = bool(words) or any(wishes.values())
    refuse(
        (answers and id is None and not all, "name the tree to answer in, or say --all for the whole fleet"),
        (id is not None and all, "either one tree's ID, or --all"),
        (name is not None and sign is None, "--name is what a key is called: name it by --sign"),
    )
    signer = _signer(sign, name) if sign is not None else None
    no_answer = "--sign signs answers: give one, by --allow, --deny, --answer or another"
    refuse(
        (signer is not None and not answers, no_answer),
        (follow and answers, "--follow answers nothing: answer beside it"),
    )
    if follow:
        asyncio.run(_follow(Invocation.of(ctx), id, json=json))
        return
    asyncio.run(_approvals(Invocation.of(ctx), id, wishes, words, signer, json=json))


def _signer(file: Path, name: str | None) -> Signer:
    """The person's key, which is named on stderr as others check it; raises `Fault`."""
    import getpass

    from orchestrator.rollouts.signed_notes import BadNote, Signer, is_name, read_private_key

    called = name if name is not None else getpass.getuser()
    if not is_name(called):
        raise Fault(f"--name {called!r} is no name: one word, without +", ExitCode.USAGE)
    try:
        signer = Signer(called, read_private_key(file))
    except BadNote as error:
        raise Fault(f"--sign {file}: {error}", ExitCode.USAGE) from None
    except OSError as error:
        raise Fault(
            f"--sign {file}: the key cannot be read: {error.strerror or error}", ExitCode.USAGE
        ) from None
    typer.echo(f"your key   {signer.key}", err=True)
    return signer


async def _approvals(
    invocation: Invocation,
    id: str | None,
    wishes: Wishes,
    words: Words,
    signer: Signer | None,
    *,
    json: bool,
) -> None:
    from orchestrator.cli.invocation import opened
    from orchestrator.views.approvals import open_requests_of

    async with opened(invocation.settings()) as found:
        tree = await found.find_tree(id) if id is not None else None
        asked = await open_requests_of(found, tree)
        if any(wishes.values()) or words:
            await _answer(found, tree, asked, wishes, words, signer)
        else:
            await _list(found, asked, json=json)


async def _answer(
    found: Opened,
    tree: TreeId | None,
    asked: Sequence[Asked],
    wishes: Wishes,
    words: Words,
    signer: Signer | None,
) -> None:
    """Answers what is meant; a list needs nothing of what is imported here."""
    from orchestrator.core.calls.ask import DoesNotAnswer
    from orchestrator.gateways.submit import hand_in_all
    from orchestrator.protocol.policy import ReviewDecision
    from orchestrator.terminal.text import one_line
    from orchestrator.views.approvals import chosen
    from orchestrator.views.decided_requests import decided_before

    allowed = ReviewDecision.APPROVED
    named = {**wishes, allowed: [*wishes[allowed], *words.calls]}
    before = await decided_before(found, tree, asked, named)
    words = words.without(before.calls)
    replies = [(one, _secrets_typed(one, answers)) for one, answers in words.meant(asked)]
    amendments = words.amendments(asked)
    revised = words.meant_plans(asked)
    choice = chosen(asked, before.without_calls(wishes), before.similar)
    for one, decision in choice.decisions:
        _check(one, decision)
    answers = (*replies, *amendments, *choice.decisions)
    _check_meant_once([*(one for one, _ in answers), *(one for one, _, _ in revised)])
    try:
        said = [(one, _replied(one, answers)) for one, answers in replies]
        said += [(one, plan.revised(text)) for one, plan, text in revised]
    except DoesNotAnswer as error:
        raise Fault(f"not answered: {error}", ExitCode.USAGE) from None
    how = (*amendments, *choice.decisions)
    decided = [(one, one.request.in_own_session().decided(decision)) for one, decision in how]
    if signer is not None:
        said, decided = await _signed(found, said, signer), await _signed(found, decided, signer)
    handed: list[tuple[Asked, AnswerOp]] = [*said, *decided]
    done = await hand_in_all(found.client(), found, handed) if handed else []
    for why in choice.passed_over:
        typer.echo(one_line(why), err=True)
    for line in (*before.calls.values(), *(decided.line() for decided in done)):
        typer.echo(one_line(line))


async def _signed(
    found: Opened, decided: Sequence[tuple[Asked, AnswerOp]], signer: Signer
) -> list[tuple[Asked, AnswerOp]]:
    """Prints each request, and signs its answer over just that text."""
    from orchestrator.protocol.ops import Shown
    from orchestrator.terminal.text import one_line, plain
    from orchestrator.views.approvals import needed, signed

    signed_ops = []
    for asked, op in decided:
        (one,) = await needed(found, [asked])
        now_ms = time.time_ns() // 1_000_000
        text = plain("\n".join(line for line, _ in needed_lines(one, now_ms)))
        typer.echo(text)
        answer = signed(asked, op, signer, Shown(text=text, surface="cli", opened_ms=now_ms), now_ms)
        if answer is op:
            told = one_line(f"dendro: {asked.call} is answered for a program, and is not signed")
            typer.echo(told, err=True)
        signed_ops.append((asked, answer))
    return signed_ops


def _check_meant_once(asked: Sequence[Asked]) -> None:
    """Raises `Fault` for a request that two options mean: the first answer would count, and no other."""
    seen = set()
    for one in asked:
        if (one.session, one.call_id) in seen:
            raise Fault(f"{one.call} is meant by two different answers", ExitCode.USAGE)
        seen.add((one.session, one.call_id))


def _check(asked: Asked, decision: Decision) -> None:
    """Raises `Fault` for a decision that the request cannot be given."""
    from orchestrator.protocol.policy import ReviewDecision
    from orchestrator.requests import (
        ChoicesRequest,
        ClientToolRequest,
        CommandRequest,
        InputRequest,
        PatchRequest,
        PlanDecisionRequest,
        ServerRequest,
        UnknownRequest,
    )

    call, lasts = asked.call, decision is ReviewDecision.APPROVED_FOR_SESSION
    match asked.request:
        case ClientToolRequest() if decision is not ReviewDecision.DENIED:
            raise Fault(f"{call} waits for a program, not for people: --deny {call} ends it")
        case UnknownRequest() if decision is not ReviewDecision.DENIED:
            raise Fault(f"{call} is a request of a newer version: --deny {call} denies it")
        case ChoicesRequest() | InputRequest() as request:
            raise Fault(f"{call} asks for words: --answer {_example(call, request.questions[0])}")
        case ServerRequest() if lasts:
            raise Fault(f"{call} is a question of an MCP server: --allow, --deny or --cancel {call}")
        case PlanDecisionRequest() if lasts:
            raise Fault(f"{call} is a plan, which holds for no session: --allow {call}")
        case CommandRequest() | PatchRequest() | PlanDecisionRequest() | ServerRequest():
            pass
        case ClientToolRequest() | UnknownRequest():
            pass
        case _:
            assert_never(asked.request)


def _replied(asked: Asked, answers: Answers | None) -> AnswerOp:
    """The op of answers to questions; None, also for a server's question: it is left without one."""
    from orchestrator.requests import ChoicesRequest, InputRequest

    request = asked.request.in_own_session()
    if answers is not None and isinstance(request, ChoicesRequest | InputRequest):
        return request.replied(answers)
    return request.left()


async def _follow(invocation: Invocation, id: str | None, *, json: bool) -> None:
    """Shows each request as it is opened and as it ends, until the command is stopped; JSON line by line."""
    from orchestrator.cli.invocation import opened
    from orchestrator.gateways.submit import Over, followed
    from orchestrator.terminal.text import json_for_stdout, one_line
    from orchestrator.views.approvals import needed
    from orchestrator.views.find import short_id

    async with opened(invocation.settings(), insists=True) as found:
        tree = await found.find_tree(id) if id is not None else None
        async for news in followed(found.client(), found, tree):
            asked = news.asked if isinstance(news, Over) else news
            if json:
                import orjson

                kind = "settled" if isinstance(news, Over) else "opened"
                typer.echo(json_for_stdout(orjson.dumps({"news": kind, **asked.value()})))
            elif isinstance(news, Over):
                # Calls of two trees may have one name.
                of = f"  (tree {short_id(asked.tree)})" if tree is None else ""
                typer.echo(f"     {one_line(f'{asked.call}  {asked.subject}: waits no longer{of}')}")
            else:
                (one,) = await needed(found, [asked])
                for line, _ in needed_lines(one, time.time() * 1000):
                    typer.echo(line)


@record
class Words:
    """The words of the command line, by the call that they name."""

    by_call: Mapping[str, Mapping[str, Sequence[str]] | None]
    """Answers to questions; None: they are cancelled."""
    amended: Sequence[str] = ()
    """The calls whose prefix is allowed."""
    feedback: Mapping[str, str] = field(default_factory=dict)
    """Changes wanted in plans."""

    @classmethod
    def of(
        cls,
        answers: Sequence[str] | None = None,
        cancelled: Sequence[str] | None = None,
        amended: Sequence[str] | None = None,
        revised: Sequence[str] | None = None,
    ) -> Words:
        """Raises `Fault` for what is no answer."""
        by_call: dict[str, dict[str, list[str]] | None] = dict.fromkeys(cancelled or ())
        for answer in answers or ():
            call, _, said = answer.partition(" ")
            name, equals, text = said.partition("=")
            if not equals or not name:
                raise Fault(f"--answer {answer!r}: say 'CALL HEADER=TEXT'", ExitCode.USAGE)
            given = by_call.setdefault(call, {})
            if given is None:
                raise Fault(f"{call} is both answered and cancelled", ExitCode.USAGE)
            given.setdefault(name, []).append(text)
        feedback = {}
        for revision in revised or ():
            call, _, text = revision.partition(" ")
            if not text.strip():
                raise Fault(f"--revise {revision!r}: say 'CALL TEXT'", ExitCode.USAGE)
            if call in feedback:
                raise Fault(f"{call} is revised twice: say all of it in one text", ExitCode.USAGE)
            feedback[call] = text
        return cls(by_call, amended or (), feedback)

    def __bool__(self) -> bool:
        return bool(self.by_call or self.amended or self.feedback)

    @property
    def calls(self) -> tuple[str, ...]:
        """The calls that it names."""
        return (*self.by_call, *self.amended, *self.feedback)

    def without(self, calls: Collection[str]) -> Words:
        """The words for all other calls."""
        return Words(
            {call: said for call, said in self.by_call.items() if call not in calls},
            [call for call in self.amended if call not in calls],
            {call: text for call, text in self.feedback.items() if call not in calls},
        )

    def amendments(self, asked: Sequence[Asked]) -> list[tuple[Asked, Decision]]:
        """The requests whose prefix is allowed; raises `Fault` for a call that proposes none, or several."""
        from orchestrator.requests import CommandRequest

        found: list[tuple[Asked, Decision]] = []
        for call in self.amended:
            meant = _named(call, asked, "open request")
            request = meant.request
            allowed = request.amendment if isinstance(request, CommandRequest) else None
            if allowed is None:
                raise Fault(f"{meant.call} proposes no prefix: --allow {meant.call} allows it alone")
            found.append((meant, allowed))
        return found

    def meant(self, asked: Sequence[Asked]) -> list[tuple[Asked, Mapping[str, Sequence[str]] | None]]:
        """The questions that the calls name; raises `Fault` for a call that names none, or several."""
        from orchestrator.requests import ChoicesRequest, ClientToolRequest, InputRequest, ServerRequest

        found = []
        for call, answers in self.by_call.items():
            # A server's question may be cancelled, too, and has no words for an answer.
            kinds = ChoicesRequest | InputRequest
            ends = ServerRequest | ClientToolRequest
            asking = [
                one
                for one in asked
                if isinstance(one.request, kinds) or (answers is None and isinstance(one.request, ends))
            ]
            found.append((_named(call, asking, "open questions"), answers))
        return found

    def meant_plans(self, asked: Sequence[Asked]) -> list[tuple[Asked, PlanDecisionRequest, str]]:
        """The plans that the calls name, with the changes; raises `Fault` as `meant` does."""
        from orchestrator.requests import PlanDecisionRequest

        plans = {id(one): one.request for one in asked if isinstance(one.request, PlanDecisionRequest)}
        planning = [one for one in asked if id(one) in plans]
        found = [(_named(call, planning, "open plan"), text) for call, text in self.feedback.items()]
        return [(one, plans[id(one)].in_own_session(), text) for one, text in found]


def _named(call: str, asked: Sequence[Asked], kind: str) -> Asked:
    """The one request that a call's name means."""
    from orchestrator.views.patterns import names_call

    meant = [one for one in asked if names_call(call, one.agent_id, one.call_id)]
    if len(meant) != 1:
        verb = "are" if kind.endswith("s") else "is"
        why = f"{len(meant)} calls of that name wait" if meant else f"no {kind} {verb}"
        raise Fault(f"{why} meant by {call!r}; `dendro approvals` lists them as AGENT:CALL")
    return meant[0]


def _secrets_typed(asked: Asked, answers: Mapping[str, Sequence[str]] | None) -> Answers | None:
    """The answers, with secret ones as they are typed now: a command line is seen by others, and kept.

    Raises `Fault` for a secret that stands in the command line.
    """
    given = dict(answers or {})
    for question in asked.request.questions:
        name = question.name
        if not question.secret or name not in given:
            continue
        if any(given[name]):
            raise Fault(
                f"{name} is a secret, and others see a command line: say --answer '{asked.call} {name}='"
                " and type it when you are asked, or give it as a line of standard input",
                ExitCode.USAGE,
            )
        given[name] = [_typed_unseen(f"{asked.call} {name} (not shown): ")]
    return given if answers is not None else None


def _typed_unseen(prompt: str) -> str:
    import getpass
    import sys

    if sys.stdin.isatty():
        return getpass.getpass(prompt)
    try:
        return sys.stdin.buffer.readline().decode().rstrip("\n")
    except UnicodeDecodeError:
        # Without its words, which would be told with it.
        raise Fault("the secret of standard input is no UTF-8: it was not sent", ExitCode.USAGE) from None


def _example(call: str, question: Question) -> str:
    return f"'{call} {question.name}={'' if question.secret else 'TEXT'}'"


async def _list(found: Opened, asked: Sequence[Asked], *, json: bool) -> None:
    from orchestrator.views.approvals import needed

    asking = await needed(found, asked)
    if json:
        import orjson

        from orchestrator.terminal.text import json_for_stdout

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
    """A request in a few lines, with their styles: first what it does and where, then why it is asked."""
    from orchestrator.terminal.text import one_line

    request = one.asked.request
    agent = f"agent {one.asked.agent_path}" + (f" ({one.label})" if one.label else "")
    waits = f"{age((now_ms - one.asked.opened_ms) / 1000):<4}"
    parts = (one.title, agent if one.asked.agent_id else "the root", one.folder)
    yield f"{waits} {one.tree}  {one_line(' · '.join(part for part in parts if part))}", "bold"
    yield f"     {one_line(f'{one.asked.call}  {_wanted(request)}')}", ""
    if request.where:
        yield f"       {one_line(request.where)}", "bold red" if request.outside else ""
    for reason in request.reasons:
        yield f"       {one_line(reason)}", "dim"
    for line in _details(one.asked):
        yield f"       {line}", "dim"


def _details(asked: Asked) -> Iterator[str]:
    """The rest of what a person has to read: the prefix that may be allowed, a plan's steps, or questions."""
    from orchestrator.requests import CommandRequest, PlanDecisionRequest
    from orchestrator.terminal.text import one_line

    request = asked.request
    if isinstance(request, CommandRequest) and request.prefix:
        yield one_line(f"--amend {asked.call} allows whatever begins with {request.prefix_text}")
    if isinstance(request, PlanDecisionRequest):
        yield from map(one_line, request.steps)
    for question in request.questions:
        options = "" if question.secret else ", ".join(question.labels) or "any text"
        yield one_line(f"{question.name}={options}")


def _wanted(request: Request) -> str:
    """The work that a request has for a person."""
    from orchestrator.requests import (
        ChoicesRequest,
        ClientToolRequest,
        CommandRequest,
        InputRequest,
        PatchRequest,
        PlanDecisionRequest,
        ServerRequest,
        UnknownRequest,
    )

    match request:
        case ChoicesRequest() | InputRequest():
            return f"answer {request.subject}"
        case PlanDecisionRequest():
            return f"approve the plan {request.subject}"
        case ServerRequest():
            return f"answer the MCP server {request.subject}"
        case ClientToolRequest():
            return f"wait, or end it: {request.subject}"
        case CommandRequest():
            return f"run {request.subject}"
        case PatchRequest():
            return f"change {request.subject}"
        case UnknownRequest():
            return f"deny, or wait: {request.subject}"
        case _:
            assert_never(request)
