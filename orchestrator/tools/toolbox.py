"""The tools of one worker: which tool a call means, and what the model is offered."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from orchestrator.core.calls import USER_SHELL, Call, Exec, ExecWork, McpWork, command_of
from orchestrator.core.commands import Assessment, CallFinished, Immediate, ProcessEnd, SetupEnded
from orchestrator.core.frozen import replace
from orchestrator.core.state import Process, State, Task
from orchestrator.protocol.events import Error, ExecCommandEnd
from orchestrator.protocol.mcp import Tool as McpTool
from orchestrator.protocol.wire import UNSET, JsonMapping, JsonObject, JsonValue
from orchestrator.tools import client_tool_calls
from orchestrator.tools.agent_tools import AGENT_TOOLS
from orchestrator.tools.apply_patch import NOT_IN_PLAN_MODE as NO_PATCH
from orchestrator.tools.apply_patch import ApplyPatchTool
from orchestrator.tools.arguments import BadArguments
from orchestrator.tools.commands.parsed import parsed_cmd
from orchestrator.tools.custom import CustomTool, custom_tools
from orchestrator.tools.exec.supervisor import Supervisor
from orchestrator.tools.exec.worker_processes import LiveProcesses, follow
from orchestrator.tools.exec_command import ExecCommand, WriteStdinTool
from orchestrator.tools.exec_policy import CommandRules, RuleWarnings
from orchestrator.tools.folder_setup import SetupRunner
from orchestrator.tools.images import ViewImage
from orchestrator.tools.mcp_tools import McpToolbox, is_mcp
from orchestrator.tools.question import AskUserQuestionTool, RequestUserInputTool
from orchestrator.tools.shell import LocalShell, Shell, is_confinable, run_command, search_path
from orchestrator.tools.tool import Judgement, Tool, task_of, unsupported
from orchestrator.tools.tool_context import CallSite, DeltaSink, ToolConfig
from orchestrator.tools.update_plan import NOT_IN_PLAN_MODE, ApprovePlanTool, UpdatePlan


def built_in(config: ToolConfig, supervisor: Supervisor) -> tuple[Tool, ...]:
    """The tools that Dendro brings along, in the order in which the model is offered them."""
    patches = ApplyPatchTool(config, supervisor)
    shell = Shell(config, supervisor, patches)
    processes = LiveProcesses()
    lasting = (ExecCommand(config, supervisor, shell, processes), WriteStdinTool(processes))
    plain = (shell, LocalShell(config, shell), patches, UpdatePlan(), ViewImage(config), WebSearch())
    asks = (AskUserQuestionTool(), RequestUserInputTool(), ApprovePlanTool())
    return (*lasting, *plain, *AGENT_TOOLS, *asks, UserShell(config, supervisor))


def all_tools(config: ToolConfig, supervisor: Supervisor, own: Sequence[CustomTool]) -> tuple[Tool, ...]:
    """The built-in tools, then the program's own; raises `ValueError` for one that cannot be."""
    ours = built_in(config, supervisor)
    taken = {name for tool in ours for name in tool.names}
    return (*ours, *custom_tools(own, taken, config.tools.max_deltas))


