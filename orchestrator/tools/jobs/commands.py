"""Commands of jobs, under the supervisor and the sandbox: any, and those that tell a repository's changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orchestrator.core.frozen import record
from orchestrator.protocol.jobs import CommandResult, DiffResult, DiffToRemote, RunCommand
from orchestrator.protocol.wire import written
from orchestrator.sandbox.environment import command_environment
from orchestrator.sandbox.git import repository_above
from orchestrator.sandbox.limits import Limits
from orchestrator.sandbox.policy import InvalidPolicy, resolve
from orchestrator.sandbox.probe import NoConfinement
from orchestrator.tables import SANDBOX_MODES, SandboxPolicy
from orchestrator.tools.exec.command import Command, Finished
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorLost
from orchestrator.tools.site import ToolConfig

DIFF_BYTES = 4 << 20
UNTRACKED = 500
GIT_S = 20.0
READ_ONLY: Mapping[str, Any] = {"mode": "read-only"}
_GIT = (
    "git",
    "--no-optional-locks",
    *("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "core.pager=cat"),
    *("-c", "core.quotePath=false"),
)
_DIFF = ("diff", "--no-color", "--no-ext-diff", "--no-textconv")


@record
class Commands:
    """The means of a worker to run commands that belong to no session."""

    config: ToolConfig
    supervisor: Supervisor
    own: SandboxPolicy
    """The worker's own policy: the most that a job gets."""

    async def run(self, job: RunCommand, claim: str) -> CommandResult:
        """Runs a job's command; raises `JobRefused` if it may not run, or cannot."""
        cwd = folder_of(job.cwd)
        policy = written(job.sandbox_policy) if job.sandbox_policy is not None else None
        allowed = permitted(policy, self.own, cwd)
        finished = await self._finished(job.command, claim, cwd, allowed, job.timeout_ms / 1000, job.env)
        texts = (finished.stdout, finished.stderr)
        stdout, stderr = (text.decode("utf-8", "replace") for text in texts)
        if finished.exit_code == -1:
            raise JobRefused(finished.error or "it was stopped before it began")
        return CommandResult(exit_code=finished.exit_code, stdout=stdout, stderr=stderr)

    async def _finished(
        self,
        argv: Sequence[str],
        claim: str,
        cwd: Path,
        policy: Mapping[str, Any],
        timeout_s: float,
        env: Mapping[str, str],
        keep: bytearray | None = None,
    ) -> Finished:
        config = self.config
        try:
            confinement = resolve(
                policy,
                cwd,
                config.environ.get("TMPDIR"),
                hidden=config.hidden,
                read_only=config.read_only,
                trusted=config.trusted(),
                unix_sockets=config.sandbox.unix_sockets,
            )
            inherited = command_environment(config.environ, config.sandbox.environment, confinement)
            command = Command(
                claim=claim,
                call_id=claim,
                argv=tuple(argv),
                cwd=cwd,
                env={**inherited, **env},
                confinement=confinement,
                timeout_s=timeout_s,
                limits=Limits(config.sandbox.max_processes, config.sandbox.max_memory_bytes),
            )
            return await self.supervisor.run(command, lambda stream, data: _keep(keep, stream, data))
        except (NoConfinement, SupervisorLost, InvalidPolicy) as error:
            raise JobRefused(str(error)) from error

    # ── git ───────────────────────────────────────────────────────────────────────────────────

    async def diff_to_remote(self, job: DiffToRemote, claim: str) -> DiffResult:
        """The changes since the last commit that a remote has; raises `JobRefused` where there is none."""
        cwd = folder_of(job.cwd)
        found = await self._git(claim, cwd, "rev-parse", "--show-toplevel", "HEAD")
        if found is None:
            raise JobRefused(f"{job.cwd} is in no git repository with a commit")
        top, sha = found.decode("utf-8", "surrogateescape").split("\n")[:2]
        place = repository_above(cwd)
        if place is None or place.parent != Path(top):
            # A stranger's configuration may: files of that folder would be shown as changes.
            raise JobRefused(f"{job.cwd}: its repository names another folder as its own (core.worktree)")
        base = await self._last_on_a_remote(claim, Path(top), sha)
        diff = await self._git(claim, Path(top), *_DIFF, base, "--") or b""
        diff += await self._untracked(claim, Path(top))
        if len(diff) > DIFF_BYTES:
            raise JobRefused(f"the changes have more than {DIFF_BYTES:,} bytes")
        return DiffResult(sha=base, diff=diff.decode("utf-8", "replace"))

    async def _last_on_a_remote(self, claim: str, top: Path, sha: str) -> str:
        remotes = await self._git(claim, top, "for-each-ref", "--count=1", "refs/remotes")
        if not remotes:
            raise JobRefused(f"{top} has no branch of a remote to compare with")
        lines = await self._git(claim, top, "rev-list", "--boundary", "HEAD", "--not", "--remotes") or b""
        ours = lines.decode("ascii", "replace").split()
        edges = [line[1:] for line in ours if line.startswith("-")]
        if ours and not edges:
            raise JobRefused(f"{top} has no commit in common with a remote")
        return edges[0] if edges else sha

    async def _untracked(self, claim: str, top: Path) -> bytes:
        names = await self._git(claim, top, "ls-files", "--others", "--exclude-standard", "-z") or b""
        files = [name.decode("utf-8", "surrogateescape") for name in names.split(b"\0") if name]
        if len(files) > UNTRACKED:
            raise JobRefused(f"{len(files):,} files are not tracked, and at most {UNTRACKED} are compared")
        parts = []
        for file in files:
            words = (*_DIFF, "--no-index", "--", "/dev/null", file)
            parts.append(await self._git(claim, top, *words, differs=True) or b"")
        return b"".join(parts)

    async def _git(self, claim: str, cwd: Path, *words: str, differs: bool = False) -> bytes | None:
        """The output of a git command that only reads; None if it failed."""
        kept = bytearray()
        done = await self._finished((*_GIT, *words), claim, cwd, READ_ONLY, GIT_S, {}, kept)
        if done.timed_out or done.killed:
            raise JobRefused(f"git did not answer within {GIT_S:.0f} s")
        return bytes(kept) if done.exit_code in ((0, 1) if differs else (0,)) else None


