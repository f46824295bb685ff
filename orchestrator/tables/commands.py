"""Settings of commands that agents run: their limits, their environment, their sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from orchestrator.tables.base import MIB, Table, setting

SandboxMode = Literal["read-only", "workspace-write", "danger-full-access"]
SANDBOX_MODES = ("read-only", "workspace-write", "danger-full-access")
"""From the one that permits least to the one that permits everything."""


class ToolSettings(Table):
    """Tools: what a command gets when nobody says more."""

    timeout_s: float = setting(10.0, "tools.timeout_s", folder="free", at_least=0.1)
    """Seconds that a command gets when the model names no limit."""

    max_deltas: int = setting(10_000, "tools.max_deltas", folder="down", at_least=0)
    """Output deltas that one call may send; its end carries the output anyway."""

    local_shell: bool = setting(False, "tools.local_shell", folder=(False, True))
    """Offer the Responses API's built-in `local_shell` in the place of `shell` to every model; without it
    `codex-mini-latest` alone, which was trained with it, is offered it. Where it is
    offered its calls may set environment variables, which approvals show; those of the loader and of shells
    (`LD_*`, `BASH_ENV`, …) are refused."""

    unified_exec: bool = setting(False, "tools.unified_exec", folder=(False, True))
    """Offer a new session's model `exec_command` and `write_stdin` in the place of `shell`: commands that may
    go on behind their call, to be looked at and typed to later."""

    web_search: bool = setting(False, "tools.web_search", folder=(False, True))
    """Offer a new session's model the search that its provider runs itself, where the provider has one."""

    view_image: bool = setting(True, "tools.view_image", folder=(False, True))
    """Offer a new session's model the tool that shows it an image file of the machine. Without it such a call
    is refused."""

    update_plan: bool = setting(True, "tools.update_plan", folder=(False, True))
    """Offer a new session's model the tool that shows the steps of its work. Without it such a call is
    refused."""

    apply_patch: bool = setting(True, "tools.apply_patch", folder=(False, True))
    """Offer a new session's model the tool that edits files by patches. Without it such a call is refused;
    a patch that a `shell` command begins with is taken as before."""

    apply_patch_freeform: bool = setting(False, "tools.apply_patch_freeform", folder="free")
    """Offer a new session's model `apply_patch` as a free-form tool with a grammar, for models that were
    trained with it, and not as a function. Calls of either form are taken."""

    rules_writable: bool = setting(False, "tools.rules_writable", folder=(False, True))
    """Write a prefix of commands that a person allows in an answer into `rules/default.rules` of the home
    folder, where it counts for every session of this worker. Without it the prefix counts for the session
    alone."""

    trust_project_rules: bool = setting(False, "tools.trust_project_rules", folder="trusted")
    """Read `.dendro/rules/*.rules` of the repository that a session works in, too. They may ask and forbid;
    a rule that allows is an error there, because an agent can write it."""


class EnvironmentPolicy(Table):
    """Which variables of the worker a command inherits; applied in the order of these fields."""

    inherit: Literal["all", "core", "none"] = setting(
        "all", "shell_environment_policy.inherit", folder=("none", "core", "all")
    )
    """Where to begin: everything, only `PATH`, `HOME`, `LANG` and the like, or nothing."""

    ignore_default_excludes: bool = setting(
        False, "shell_environment_policy.ignore_default_excludes", folder=(False, True)
    )
    """Let variables through whose names look secret (`*KEY*`, `*TOKEN*`, `*SECRET*`). Codex does so by
    default; here a command has to be given its secrets by name."""

    exclude: tuple[str, ...] = setting((), "shell_environment_policy.exclude", folder="trusted")
    """Names to leave out: globs, upper or lower case."""

    set: Mapping[str, str] = setting({}, "shell_environment_policy.set", folder="trusted")
    """Variables to add."""

    include_only: tuple[str, ...] = setting((), "shell_environment_policy.include_only", folder="trusted")
    """If given, only names that match one of these globs remain."""


class SandboxSettings(Table):
    """Confinement: with what means this worker enforces a session's sandbox policy."""

    mechanism: Literal["auto", "bubblewrap", "landlock"] = setting(
        "auto", "sandbox.mechanism", folder="trusted"
    )
    """`auto` takes bubblewrap, else Landlock. Where neither works, confined commands are refused."""

    max_processes: int = setting(1024, "sandbox.max_processes", folder="down", at_least=8)
    """Processes that one command may have at once, where the kernel lets the worker set it."""

    max_memory_bytes: int | None = setting(
        None,
        "sandbox.max_memory_bytes",
        folder="trusted",
        at_least=64 * MIB,
        shown_default="half of the machine's memory",
    )
    """Memory that one command may use, all its processes together, where the worker can make cgroups
    (`dendro doctor` says so); a command that wants more is killed and told why. Elsewhere each process has
    this much of its own (RLIMIT_DATA), and what wants more is refused it."""

    unix_sockets: bool = setting(False, "sandbox.unix_sockets", folder=(False, True))
    """Let confined commands make Unix sockets, and so connect to those of other programs: a terminal
    multiplexer or a container engine runs what it is told, outside of the sandbox. Without it `socketpair`
    works, and Python's `multiprocessing` with the start method `forkserver` does not. Landlock never gives
    them."""

    environment: EnvironmentPolicy = EnvironmentPolicy()


class SandboxPolicy(Table):
    """The permissions of a session's commands."""

    mode: SandboxMode = setting(
        "read-only",
        "sandbox_mode",
        folder=SANDBOX_MODES,
        shown_default="`workspace-write` in a git repository, else `read-only`",
    )
    """`read-only`, `workspace-write` (the working folder, the roots below, `/tmp` and `$TMPDIR`; `.git`
    stays read-only), or `danger-full-access`."""

    writable_roots: tuple[Path, ...] = setting((), "sandbox_workspace_write.writable_roots", folder="trusted")
    """Further folders that may be written. Relative ones count from the file's folder."""

    network_access: bool = setting(False, "sandbox_workspace_write.network_access", folder=(False, True))
    """Allow the network."""

    exclude_tmpdir_env_var: bool = setting(
        False, "sandbox_workspace_write.exclude_tmpdir_env_var", folder=(True, False)
    )
    """Keep `$TMPDIR` read-only."""

    exclude_slash_tmp: bool = setting(
        False, "sandbox_workspace_write.exclude_slash_tmp", folder=(True, False)
    )
    """Keep `/tmp` read-only."""

    chosen: bool = True
    """False if nobody has set a mode, and the folder decides."""

    def wire(self) -> dict[str, object]:
        """The policy as the protocol writes it."""
        if self.mode != "workspace-write":
            return {"mode": self.mode}
        return {
            "mode": self.mode,
            "writable_roots": [str(root) for root in self.writable_roots],
            "network_access": self.network_access,
            "exclude_tmpdir_env_var": self.exclude_tmpdir_env_var,
            "exclude_slash_tmp": self.exclude_slash_tmp,
        }