class Toolbox:
    """The tools of one worker, by their names, and behind them those of its MCP servers."""

    def __init__(
        self,
        tools: Sequence[Tool],
        mcp: McpToolbox | None = None,
        rules: CommandRules | None = None,
        setups: SetupRunner | None = None,
    ) -> None:
        self._tools = tools
        self._setups = setups
        self._mcp = mcp
        self._rule_warnings = None if rules is None else RuleWarnings(rules)
        self._by_name: Mapping[str, Tool] = {name: tool for tool in tools for name in tool.names}
        kept = (tool.processes for tool in tools if isinstance(tool, ExecCommand))
        self._processes = next(kept, LiveProcesses())
        self._offered: tuple[State, list[JsonObject]] | None = None
        """The state that tools were asked for last, and what they offered."""

    async def prepare(self, state: State, show: DeltaSink) -> None:
        """Makes ready what the session's tools need, before they are offered."""
        if self._rule_warnings is not None:
            self._rule_warnings.show(state, show)
        if self._mcp is not None:
            await self._mcp.prepare(state, show)

    def servers(self, state: State) -> tuple[JsonMapping, ...]:
        """The MCP servers of the session's folder: `name`, `version`, and the digest of their `tools`."""
        return self._mcp.told(state) if self._mcp is not None else ()

    def release(self, session: str) -> None:
        """Lets go of what was made ready for the session."""
        if self._mcp is not None:
            self._mcp.release(session)

    async def of_servers(self, state: State, server: str | None = None) -> dict[str, McpTool]:
        """The tools of the MCP servers of the session's folder, or of one of them, by their full names."""
        return await self._mcp.listed(state, server) if self._mcp is not None else {}

    @property
    def parallel_safe(self) -> frozenset[str]:
        """The names of tools whose calls may run together."""
        return _names(tool for tool in self._tools if tool.parallel_safe)

    @property
    def repeatable(self) -> frozenset[str]:
        """The names of tools whose calls may run again after a crash."""
        return _names(tool for tool in self._tools if tool.repeatable)

    @property
    def folder_free(self) -> frozenset[str]:
        """The names of tools whose calls need nothing of the session's folder."""
        return _names(tool for tool in self._tools if not tool.needs_folder)

    def specs(self, state: State) -> Sequence[Mapping[str, JsonValue]]:
        """The tools that the model is offered."""
        # A request asks twice: when it is made, and when it is sent.
        if self._offered is None or self._offered[0] is not state:
            offers = [tool.offered(state) for tool in self._tools if _serves(tool, state)]
            offered = [offer for offer in offers if offer is not None]
            offered += client_tool_calls.offered(state, self._by_name.keys())
            self._offered = state, offered
        offered = self._offered[1]
        # Last, so that a new server leaves the beginning of every request as it was.
        return [*offered, *self._mcp.specs(state)] if self._mcp is not None else offered

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        """The assessment of a call. Bad arguments are an output, not an error: the model reads them."""
        try:
            return await self._assess(call, site)
        except BadArguments as error:
            return Immediate(str(error))

    async def _assess(self, call: Call, site: CallSite) -> Assessment:
        tool = self._by_name.get(call.name)
        if tool is not None and not _serves(tool, site.state):
            return _not_here(call, task_of(site.state))
        if tool is not None:
            return await tool.assess(call, site)
        if (brought := client_tool_calls.called(site.state, call)) is not None:
            return client_tool_calls.assessed(site.state, call, brought)
        if client_tool_calls.searches(site.state, call):
            return client_tool_calls.searched(site.state, call)
        if self._mcp is not None and is_mcp(call.name) and call.item["type"] == "function_call":
            return await self._mcp.assess(call, site.state)
        return unsupported(call)

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        """Runs an accepted call to its end; cancelling it kills it and waits for the proof."""
        if isinstance(call.work, McpWork):
            return await self._run_mcp(call, call.work, site)
        tool = self._by_name.get(call.name)
        return _missing(call) if tool is None else await tool.run(call, site)

    async def _run_mcp(self, call: Call, work: McpWork, site: CallSite) -> CallFinished:
        if self._mcp is not None:
            return await self._mcp.run(call, work, site)
        text = f"tool call failed: no MCP server is configured on this worker, {work.server} neither"
        return CallFinished(call.call_id, text, (work.broken_off(call.call_id, text),))

    async def set_up(self, site: CallSite) -> SetupEnded:
        """Runs the set-up of the session's folder; cancelling it kills it and waits for the proof."""
        if self._setups is None:
            return SetupEnded("failed", message="this worker runs no set-ups")
        return await self._setups.run(site)

    async def judge(self, call: Call, claim: str) -> Judgement:
        """Judges what a lost worker's call left; in doubt where nobody here knows the tool."""
        tool = self._by_name.get(call.name)
        return "in_doubt" if tool is None else await tool.judge(call, claim)

    async def follow(self, process: Process, claim: str) -> ProcessEnd:
        """Returns at the end of a process; cancelling it kills it and waits for the proof."""
        return await follow(self._processes, process, claim)

    def kill_process(self, number: int, claim: str) -> None:
        """Lets a process be killed; `follow` returns when that is proved."""
        living = self._processes.get(claim, number)
        if living is not None:
            living.kill()

    async def abandon(self, claim: str) -> None:
        """Kills the processes of a claim that nobody follows; returns when they are proved dead."""
        await self._processes.abandon(claim)


