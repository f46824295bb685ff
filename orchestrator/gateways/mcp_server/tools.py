"""The tools of the MCP server: names, arguments with their bounds, and results.

A client's arguments are a model's: each has a bound here, and what they may loosen is decided where a session
is made.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import mcp.types as sdk
import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator

from orchestrator.core.frozen import record
from orchestrator.protocol.bounds import JSON_BYTES, TEXT_BYTES, deeper_than

MOST_CONFIG_KEYS = 50
MOST_CONFIG_DEPTH = 8
MOST_KEY = 200
MOST_LISTED = 100
MOST_PROMPT = TEXT_BYTES // 4
"""Characters: each has four bytes at most."""
Status = Literal["completed", "interrupted", "failed", "in_progress"]


class _Arguments(BaseModel):
    """Arguments of a tool; one that it does not know is an error, so that nothing is asked for in vain."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


def _said(prompt: str) -> str:
    if not prompt.strip():
        raise ValueError("it is empty: say what the agent is to do")
    return prompt


Prompt = Annotated[
    str, AfterValidator(_said), Field(max_length=MOST_PROMPT, json_schema_extra={"minLength": 1})
]


class RunArguments(_Arguments):
    """Begins a new session, does what the prompt says, and answers when its turn is over."""

    prompt: Prompt = Field(description="What the agent is to do.")
    cwd: str | None = Field(
        None, description="Folder to work in: the server's own, or one below it.", max_length=4096
    )
    model: str | None = Field(None, description="Model, instead of the configured one.", max_length=200)
    sandbox: Literal["read-only", "workspace-write", "danger-full-access"] | None = Field(
        None, description="What commands may touch; never more than the server was started with."
    )
    approval_policy: Literal["untrusted", "on-failure", "on-request", "never"] | None = Field(
        None, description="When a person is asked; never less than the server was started with."
    )
    config: dict[str, Any] | None = Field(
        None, description="Other settings by their keys, as in dendro.toml.", max_length=MOST_CONFIG_KEYS
    )

    @field_validator("config")
    @classmethod
    def _config_within_bounds(cls, config: dict[str, Any] | None) -> dict[str, Any] | None:
        """The settings, which are read by the path of each of their keys."""
        if deeper_than(config, MOST_CONFIG_DEPTH):
            raise ValueError(f"nested deeper than {MOST_CONFIG_DEPTH} levels")
        if (size := len(orjson.dumps(config))) > JSON_BYTES:
            raise ValueError(f"at most {JSON_BYTES:,} bytes as JSON, this has {size:,}")
        if _has_long_key(config):
            raise ValueError(f"a key has at most {MOST_KEY} characters")
        return config


def _has_long_key(value: Any) -> bool:
    """Whether a key is longer than any setting's; each is repeated in the paths of all below it."""
    table = value if isinstance(value, dict) else {}
    return any(len(key) > MOST_KEY or _has_long_key(inner) for key, inner in table.items())


class ReplyArguments(_Arguments):
    """Gives a session its next prompt, and answers when that turn is over. It waits behind a running one."""

    thread_id: str = Field(description="The `threadId` that `run` or `threads` told.", max_length=100)
    prompt: Prompt = Field(description="What the agent is to do next.")


class ThreadsArguments(_Arguments):
    """Lists sessions, those that changed last first."""

    limit: int = Field(20, description="How many.", ge=1, le=MOST_LISTED)
    text: str = Field("", description="Only those whose name, title or folder has it.", max_length=200)


class TreeArguments(_Arguments):
    """Shows a session with all agents that it made: who works for whom, who waits for what."""

    thread_id: str = Field(description="A session of the tree.", max_length=100)


Arguments = RunArguments | ReplyArguments | ThreadsArguments | TreeArguments
_TOOLS: Mapping[str, type[Arguments]] = {
    "run": RunArguments,
    "reply": ReplyArguments,
    "threads": ThreadsArguments,
    "tree": TreeArguments,
}
_TURN = {
    "type": "object",
    "properties": {
        "threadId": {"type": "string", "description": "The session; `reply` goes on with it."},
        "turnId": {"type": "string"},
        "status": {"enum": ["completed", "interrupted", "failed"]},
    },
    "required": ["threadId", "turnId", "status"],
}


class UnknownTool(Exception):
    """A tool that the server does not have."""


class BadArguments(Exception):
    """Arguments that a tool does not take; the message says which, and what it takes."""


def listed() -> list[sdk.Tool]:
    """The tools as clients are told of them."""
    return [
        sdk.Tool(
            name=name,
            description=" ".join((arguments.__doc__ or "").split()),
            input_schema=_schema(arguments),
            output_schema=_TURN if name in ("run", "reply") else None,
            annotations=sdk.ToolAnnotations(read_only_hint=name in ("threads", "tree")),
        )
        for name, arguments in _TOOLS.items()
    ]


def _schema(arguments: type[Arguments]) -> dict[str, Any]:
    schema = arguments.model_json_schema()
    schema.pop("title", None)
    schema.pop("description", None)
    for field in schema["properties"].values():
        field.pop("title", None)
    return schema


def parsed(name: str, arguments: Mapping[str, Any] | None) -> Arguments:
    """The checked arguments of a call; raises `UnknownTool` or `BadArguments`."""
    model = _TOOLS.get(name)
    if model is None:
        raise UnknownTool(f"no tool {name[:100]!r}; there are {', '.join(_TOOLS)}")
    try:
        return model.model_validate(dict(arguments or {}))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))[:100]
        known = ", ".join(model.model_fields)
        why = first["msg"].removeprefix("Value error, ")
        raise BadArguments(f"{where}: {why}; {name} takes {known}") from None


@record
class TurnOutcome:
    """The end of a turn, for a client."""

    thread_id: str
    turn_id: str
    status: Status
    text: str

    def result(self) -> sdk.CallToolResult:
        """The turn as a tool's result."""
        structured = {"threadId": self.thread_id, "turnId": self.turn_id, "status": self.status}
        return sdk.CallToolResult(
            content=[sdk.TextContent(type="text", text=self.text)],
            structured_content=structured,
            is_error=self.status == "failed",
        )


def refusal(text: str) -> sdk.CallToolResult:
    """The result of a call that could not be carried out."""
    return sdk.CallToolResult(content=[sdk.TextContent(type="text", text=text)], is_error=True)
