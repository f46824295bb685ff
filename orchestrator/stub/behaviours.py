"""The stub's built-in behaviours: answers computed from the request alone.

A repeated request, or one taken over by another worker, gets a consistent answer, because
nothing is remembered between requests; and no figure is ever answered that the request does
not carry. `survey` has a module of its own.
"""

from __future__ import annotations

from collections.abc import Callable

from orchestrator.stub.conversation import StubConversation
from orchestrator.stub.script import Answer, Call, Script, Step, StubRequest, Text
from orchestrator.stub.survey import survey_step
from orchestrator.stub.tree import tree_step

_INSTANT = Step(items=(Text("All done."),))


class UnknownBehaviour(ValueError):
    """No built-in behaviour has this name; the message lists those that there are."""


class Behaviour:
    """A script that is a function of the conversation."""

    def __init__(self, name: str, step: Callable[[StubConversation], Step]) -> None:
        self.name = name
        self._step = step

    def answer(self, request: StubRequest) -> Answer:
        """The step for this conversation; ids derive from the request's bytes."""
        conversation = StubConversation.of(request.body)
        return Answer(self._step(conversation), conversation.turn, request.digest)


def behaviour(name: str) -> Script:
    """The behaviour of this name: `echo`, `survey`, `tree`, `instant`, or `shell:N`.

    Raises `UnknownBehaviour`.
    """
    fixed = {"echo": _echo, "survey": survey_step, "instant": _instant, "tree": tree_step}
    if name in fixed:
        return Behaviour(name, fixed[name])
    kind, _, count = name.partition(":")
    if kind == "shell" and count.isdecimal():
        return Behaviour(name, lambda conversation: _shell(conversation, int(count)))
    raise UnknownBehaviour(
        f"the model stub has no behaviour {name!r}; choose echo, survey, tree, instant or shell:N"
    )


def _echo(conversation: StubConversation) -> Step:
    return Step(items=(Text(conversation.task or "Nothing was said."),))


def _instant(conversation: StubConversation) -> Step:
    return _INSTANT


def _shell(conversation: StubConversation, count: int) -> Step:
    done = len(conversation.calls)
    if done >= count:
        return Step(items=(Text(f"Ran {done} commands."),))
    return Step(items=(Call("shell", {"command": ["bash", "-c", f"echo {done + 1} of {count}"]}),))
