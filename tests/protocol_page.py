"""Prints the protocol's reference page, made from the models: `python -m tests.protocol_page`.

`docs/protocol/reference.md` is its output, and a test fails when the page is stale. It
knows the shape of models in general and no particular one.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields
from enum import Enum, EnumType
from types import ModuleType, NoneType, UnionType
from typing import Annotated, Any, Final, Literal, NewType, Union, get_args, get_origin

from pydantic import AliasChoices, BaseModel
from pydantic.fields import FieldInfo

from orchestrator.protocol import (
    agents,
    bounds,
    catalog,
    codec,
    commands,
    events,
    inputs,
    items,
    mcp,
    ops,
    plans,
    policy,
    review,
    scalars,
    turn_items,
    wire,
)
from tests.protocol.lines import RolloutLine
from tests.protocol.served import NEVER_SENT, NEVER_SERVED, ONLY_READ, SENT_EVENTS, SERVED_OPS

SHARED: Final[tuple[ModuleType, ...]] = (
    inputs, policy, scalars, commands, plans, review, mcp, agents, catalog,
)  # fmt: skip

UNIONS: Final[dict[str, Any]] = {
    "Op": ops.Op,
    "EventMsg": events.EventMsg,
    "ResponseItem": items.ResponseItem,
    "ResponseInputItem": items.ResponseInputItem,
    "TurnItem": turn_items.TurnItem,
    "InputItem": inputs.InputItem,
    "ContentItem": items.ContentItem,
    "ReasoningContent": items.ReasoningContent,
    "LocalShellAction": items.LocalShellAction,
    "WebSearchAction": items.WebSearchAction,
    "SandboxPolicy": policy.SandboxPolicy,
    "Decision": policy.Decision,
    "ParsedCommand": commands.ParsedCommand,
    "FileChange": commands.FileChange,
    "PlanApprovalResponse": plans.PlanApprovalResponse,
    "AskUserQuestionResponse": plans.AskUserQuestionResponse,
    "ReviewTarget": review.ReviewTarget,
    "McpStartupStatus": mcp.McpStartupStatus,
    "SubAgentResult": agents.SubAgentResult,
    "AgentStatus": agents.AgentStatus,
}
_UNION_NAMES: Final = {frozenset(get_args(union)): name for name, union in UNIONS.items()}

_SCALARS: Final[dict[Any, str]] = {
    str: "string",
    int: "integer",
    bool: "boolean",
    float: "number",
    bytes: "base64",
    Any: "any JSON",
    NoneType: "null",
}

HEAD: Final = """\
# Protocol reference

Generated from the models by `python -m tests.protocol_page`; do not edit. Which
document states what, and what was decided where documents differ: [sources](sources.md).

## How to read it

- A **submission** is `{"id", "op"}`, an **event** `{"id", "msg"}`, a **rollout line**
  `{"timestamp", "type", "payload"}`; one JSON object per line.
- *required*: always there. *or absent*: left out while it has no value; a `null` read means
  the same. *or null*: always written, `null` included. *absent, null or value*: three
  meanings: keep, clear, set. A *default* is what absence is read as.
- Unknown fields of events, items and rollout payloads are kept and written again; those of
  operations are ignored. Unknown events, items and rollout lines are kept whole; an unknown
  operation is refused.
