"""The toolbox of a worker: large texts are put back before a tool sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from orchestrator.broker.blobs import Texts
from orchestrator.broker.errors import BrokerError
from orchestrator.core.blobs import references, resolve
from orchestrator.core.calls import Call, spec_of, work_of
from orchestrator.core.commands import Assessment, CallFinished, Immediate
from orchestrator.core.ids import TreeId
from orchestrator.core.state import State
from orchestrator.protocol.wire import JsonValue
from orchestrator.runtime import log
from orchestrator.sandbox.policy_paths import InvalidPolicy
from orchestrator.tools.exec_policy import CommandRules
from orchestrator.tools.folder_setup import SetupRunner
from orchestrator.tools.mcp_tools import McpToolbox
from orchestrator.tools.site import CallSite, DeltaSink
from orchestrator.tools.tool import Judgement, Tool
from orchestrator.tools.toolbox import Toolbox


class ToolCalls(Toolbox):
    """The toolbox as `ports.Tools` wants it: texts are whole, and no tool's defect costs the session."""

    def __init__(
        self,
        texts: Texts,
        tools: Sequence[Tool],
        mcp: McpToolbox | None = None,
        rules: CommandRules | None = None,
        setups: SetupRunner | None = None,
    ) -> None:
        super().__init__(tools, mcp, rules, setups)
        self._texts = texts

    async def prepare(self, state: State, show: DeltaSink) -> None:
        """Prepares the tools; an unexpected error costs the tools that it is about, not the request."""
        try:
            await super().prepare(state, show)
        except Exception:
            log.exception("session %s: its tools could not be prepared", state.facts.session_id)

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        """Assesses a call; an unexpected error becomes the call's output, so that the session goes on."""
        try:
            return await super().assess(await self._whole(call, site.tree), await self._site(site))
        except BrokerError:
            raise
        except InvalidPolicy as error:
            return Immediate(f"not run: {error}")
        except Exception as error:
            log.exception("session %s: call %s could not be assessed", site.session, call.call_id)
            return Immediate(f"internal error: {type(error).__name__}: {error}")

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        return await super().run(await self._whole(call, site.tree), await self._site(site))

    async def judge(self, call: Call, claim: str) -> Judgement:
        """Judges a lost call by its files; `in_doubt` where they cannot be read."""
        try:
            return await super().judge(call, claim)
        except Exception:
            log.exception("call %s could not be judged by its files", call.call_id)
            return "in_doubt"

    async def _whole(self, call: Call, tree: TreeId) -> Call:
        spec = spec_of(call.work) if call.work is not None else {}
        resolved = await self._resolved(spec, tree)
        work = call.work if resolved is spec else work_of(resolved)
        return replace(call, item=await self._resolved(call.item, tree), work=work)

    async def _site(self, site: CallSite) -> CallSite:
        task = site.state.task
        if task is None or not task.baselines:
            return site
        baselines = await self._resolved(task.baselines, site.tree)
        return replace(site, state=replace(site.state, task=replace(task, baselines=baselines)))

    async def _resolved(self, value: JsonValue, tree: TreeId) -> JsonValue:
        needed = set(references(value))
        if not needed:
            return value
        await self._texts.fetch(tree, needed)
        return resolve(value, self._texts.get)
