"""A fact as the payload of its entry, and back; the only place that knows how facts are told apart.

    {"kind": "request_begun", "n": 3, "purpose": "turn", "epoch": 7}

What a log holds is copied, exported, sealed and redacted as the payload that it is, which nobody makes
anew from a fact: so a kind, or a field, of a newer version passes whole. A fact is a reading of it.
The two ways are written out once for each record, as straight code: a fold reads every fact of a log.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args

from orchestrator.core.facts.agent import AgentFact
from orchestrator.core.facts.call import CallMoved
from orchestrator.core.facts.form import FORM, Form
from orchestrator.core.facts.request import RequestEnded, RequestFact
from orchestrator.core.facts.session import SessionFact
from orchestrator.core.facts.task import TaskFact
from orchestrator.core.frozen import record, twin_of, written

Fact: TypeAlias = CallMoved | RequestFact | TaskFact | SessionFact | AgentFact
Payload: TypeAlias = Mapping[str, Any]
_Read = Callable[[Payload], Fact]
_Write = Callable[[Fact], dict[str, Any]]

_PLAIN = Form()


@record
class UnknownFact:
    """A fact of a kind that this version does not know: it changes no state."""

    of: ClassVar[Literal["nothing"]] = "nothing"
    payload: Payload


def encode(fact: Fact) -> dict[str, Any]:
    """The payload of the fact's entry, its fields in the order of the record."""
    return _WRITERS[type(fact)](fact)


def decode(payload: Payload) -> Fact | UnknownFact:
    """The fact that a payload states.

    Raises `KeyError`, `TypeError` or `ValueError` for a known kind that lacks a field, or has a wrong one.
    """
    read = _READERS.get(payload.get("kind", ""))
    return UnknownFact(payload) if read is None else read(payload)


def states(payload: Payload, cls: type[Fact]) -> bool:
    """Whether a payload is of this record's kind; it may still be no sound one."""
    return bool(payload.get("kind") == cls.kind)


def _reader(cls: type[Fact]) -> _Read:
    scope: dict[str, Any] = {"cls": cls, "twin": twin_of(cls)}
    stores = [f"made.{spec.name} = {_reading(spec, scope)}" for spec in fields(cls)]
    lines = ["made = twin()", *stores, "made.__class__ = cls", "return made"]
    return cast(_Read, written("read", ["payload"], lines, scope))


def _reading(spec: Field[Any], scope: dict[str, Any]) -> str:
    form = _form(spec)
    name = form.name or spec.name
    if spec.default is MISSING:
        value = f"payload[{name!r}]"
    else:
        scope[f"default_{spec.name}"] = spec.default
        value = f"payload.get({name!r}, default_{spec.name})"
    if form.read is None:
        return value
    scope[f"read_{spec.name}"] = form.read
    return f"read_{spec.name}({value})"


def _writer(cls: type[Fact]) -> _Write:
    scope: dict[str, Any] = {}
    parts = [f"'kind': {cls.kind!r}"]
    lines: list[str] = []
    for spec in fields(cls):
        form = _form(spec)
        name, value = form.name or spec.name, f"fact.{spec.name}"
        if form.write is not None:
            scope[f"write_{spec.name}"] = form.write
            value = f"write_{spec.name}({value})"
        if spec.default is MISSING or (form.always and not lines):
            parts.append(f"{name!r}: {value}")
        elif form.always:
            lines.append(f"made[{name!r}] = {value}")
        else:
            scope[f"default_{spec.name}"] = spec.default
            lines.append(f"if fact.{spec.name} != default_{spec.name}: made[{name!r}] = {value}")
    lines = [f"made = {{{', '.join(parts)}}}", *lines, "return made"]
    return cast(_Write, written("write", ["fact"], lines, scope))


def _form(spec: Field[Any]) -> Form:
    form: Form = spec.metadata.get(FORM, _PLAIN)
    return form


def _request_ended(payload: Payload) -> Fact:
    return _REQUEST_ENDS[payload["outcome"]](payload)


_ALL: tuple[type[Fact], ...] = get_args(Fact)
_ENDS: tuple[type[RequestEnded], ...] = get_args(RequestEnded)
_WRITERS: Mapping[type[Fact], _Write] = {cls: _writer(cls) for cls in _ALL}
_REQUEST_ENDS: Mapping[str, _Read] = {
    cls.__dataclass_fields__["outcome"].default: _reader(cls) for cls in _ENDS
}
_READERS: Mapping[str, _Read] = {
    **{cls.kind: _reader(cls) for cls in _ALL if cls not in _ENDS},
    _ENDS[0].kind: _request_ended,
}