- An operation is *served*, or *not served*: then it is read and answered by an `error`. An event
  is *sent* by this version, or *only read*: in rollouts of other programs and versions. What Dendro
  leaves to other programs stands under [Read, not served](#read-not-served). A value that is *only
  read* is in no event of this version.
"""

BOUNDS: Final = f"""\
## Bounds of a submission

What holds more is answered by an `error` that names the field and its bound, and nothing of it is done.
Fields of one name have one bound in every operation; bytes are those of UTF-8. An operation has at most
{bounds.BESIDE_BYTES:,} bytes beside its texts, of each of which {bounds.STORED_BYTES} count at most; a whole
submission has at most {bounds.IMAGE_BYTES:,}.
"""


def page() -> str:
    """The whole page, ending in one newline."""
    return "\n".join(_lines()).rstrip("\n") + "\n"


def _lines() -> Iterator[str]:
    yield HEAD
    yield "## Operations\n"
    yield from _variants(_served(ops.Op, NEVER_SERVED), SERVED_OPS, ("served", "not served"))
    yield from _bounds()
    yield "## Events\n"
    yield from _variants(_served(events.EventMsg, NEVER_SENT), SENT_EVENTS, ("sent", "only read"))
    yield "## Read, not served\n\nOperations and events of other programs that Dendro reads and passes on.\n"
    for union, tags, word in (
        (ops.Op, NEVER_SERVED, "not served"),
        (events.EventMsg, NEVER_SENT, "only read"),
    ):
        for model in _models(union):
            if wire.tag_of(model) in tags:
                yield from _model(model, f"### `{wire.tag_of(model)}`", word)
    yield "## Rollout lines\n"
    yield from _rollout()
    for title, module in (("Response items", items), ("Turn items", turn_items)):
        yield f"## {title}\n\n{_first_line(module)}\n"
        yield from _unions(module)
        yield from _module(module)
    yield "## Shared types\n"
    for module in SHARED:
        yield f"### {_first_line(module)}\n"
        yield from _unions(module)
        yield from _module(module)
    yield "### Tokens, rate limits, kinds of errors and other parts, as events carry them.\n"
    yield from _module(events)
    yield "## Enumerations\n"
    yield from _enumerations()


def _bounds() -> Iterator[str]:
    yield BOUNDS
    yield "| field | at most |\n|---|---|"
    yield from (f"| {field} | {most} |" for field, most in bounds.rows().items())
    yield ""


def _models(union: Any) -> list[type[BaseModel]]:
    return [member for member in get_args(union) if not issubclass(member, wire.Unknown)]


def _served(union: Any, never: frozenset[str]) -> list[type[BaseModel]]:
    """The variants of a union but for those that Dendro leaves to other programs."""
    return [model for model in _models(union) if wire.tag_of(model) not in never]


def _variants(
    models: Sequence[type[BaseModel]], done: frozenset[str], words: tuple[str, str]
) -> Iterator[str]:
    """Variants of a union; `words` say of each whether this version has it `done`."""
    for is_done, word in zip((True, False), words, strict=True):
        tags = [tag for tag in map(wire.tag_of, models) if (tag in done) is is_done]
        if tags:
            yield f"{word.capitalize()}: " + " · ".join(f"[`{tag}`](#{tag})" for tag in tags) + "\n"
    for model in models:
        tag = wire.tag_of(model)
        yield from _model(model, f"### `{tag}`", words[0] if tag in done else words[1])


def _rollout() -> Iterator[str]:
    yield "| type | payload |\n|---|---|"
    yield "| `session_meta` | `SessionMeta` |\n| `turn_context` | `TurnContext` |"
    yield "| `response_item` | `ResponseItem` |\n| `event_msg` | `EventMsg` |"
    yield '| `compacted` | `Compacted` |\n| `dendro` | `{"kind": …}`, a fact of Dendro\'s own |\n'
    own = ", ".join(f"`{name}`" for name in _own_fields())
    yield f"Beside them, on lines that Dendro wrote: {own}.\n"
    yield from _module(codec)


def _own_fields() -> list[str]:
    known = ("timestamp", "item", "extra")
    return [field.name for field in fields(RolloutLine) if field.name not in known]


def _unions(module: ModuleType) -> Iterator[str]:
    for name, union in UNIONS.items():
        if getattr(module, name, None) is union:
            yield f"`{name}` = {_alternatives(get_args(union))}\n"


def _module(module: ModuleType) -> Iterator[str]:
    for model in _classes(module, wire.WireModel):
        # Events have a part of their own.
        if model.model_fields and not issubclass(model, wire.EventModel):
            yield from _model(model, f"#### `{model.__name__}`")


def _model(model: type[BaseModel], heading: str, status: str = "") -> Iterator[str]:
    stated_in: wire.Source = model.stated_in  # type: ignore[attr-defined]
    says = f"{_first_line(model)} {status.capitalize()}." if status else _first_line(model)
    yield f"{heading}\n\n{says} *({stated_in.value})*\n"
    if set(model.model_fields) == {"type"} and issubclass(model, wire.OpModel | wire.EventModel):
        return
    yield "| field | type | presence |\n|---|---|---|"
    for name, info in model.model_fields.items():
        yield f"| {_wire_name(name, info)} | {_escape(_type(info.annotation))} | {_presence(info)} |"
    yield ""


def _enumerations() -> Iterator[str]:
    for module in (items, *SHARED, events):
        for enum in _classes(module, Enum):
            yield f"- `{enum.__name__}`: {', '.join(_values(enum))}. {_first_line(enum)}"
    yield ""


def _values(enum: type[Enum]) -> Iterator[str]:
    only_read = ONLY_READ.get(enum.__name__, frozenset())
    for member in enum:
        yield f"`{member.value}` (only read)" if member.value in only_read else f"`{member.value}`"


def _classes(module: ModuleType, base: Any) -> list[Any]:
    found = [value for value in vars(module).values() if inspect.isclass(value) and issubclass(value, base)]
    return [value for value in found if value.__module__ == module.__name__ and not _is_base(value)]


def _is_base(model: Any) -> bool:
    """A model that only others are made of: its tag is any string."""
    tag = getattr(model, "model_fields", {}).get("type")
    return tag is not None and not _is_tag(tag)


def _first_line(thing: Any) -> str:
    return (inspect.getdoc(thing) or "").partition("\n")[0]


def _is_tag(info: FieldInfo) -> bool:
    return get_origin(info.annotation) is Literal


def _wire_name(name: str, info: FieldInfo) -> str:
    shown = f"`{info.serialization_alias or info.alias or name}`"
    if isinstance(info.validation_alias, AliasChoices):
        others = [choice for choice in info.validation_alias.choices if choice != name]
        shown += "".join(f", read also as `{other}`" for other in others)
    return shown


def _presence(info: FieldInfo) -> str:
    if _is_tag(info) or info.is_required():
        return "required"
    if info.default is wire.UNSET:
        return "absent, null or value"
    if info.default is None:
        if info.exclude_if is None:
            return "or null"
        return "or absent" if info.exclude_if(None) else "or null, or absent"
    default = _default(info.default)
    return f"or absent, default {default}" if info.exclude_if else f"default {default}"


def _default(value: Any) -> str:
    if isinstance(value, Enum):
        return f"`{value.value}`"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, BaseModel):
        return "empty"
    return {"": "empty", (): "empty"}.get(value, f"`{value}`")


def _type(annotation: Any) -> str:
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type(args[0])
    if origin is Literal:
        return f'"{args[0]}"'
    if origin in (Union, UnionType):
        return _UNION_NAMES.get(frozenset(args)) or _alternatives(args)
    if origin is tuple:
        return f"[{_type(args[0])}]"
    if origin is dict:
        return f"{{{_type(args[0])}: {_type(args[1])}}}"
    if isinstance(annotation, NewType):
        return _type(annotation.__supertype__)
    return _class_name(annotation)


def _class_name(annotation: Any) -> str:
    if isinstance(annotation, EnumType) or (
        inspect.isclass(annotation) and issubclass(annotation, BaseModel)
    ):
        return annotation.__name__
    raise TypeError(f"no name on the page for {annotation!r}")


def _alternatives(args: tuple[Any, ...]) -> str:
    shown = [arg for arg in args if arg not in (NoneType, wire.Unset) and not _is_unknown(arg)]
    return " | ".join(dict.fromkeys(_type(arg) for arg in shown))


def _is_unknown(arg: Any) -> bool:
    return inspect.isclass(arg) and issubclass(arg, wire.Unknown)


def _escape(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.stdout.write(page())