def _serves(tool: Tool, state: State) -> bool:
    """Whether the session's task has the tool: those beside the conversation have few."""
    task = state.task
    return task is None or task.branch is None or task.kind in tool.beside


def _not_here(call: Call, task: Task) -> Immediate:
    match call.name:
        case "update_plan" if task.kind == "plan":
            return Immediate(NOT_IN_PLAN_MODE)
        case "apply_patch" if task.kind == "plan":
            return Immediate(NO_PATCH)
        case _:
            return Immediate(f"unsupported call: {call.name} ({task.kind} mode)")


def _missing(call: Call) -> CallFinished:
    """The end of a call that another worker has assessed, whose program brings the tool along."""
    text = (
        f"not run: this worker has no tool of the name {call.name}; "
        "every worker of a pool has to have the same tools"
    )
    return CallFinished(call.call_id, text, call.broken_off(text))


def _names(tools: Iterable[Tool]) -> frozenset[str]:
    return frozenset(name for tool in tools for name in tool.names)


# ── web search ────────────────────────────────────────────────────────────────────────────────────
# The `web_search` tool: a search that the model's provider runs itself.


WEB_SEARCH: Final[JsonObject] = {"type": "web_search"}


class WebSearch(Tool):
    """The offer of the provider's search: its calls are items of the response, and nothing runs here."""

    names = ()

    def offered(self, state: State) -> JsonObject | None:
        return WEB_SEARCH if state.facts.web_search else None


# ── user shell ────────────────────────────────────────────────────────────────────────────────────
# Commands that a person types: run by a shell in the session's folder and sandbox, and never asked about.


LONGEST_MS: Final = 3_600_000
"""A command of a person may take an hour: they can interrupt it."""
NOT_CONFINED: Final = (
    "not run: the session's sandbox confines commands, and this worker cannot; `dendro doctor` says on its "
    "machine what is missing"
)


class UserShell(Tool):
    """The runner of people's commands; no model is offered it, and no call of a model is one of its."""

    names = (USER_SHELL,)

    def __init__(self, config: ToolConfig, supervisor: Supervisor) -> None:
        self._config = config
        self._supervisor = supervisor

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        command = command_of(call.item)
        if command is None:
            return unsupported(call)
        task = task_of(site.state)
        confinable = is_confinable(site.state, self._config)
        if not confinable and not task.settings.full_access:
            return Immediate(NOT_CONFINED, (Error(message=NOT_CONFINED, codex_error_info=UNSET),))
        shell = "bash" if shutil.which("bash", path=search_path(self._config)) else "sh"
        argv = (shell, "-lc", command)
        return Exec(
            command=argv,
            cwd=task.settings.cwd,
            parsed_cmd=tuple(parsed_cmd(argv)),
            key="",
            confinable=confinable,
            timeout_ms=LONGEST_MS,
            by_person=True,
        )

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        assert isinstance(call.work, ExecWork)
        finished = await run_command(call, call.work, site, self._config, self._supervisor)
        # The person knows what the sandbox stops: nobody is asked whether to leave it.
        return replace(finished, output=_told(finished), sandbox_denied=False)


def _told(finished: CallFinished) -> str:
    """The result of a command as the model reads it."""
    (end,) = finished.events
    assert isinstance(end, ExecCommandEnd)
    seconds = end.duration.secs + end.duration.nanos / 1e9
    return f"Exit code: {end.exit_code}\nDuration: {seconds:.1f} seconds\nOutput:\n{end.formatted_output}"