def _keep(kept: bytearray | None, stream: str, data: bytes) -> None:
    """Keeps what a command writes, a little more than may be answered: then it is known to be too much."""
    if kept is not None and stream == "stdout":
        kept += data[: DIFF_BYTES + 1 - len(kept)] if len(kept) <= DIFF_BYTES else b""


def folder_of(text: str | None) -> Path:
    """The folder that a job names; raises `JobRefused` for none."""
    path = Path(text) if text else Path.cwd()
    if not path.is_absolute():
        raise JobRefused(f"{text}: give an absolute path")
    if not path.is_dir():
        raise JobRefused(f"{text}: no such folder on this worker's machine")
    return path.resolve()


# ── policy ────────────────────────────────────────────────────────────────────────────────────────
# The policy of a job: never more than the worker's own sandbox policy gives.


FULL_ACCESS = SANDBOX_MODES[-1]
UNCHOSEN = "workspace-write"
"""The most that a worker gives whose owner has chosen no mode."""


class JobRefused(Exception):
    """A job that this worker may not do, or cannot; the message is for the asker."""


def permitted(asked: Mapping[str, Any] | None, own: SandboxPolicy, cwd: Path) -> dict[str, Any]:
    """The policy for a job; raises `JobRefused` where it asks for more than the worker gives."""
    most = own.mode if own.chosen else UNCHOSEN
    if asked is None:
        return {**own.wire(), "mode": most}
    # A sandbox outside of Dendro is where its session is, and that is not here.
    mode = asked["mode"] if asked["mode"] in SANDBOX_MODES else SANDBOX_MODES[0]
    if SANDBOX_MODES.index(mode) > SANDBOX_MODES.index(most):
        raise JobRefused(f"it asks for {mode}, and this worker gives {most} at most: set sandbox_mode there")
    if most == FULL_ACCESS or mode == SANDBOX_MODES[0]:
        return {**asked, "mode": mode}
    if asked.get("network_access") and not own.network_access:
        key = "sandbox_workspace_write.network_access"
        raise JobRefused(f"it asks for the network, which this worker does not give: set {key} there")
    for root in asked.get("writable_roots") or ():
        if not _lies_in(Path(cwd, root), (cwd, *own.writable_roots)):
            key = "sandbox_workspace_write.writable_roots"
            raise JobRefused(
                f"it asks to write below {root}, which this worker does not give: set {key} there"
            )
    return {**asked, "mode": mode}


def _lies_in(path: Path, roots: tuple[Path, ...]) -> bool:
    real = path.resolve()
    return any(real.is_relative_to(root.resolve()) for root in roots)
