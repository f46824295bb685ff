"""The `local_shell` tool: the Responses API's own form of a command."""

from __future__ import annotations

from typing import Final

from pydantic import AliasChoices, Field

from orchestrator.core.commands import Assessment, CallFinished, Immediate
from orchestrator.core.history import Item
from orchestrator.core.state import State
from orchestrator.core.turn_calls import Call
from orchestrator.protocol.wire import JsonObject
from orchestrator.tools.arguments import Arguments, BadArguments, parsed
from orchestrator.tools.commands.variables import check_variables
from orchestrator.tools.shell import Shell, ShellRequest, is_hosted
from orchestrator.tools.site import CallSite, ToolConfig
from orchestrator.tools.tool import Judgement, Tool

LOCAL_SHELL: Final[JsonObject] = {"type": "local_shell"}
"""The Responses API's built-in tool, whose calls are `local_shell_call` items."""
INCOMPLETE: Final = "incomplete call"
"""The output of a call that its provider has cut off: what it was to run is not known."""


class LocalShellAction(Arguments):
    """`LocalShellAction::Exec` (the September 2025 specification, Local shell)."""

    command: tuple[str, ...] = Field(min_length=1)
    working_directory: str | None = None
    timeout_ms: int | None = Field(default=None, ge=1, validation_alias=AliasChoices("timeout_ms", "timeout"))
    env: dict[str, str] | None = None
    user: str | None = None
    with_escalated_permissions: bool = False
    justification: str | None = None


class LocalShell(Tool):
    """Commands that a model gives as an action; they run as those of `shell` do."""

    names = ("local_shell",)
    beside = frozenset({"plan", "review"})

    def __init__(self, config: ToolConfig, shell: Shell) -> None:
        self._config = config
        self._shell = shell

    def offered(self, state: State) -> JsonObject | None:
        return LOCAL_SHELL if is_hosted(state, self._config) else None

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if call.item["type"] != "local_shell_call":
            # Models write it as a function, too: then with the arguments of `shell`.
            return await self._shell.assess(call, site)
        if call.item.get("status") == "incomplete":
            return Immediate(INCOMPLETE)
        return await self._shell.assess_request(_request(call.item, site.state, self._config), site)

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        return await self._shell.run(call, site)

    async def judge(self, call: Call, claim: str) -> Judgement:
        return await self._shell.judge(call, claim)


def _request(item: Item, state: State, config: ToolConfig) -> ShellRequest:
    action = parsed(LocalShellAction, item.get("action") or {})
    if action.user is not None:
        raise BadArguments("running as another user is not supported; leave `user` out")
    if action.env and not is_hosted(state, config):
        raise BadArguments(
            "`env` is not taken here; leave it out, or begin the command with `env NAME=VALUE`"
        )
    check_variables(action.env or {})
    return ShellRequest(
        action.command,
        action.working_directory,
        action.timeout_ms,
        action.with_escalated_permissions,
        action.justification,
        action.env or {},
    )
