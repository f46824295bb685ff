"""The processes of a simulated worker: the product's own, whose programs are runs of the ledger.

The product keeps them, looks at them, types to them and tells of their ends (`tools/exec/processes.py`,
`reports.py`, `exec_command.py`, `write_stdin.py`). Simulated is what its supervisor would run: a program that
writes, hears what is typed to it, and ends, or is killed with the right to run it as every command is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from orchestrator.core.calls import Call, ExecWork, StdinWork
from orchestrator.core.calls.exec import Lasting
from orchestrator.core.commands import CallFinished, ProcessEnd
from orchestrator.core.state import Process
from orchestrator.sandbox.policy_paths import Confinement
from orchestrator.tools.exec.command import Command, Finished, Grip, OutputSink
from orchestrator.tools.exec.output_deltas import ShownOutput
from orchestrator.tools.exec.worker_processes import LiveProcess, LiveProcesses, follow
from orchestrator.tools.exec_command import ExecCommand, WriteStdinTool
from orchestrator.tools.tool_context import CallSite
from sim.folders import Folders
from sim.ledger import Run
from sim.loop import current_lane
from sim.model_script import ModelScript
from sim.worker_runs import WorkerRuns

LEAVES = "q"
"""The word at which a program ends."""
KILLED = 137
SPEAKS_AGAIN_S = (0.05, 0.6, 4.0)
LONG = 700
"""Characters of a long line: a look leaves out its middle."""
_NOBODY: Any = None
MOST_DELTAS = 50


class _Program:
    """The program of a process: the product takes it for the supervisor that runs the command."""

    def __init__(
        self,
        runs: WorkerRuns,
        model: ModelScript,
        folders: Folders,
        call: Call,
        site: CallSite,
        starting: Callable[[Call, CallSite], bool],
    ) -> None:
        self._runs = runs
        self._folders, self._call, self._site, self._starting = folders, call, site, starting
        self._rng, self._odds = model.rng, model.odds
        self._main = current_lane()
        assert isinstance(call.work, ExecWork)
        assert call.work.lasting is not None
        self.run_, self._done = runs.made(call.call_id, site, lasting=call.work.lasting.number)
        self._output: OutputSink = lambda stream, data: None
        self._read = 0

    async def run(self, command: Command, output: OutputSink, grip: Grip) -> Finished:
        """As the product's supervisor runs a command."""
        run, loop = self.run_, asyncio.get_running_loop()
        began, self._output = loop.time(), output
        if not await self._runs.starts(self._site.claim, self._begin):
            return Finished(-1, error="the right to run this command has ended")
        lives = self._rng.choice(self._odds.lives_s) * self._rng.uniform(0.5, 1.0)
        self._runs.end(run, "finished", after=lives)
        self._speaks(self._rng.choice((0.0, 0.02, 0.3)))
        run.exit_code = self._rng.choice((0, 0, 3))
        grip.bind(lambda: self._runs.kill(run, self._odds.dies_s), self._types if command.tty else None)
        how = await self._done
        self._reads()
        code = run.exit_code if how == "finished" else KILLED
        said = run.wrote.encode()
        return Finished(code, said, b"", said, round(loop.time() - began, 3), killed=how == "killed")

    def _begin(self) -> None:
        self.run_.lost = self._starting(self._call, self._site)
        self.run_.began_s = asyncio.get_running_loop().time()
        self._folders.meets(self.run_, self._call, self._site)
        self._runs.begin(self.run_)

    def _speaks(self, after: float) -> None:
        self._runs.at(after, self._says)

    def _says(self) -> None:
        run = self.run_
        self._writes(f"{run.call_id}:{len(run.wrote)}\n")
        if self._rng.random() < 0.2:
            self._writes("." * LONG + "\n")
        if run.state == "running" and self._rng.random() < 0.7:
            self._speaks(self._rng.choice(SPEAKS_AGAIN_S))

    def _writes(self, text: str) -> None:
        """Into its pipe, from which its worker reads when it runs."""
        if self.run_.state == "running":
            self.run_.wrote += text
            self._runs.on(self._main, self._reads)

    def _reads(self) -> None:
        new, self._read = self.run_.wrote[self._read :], len(self.run_.wrote)
        if new:
            self._output("stdout", new.encode())

    def _types(self, data: bytes) -> bool:
        """False where what was typed before still waits."""
        if self._rng.random() < 0.05:
            return False
        self._runs.typed(self.run_, data.decode())
        self._runs.at(self._rng.choice((0.0, 0.01, 0.1)), self._hears, data.decode())
        return True

    def _hears(self, words: str) -> None:
        self._writes(f"heard {words}\n")
        if words.startswith(LEAVES):
            self._runs.end(self.run_, "finished", after=0.0)


class SimProcesses:
    """The processes of one worker, by claim and number."""

    def __init__(self, runs: WorkerRuns, model: ModelScript, folders: Folders) -> None:
        self._runs = runs
        self._model = model
        self._folders = folders
        self._living = LiveProcesses()
        self._of: dict[tuple[str, int], Run] = {}
        self._starts = ExecCommand(_NOBODY, _NOBODY, _NOBODY, self._living)
        self._looks = WriteStdinTool(self._living)

    async def start(
        self, call: Call, lasting: Lasting, site: CallSite, starting: Callable[[Call, CallSite], bool]
    ) -> CallFinished:
        """Begins a process, and waits for as long as its call does."""
        assert isinstance(call.work, ExecWork)
        program = _Program(self._runs, self._model, self._folders, call, site, starting)
        shown = ShownOutput(call.call_id, site.lasting_deltas, MOST_DELTAS)
        confinement = cast(Confinement, None)
        command = Command(
            site.claim, call.call_id, ("serve",), Path("/sim"), {}, confinement, None, tty=lasting.tty
        )
        process = LiveProcess(cast(Any, program), command, shown)
        self._of[site.claim, lasting.number] = program.run_
        try:
            return await self._starts._first_look(call, call.work, lasting, process, site)
        finally:
            self._looked(program.run_)

    async def look(self, call: Call, work: StdinWork, site: CallSite) -> CallFinished:
        run = self._of.get((site.claim, work.number))
        living = self._living.get(site.claim, work.number)
        over = (run is not None and run.ended_s > 0) or (living is not None and living.unseen)
        try:
            return await self._looks.run(call, site)
        finally:
            # Behind its end, or the word that ends it, a look sees what was left, and keeps nothing alive.
            if run is not None and not over:
                self._looked(run)

    def _looked(self, run: Run) -> None:
        run.looked_s = asyncio.get_running_loop().time()

    async def follow(self, process: Process, claim: str) -> ProcessEnd:
        return await follow(self._living, process, claim)

    def kill(self, number: int, claim: str) -> None:
        living = self._living.get(claim, number)
        if living is not None:
            living.kill()

    async def abandon(self, claim: str) -> None:
        await self._living.abandon(claim)
