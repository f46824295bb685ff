"""The tools of an agent: what a call asks for, and how an accepted one is run.

    assess   reads arguments and files, judges words; starts and writes nothing
    run      carries out what was accepted, exactly as it was recorded
    judge    after a crash: what a call that had begun left behind

Which calls may run is decided elsewhere, from the assessment. This module knows neither
Redis nor models.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.core.calls import ExecWork, McpWork, PatchWork
from orchestrator.core.commands import Assessment, CallFinished, Immediate
from orchestrator.core.state import Call, State
from orchestrator.protocol.events import PlanUpdate, ViewImageToolCall
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.items import InputImage
from orchestrator.protocol.plans import PlanItemArg, StepStatus
from orchestrator.tools.apply_patch import PatchRequest, assess_patch, judge_patch, run_patch
from orchestrator.tools.arguments import (
    BadArguments,
    ImageArguments,
    LocalShellAction,
    PatchArguments,
    PlanArguments,
    ShellArguments,
    parsed,
)
from orchestrator.tools.commands.variables import check_variables
from orchestrator.tools.exec.supervisor import Supervisor
from orchestrator.tools.images import data_url
from orchestrator.tools.mcp import McpToolbox, is_mcp
from orchestrator.tools.shell import ShellRequest, assess_shell, run_shell
from orchestrator.tools.site import DeltaSink, Site, ToolConfig
from orchestrator.tools.specs import LOCAL_SHELL, OFFERED, SHELL
from orchestrator.tools.subagents.assess import AgentCall, assess_agent_call
from orchestrator.tools.subagents.specs import NAMES as AGENT_NAMES
from orchestrator.tools.subagents.specs import OFFERED as AGENT_TOOLS


class Toolbox:
    """The tools of one worker: those built in, and those of its MCP servers."""

    def __init__(self, config: ToolConfig, supervisor: Supervisor, mcp: McpToolbox | None = None) -> None:
        self._config = config
        self._supervisor = supervisor
        self._mcp = mcp

    async def prepare(self, state: State, show: DeltaSink) -> None:
        """Makes ready what the session's tools need, before they are offered."""
        if self._mcp is not None:
            await self._mcp.prepare(state, show)

    def release(self, session: str) -> None:
        """Lets go of what was made ready for the session."""
        if self._mcp is not None:
            self._mcp.release(session)

    def specs(self, state: State) -> Sequence[Mapping[str, Any]]:
        """The tools that the model is offered."""
        offered: list[Mapping[str, Any]] = [*OFFERED]
        if self._config.tools.local_shell:
            offered = [LOCAL_SHELL if tool is SHELL else tool for tool in offered]
        if state.facts.agents and not state.facts.helper_call:
            offered += AGENT_TOOLS
        if self._mcp is not None:
            # Last, so that a new server leaves the beginning of every request as it was.
            offered += self._mcp.specs(state)
        return offered

    async def assess(self, call: Call, site: Site) -> Assessment:
        """The assessment of a call. Bad arguments are an output, not an error: the model reads them."""
        try:
            return await self._assess(call, site)
        except BadArguments as error:
            return Immediate(str(error))

    async def _assess(self, call: Call, site: Site) -> Assessment:
        item = call.item
        match call.name:
            case "shell" | "container.exec" | "exec" if item["type"] == "function_call":
                return await self._shell(_shell_request(parsed(ShellArguments, item["arguments"])), site)
            case "local_shell":
                return await self._shell(_local_request(item, self._config), site)
            case "apply_patch":
                return await self._patch(PatchRequest(_patch_text(item)), site)
            case "update_plan":
                return _plan(parsed(PlanArguments, item["arguments"]))
            case "view_image":
                return await _image(parsed(ImageArguments, item["arguments"]), call, site.state, self._config)
            case name if name in AGENT_NAMES and site.agents is not None and site.state.facts.agents:
                return await assess_agent_call(AgentCall(call, site.state, site.agents, site.seq, site.head))
            case name if self._mcp is not None and is_mcp(name) and item["type"] == "function_call":
                return await self._mcp.assess(call, site.state)
            case _:
                return Immediate(f"unsupported call: {call.name}")

    async def _shell(self, request: ShellRequest, site: Site) -> Assessment:
        assessed = assess_shell(request, site.state, self._config)
        return await self._patch(assessed, site) if isinstance(assessed, PatchRequest) else assessed

    async def _patch(self, request: PatchRequest, site: Site) -> Assessment:
        return await asyncio.to_thread(assess_patch, request, site.state, self._config)

    async def run(self, call: Call, site: Site) -> CallFinished:
        """Runs an accepted call to its end; cancelling it kills it and waits for the proof."""
        match call.work:
            case ExecWork() as command:
                return await run_shell(call, command, site, self._config, self._supervisor)
            case PatchWork() as patch:
                return await run_patch(call, patch, site, self._config, self._supervisor)
            case McpWork() as asked if self._mcp is not None:
                return await self._mcp.run(call, asked, site)
            case McpWork() as asked:
                text = f"tool call failed: no MCP server is configured on this worker, {asked.server} neither"
                return CallFinished(call.call_id, text, (asked.broken_off(call.call_id, text),))
            case _:
                raise TypeError(f"call {call.call_id} has nothing to run")

    async def judge(self, call: Call, claim: str) -> str:
        """`none`, `all` or `in_doubt`: a command that had begun is always in doubt.

        What it left lying about is removed, under the claim of who asks.
        """
        if not isinstance(call.work, PatchWork):
            return "in_doubt"
        return await judge_patch(call.work, claim, self._supervisor)


def _shell_request(arguments: ShellArguments) -> ShellRequest:
    return ShellRequest(
        arguments.command,
        arguments.workdir,
        arguments.timeout_ms,
        arguments.with_escalated_permissions,
        arguments.justification,
    )


def _local_request(item: Mapping[str, Any], config: ToolConfig) -> ShellRequest:
    action = parsed(LocalShellAction, item.get("action") or {})
    if action.user is not None:
        raise BadArguments("running as another user is not supported; leave `user` out")
    if action.env and not config.tools.local_shell:
        raise BadArguments("`env` is not taken: `local_shell` is not offered here; leave `env` out")
    check_variables(action.env or {})
    return ShellRequest(
        action.command,
        action.working_directory,
        action.timeout_ms,
        action.with_escalated_permissions,
        action.justification,
        action.env or {},
    )


def _patch_text(item: Mapping[str, Any]) -> str:
    if item["type"] == "custom_tool_call":
        return str(item["input"])
    return parsed(PatchArguments, item["arguments"]).input


def _plan(arguments: PlanArguments) -> Immediate:
    steps = tuple(PlanItemArg(step=step.step, status=StepStatus(step.status)) for step in arguments.plan)
    return Immediate("Plan updated", (PlanUpdate(explanation=arguments.explanation, plan=steps),))


async def _image(arguments: ImageArguments, call: Call, state: State, config: ToolConfig) -> Immediate:
    assert state.task is not None
    path = Path(state.task.settings.cwd, arguments.path)
    try:
        url = await asyncio.to_thread(data_url, path, config.hidden)
    except (OSError, ValueError) as error:
        return Immediate(f"the image {path} could not be read: {error}")
    event = ViewImageToolCall(call_id=CallId(call.call_id), path=str(path))
    return Immediate((InputImage(image_url=url),), (event,))
