"""The `shell` tool: a command's words judged, and an accepted command run under the supervisor."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path, PurePosixPath
from typing import Final, TypeAlias

import orjson
from pydantic import AliasChoices, Field

from orchestrator.core.calls import Call, Exec, ExecWork
from orchestrator.core.calls.approval_policy import Segment, amended
from orchestrator.core.commands import Assessment, CallFinished, Immediate
from orchestrator.core.frozen import record
from orchestrator.core.history import Item
from orchestrator.core.record_json import whole
from orchestrator.core.state import State
from orchestrator.protocol.events import ExecCommandEnd, WarningEvent
from orchestrator.protocol.ids import CallId
from orchestrator.protocol.scalars import Duration
from orchestrator.protocol.wire import JsonObject, written
from orchestrator.sandbox.environment import command_environment
from orchestrator.sandbox.limits import Limits
from orchestrator.sandbox.policy_paths import Confinement, Place
from orchestrator.sandbox.probe import NoConfinement, choose
from orchestrator.sandbox.trusted_files import find_program
from orchestrator.tools.apply_patch import ApplyPatchTool, PatchRequest
from orchestrator.tools.arguments import Arguments, BadArguments, parsed
from orchestrator.tools.commands.bash import PATCH, ask, read_plain, unwrap
from orchestrator.tools.commands.bash_words import PATCH_NAMES
from orchestrator.tools.commands.parsed import parsed_cmd
from orchestrator.tools.commands.safety import dangers, is_known_safe, obeys_its_folder
from orchestrator.tools.exec.command import Command, Finished, formatted_output, model_output
from orchestrator.tools.exec.output_deltas import ShownOutput
from orchestrator.tools.exec.supervisor import Supervisor, SupervisorLost
from orchestrator.tools.exec_policy import PrefixRule, segments, strict_rule
from orchestrator.tools.patch.grammar import PatchSyntaxError, parse_patch
from orchestrator.tools.tool import Judgement, Tool, function, string, task_of, unsupported
from orchestrator.tools.tool_context import (
    CallSite,
    ToolConfig,
    confinement_of,
    on_machine,
    place_of,
    roots_of,
)

TRAINED_WITH_LOCAL_SHELL: Final = frozenset({"codex-mini-latest"})
"""Models that know the Responses API's built-in shell, and no other."""
_DENIALS = (
    b"permission denied",
    b"read-only file system",
    b"operation not permitted",
    b"network is unreachable",
    b"could not resolve host",
    b"temporary failure in name resolution",
)


SHELL = function(
    "shell",
    "Runs a program and returns its output and exit code. Give the program and its arguments as a list; "
    'for shell syntax use ["bash", "-lc", "<script>"].',
    {
        "command": {
            "type": "array",
            "items": {"type": "string"},
            "description": "The program and its arguments.",
        },
        "workdir": string("The folder to run in, relative to the session's folder; default: that folder."),
        "timeout_ms": {
            "type": "number",
            "description": "Milliseconds until the command is stopped; default 10000.",
        },
        "with_escalated_permissions": {
            "type": "boolean",
            "description": "Ask to run it outside of the sandbox, where the task needs it.",
        },
        "justification": string("With escalated permissions: one sentence for the person who decides."),
    },
    ["command"],
)


class ShellArguments(Arguments):
    command: tuple[str, ...] = Field(min_length=1)
    workdir: str | None = None
    timeout_ms: int | None = Field(default=None, ge=1, validation_alias=AliasChoices("timeout_ms", "timeout"))
    with_escalated_permissions: bool = False
    justification: str | None = None


def is_hosted(state: State, config: ToolConfig) -> bool:
    """Whether the model is offered `local_shell` in the place of `shell`."""
    hosted = config.tools.local_shell or state.in_force.model in TRAINED_WITH_LOCAL_SHELL
    return hosted and not state.facts.unified_exec


@record
class ShellRequest:
    """A command as the model asked for it."""

    command: tuple[str, ...]
    workdir: str | None = None
    timeout_ms: int | None = None
    escalated: bool = False
    justification: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)


class Shell(Tool):
    """The tool of commands; what is a patch in a command's clothes goes to the tool of patches."""

    names = ("shell", "container.exec", "exec")
    beside = frozenset({"plan", "review"})

    def __init__(self, config: ToolConfig, supervisor: Supervisor, patches: ApplyPatchTool) -> None:
        self._config = config
        self._supervisor = supervisor
        self._patches = patches

    def offered(self, state: State) -> JsonObject | None:
        return None if state.facts.unified_exec or is_hosted(state, self._config) else SHELL

    async def assess(self, call: Call, site: CallSite) -> Assessment:
        if call.item["type"] != "function_call":
            return unsupported(call)
        given = parsed(ShellArguments, call.item["arguments"])
        request = ShellRequest(
            given.command,
            given.workdir,
            given.timeout_ms,
            given.with_escalated_permissions,
            given.justification,
        )
        return await self.assess_request(request, site)

    async def assess_request(self, request: ShellRequest, site: CallSite) -> Assessment:
        """The assessment of a command, in whatever form the model has given it."""
        # In a thread: the reader of scripts is waited for, and hostile ones take it its whole time.
        assessed = await asyncio.to_thread(_assessed, request, site.state, self._config)
        if isinstance(assessed, PatchRequest):
            return await self._patches.assess_request(assessed, site)
        return assessed

    async def run(self, call: Call, site: CallSite) -> CallFinished:
        if isinstance(call.work, ExecWork):
            return await run_command(call, call.work, site, self._config, self._supervisor)
        return await self._patches.run(call, site)

    async def judge(self, call: Call, claim: str) -> Judgement:
        return await self._patches.judge(call, claim)


def _assessed(request: ShellRequest, state: State, config: ToolConfig) -> Exec | Immediate | PatchRequest:
    """The command as it would run; a patch given as a command is recognised first."""
    task = task_of(state)
    match patch_from_argv(request.command):
        case PatchInvocation(body, workdir):
            return PatchRequest(body, _joined(request.workdir, workdir))
        case PatchRefusal(message):
            return Immediate(message)
    cwd = str(Path(task.settings.cwd, request.workdir or "."))
    rules = config.rules.of_session(state).rules
    # Looked up once: it is a hundred looks at the file system.
    confinement = confinement_of(state, config, sandboxed=True)
    reach = _reach(confinement, state, config)
    dangerous, unreadable = dangers(request.command)
    confinable = _can_confine(confinement, config)
    return Exec(
        command=request.command,
        cwd=cwd,
        parsed_cmd=tuple(parsed_cmd(request.command)),
        key=_key(request, cwd),
        safe=_is_safe(request, cwd, state, config),
        dangerous=dangerous,
        unreadable=unreadable,
        escalated=request.escalated,
        justification=request.justification,
        confinable=confinable,
        timeout_ms=request.timeout_ms,
        env=request.env,
        segments=_segments(request, rules, reach, config),
        strict_rule=strict_rule(request.command, rules),
        planted=planted(request.command, reach, config),
    )


def _reach(confinement: Confinement, state: State, config: ToolConfig) -> Confinement:
    """The boundaries within which commands of the session can have written, also in a turn before."""
    if confinement.mode != "read-only":
        return confinement
    return confinement_of(state, config, sandboxed=True, earlier=True)


def _segments(
    request: ShellRequest, rules: Sequence[PrefixRule], confinement: Confinement, config: ToolConfig
) -> tuple[Segment, ...]:
    """The commands that rules can allow; none where a variable may make them run something else."""
    if not are_known_safe(request.env):
        return ()
    return segments(request.command, rules, lambda program: _is_out_of_reach(program, confinement, config))


def planted(argv: Sequence[str], confinement: Confinement, config: ToolConfig) -> tuple[str, ...]:
    """The programs that a command names without a path and that PATH has where its session writes.

    Whoever lets `git` leave the sandbox means the system's.
    """
    names = _named(argv)
    roots = [Path(os.path.realpath(root)) for root in confinement.writable_roots]
    found = (shutil.which(name, path=search_path(config)) for name in names)
    real = {path: Path(os.path.realpath(path)) for path in found if path is not None}
    return tuple(
        path
        for path, leads in real.items()
        if any(it.is_relative_to(root) for root in roots for it in (leads, Path(path).absolute()))
    )


def _named(argv: Sequence[str]) -> list[str]:
    """The programs that a command, or each command of a plain script, names without a path."""
    script = unwrap(argv)
    plain = read_plain(script) if script is not None else None
    names = [argv[0], *(command[0].text for command in (plain.commands if plain is not None else ()))]
    return [name for name in names if "/" not in name and "\0" not in name]


def _runs_programs_of_the_system(argv: Sequence[str], config: ToolConfig) -> bool:
    """Whether PATH has each program where no session can have written it, an earlier one neither."""
    if not _finds_programs_of_the_system(config):
        return False
    path = search_path(config)
    return all(
        found is None or found == find_program(name, path)
        for name in _named(argv)
        for found in (shutil.which(name, path=path),)
    )


def _is_out_of_reach(program: str, confinement: Confinement, config: ToolConfig) -> bool:
    """Whether a program's name means no file that a confined command could have written."""
    if not _finds_programs_of_the_system(config) or ("/" in program and not program.startswith("/")):
        return False
    if "\0" in program:
        return False
    path = shutil.which(program, path=search_path(config))
    roots = roots_of(confinement)
    if path is None or roots is None:
        # A shell's own command; or nothing is confined anyway.
        return True
    places = (Path(path), Path(os.path.realpath(path)))
    folders = [folder for root in roots.roots for folder in (root, Path(os.path.realpath(root)))]
    return not any(place.is_relative_to(folder) for place in places for folder in folders)


def _key(request: ShellRequest, cwd: str) -> str:
    """The key under which `approved_for_session` is stored: another variable is another command."""
    said = [request.command, cwd, request.escalated, *([request.env] if request.env else [])]
    return orjson.dumps(said, option=orjson.OPT_SORT_KEYS).decode()


def _is_safe(request: ShellRequest, cwd: str, state: State, config: ToolConfig) -> bool:
    if not is_known_safe(request.command) or not are_known_safe(request.env):
        return False
    if task_of(state).settings.full_access:
        # Nothing holds it: what the words say has to be all that runs.
        return not obeys_its_folder(request.command) and _runs_programs_of_the_system(request.command, config)
    return _trusted(cwd, state, request.command)


def _finds_programs_of_the_system(config: ToolConfig) -> bool:
    """Whether `ls` is never a file of the command's folder: a relative part of PATH would make it one."""
    return all(folder.startswith("/") for folder in search_path(config).split(":"))


def search_path(config: ToolConfig) -> str:
    return config.sandbox.environment.set.get("PATH", config.environ.get("PATH", os.defpath))


def _joined(outer: str | None, inner: str | None) -> str | None:
    return str(Path(outer or ".", inner or ".")) if outer or inner else None


def _trusted(cwd: str, state: State, command: tuple[str, ...]) -> bool:
    """git obeys the configuration of the repository that it is run in: only the session's own is trusted."""
    if not any("git" in word for word in command):
        return True
    place, workspace = place_of(state.facts), task_of(state).settings.cwd
    return _inside(cwd, workspace) if place is None else _inside_place(cwd, place)


def _inside(cwd: str, workspace: str) -> bool:
    try:
        return Path(cwd).resolve().is_relative_to(Path(workspace).resolve())
    except (OSError, RuntimeError, ValueError):
        # No folder has such a name, or links lead in a circle: it will not be run in.
        return False


def _inside_place(cwd: str, place: Place) -> bool:
    try:
        return place.followed(Path(cwd)).is_relative_to(place.here)
    except (OSError, ValueError):
        return False


def is_confinable(state: State, config: ToolConfig) -> bool:
    return _can_confine(confinement_of(state, config, sandboxed=True), config)


def _can_confine(confinement: Confinement, config: ToolConfig) -> bool:
    try:
        choose(config.support, confinement, config.sandbox.mechanism)
    except NoConfinement:
        return False
    return True


def keep_rule(call: Call, work: ExecWork, site: CallSite, config: ToolConfig) -> None:
    """Writes the prefix that the call's approval allows, if it allows one, into the owner's rules."""
    task = task_of(site.state)
    said = [one.decision for one in site.state.answers if (one.call_id, one.turn) == (call.call_id, task.id)]
    prefix = amended(said[-1]) if said else ()
    if not prefix or not config.tools.rules_writable:
        return
    try:
        # Full access is the session's; other sessions of the worker have their sandbox.
        config.rules.add(prefix, confined=work.sandboxed or task.settings.full_access)
    except (OSError, ValueError) as error:
        why = f"the allowed prefix counts for this session alone: default.rules was not written: {error}"
        site.deltas(written(WarningEvent(message=why)))


async def run_command(
    call: Call, work: ExecWork, site: CallSite, config: ToolConfig, supervisor: Supervisor
) -> CallFinished:
    """Runs the command that was recorded as decided, and publishes its output while it runs."""
    confinement = confinement_of(site.state, config, sandboxed=work.sandboxed)
    if why := changed_since(work, site.state, config):
        return CallFinished(call.call_id, why, (work.broken_off(call.call_id, why),))
    keep_rule(call, work, site, config)
    shown = ShownOutput(call.call_id, site.deltas, config.tools.max_deltas)
    try:
        finished = await supervisor.run(command_of(call, work, site, config, confinement), shown.add)
    except (NoConfinement, SupervisorLost) as error:
        finished = Finished(exit_code=-1, error=str(error))
    finally:
        shown.flush()
    result = _result(call, work, finished)
    return replace(result, planted=planted_now(work, site.state, config)) if result.sandbox_denied else result


def planted_now(work: ExecWork, state: State, config: ToolConfig) -> tuple[str, ...]:
    """The programs of a command that `planted` gives at this moment."""
    reach = _reach(confinement_of(state, config, sandboxed=True), state, config)
    return planted(tuple(map(whole, work.command)), reach, config)


def changed_since(work: ExecWork, state: State, config: ToolConfig) -> str:
    """The reason why a command may not leave the sandbox as it was decided; else empty.

    While a person thinks, a process of the session can put a program into a folder of PATH.
    """
    if work.sandboxed or task_of(state).settings.full_access:
        return ""
    new = [path for path in planted_now(work, state, config) if path not in work.planted]
    if not new:
        return ""
    return (
        f"not run: since it was decided that the command runs outside of the sandbox, {', '.join(new)} came "
        "up, which commands of the session may have written; ask again, or name the program by its path"
    )


def command_of(
    call: Call, work: ExecWork, site: CallSite, config: ToolConfig, confinement: Confinement
) -> Command:
    timeout_ms = work.timeout_ms
    environment = command_environment(config.environ, config.sandbox.environment, confinement)
    return Command(
        claim=site.claim,
        call_id=call.call_id,
        argv=tuple(map(whole, work.command)),
        cwd=on_machine(site.state.facts, Path(whole(work.cwd))),
        env={**environment, **work.env},
        confinement=confinement,
        timeout_s=config.tools.timeout_s if timeout_ms is None else timeout_ms / 1000,
        limits=Limits(config.sandbox.max_processes, config.sandbox.max_memory_bytes),
    )


def _result(call: Call, work: ExecWork, finished: Finished) -> CallFinished:
    end = ExecCommandEnd(
        call_id=CallId(call.call_id),
        source=work.source,
        stdout=_text(finished.stdout),
        stderr=_text(finished.stderr),
        aggregated_output=_text(finished.aggregated),
        exit_code=finished.exit_code,
        duration=Duration.cut(finished.duration_s),
        formatted_output=formatted_output(finished),
    )
    return CallFinished(
        call.call_id, model_output(finished), (end,), sandbox_denied=is_denied(work, finished)
    )


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


def is_denied(work: ExecWork, finished: Finished) -> bool:
    """A guess from the exit code and the words, as every sandbox of this kind has to make it."""
    if not work.sandboxed or finished.exit_code == 0 or finished.timed_out or finished.killed:
        return False
    said = finished.aggregated.lower()
    return any(words in said for words in _DENIALS)


# ── invocation ────────────────────────────────────────────────────────────────────────────────────
# Whether a command is a call of apply_patch, and which text it carries.
#
# Recognised are `["apply_patch", body]` and a shell script that is nothing but `apply_patch <<EOF … EOF`,
# with or without `cd DIR &&` before it. The script is read by a real bash parser, in a process of its own
# (`commands.bash`): anything beside that one statement (a second command, a redirect, an option of cd)
# leaves it an ordinary command, which the sandbox runs and confines. So does a script that cannot be
# read.
#
# It must not read the patch further than to tell a bare patch from a command.


IMPLICIT_CALL = 'patch detected without explicit call to apply_patch. Rerun as ["apply_patch", "<patch>"]'
MAX_PATCH_BYTES: Final = 4 << 20
"""Of a script that is a patch: nothing runs it, so it may be longer than any argument."""
_SHELLS = frozenset({"bash", "sh", "zsh"})


@record
class PatchInvocation:
    """A call of apply_patch: the patch's text, and the folder that `cd` names, if any."""

    body: str
    workdir: str | None = None


@record
class NotAPatch:
    """An ordinary command."""


@record
class PatchRefusal:
    """A patch given as a command of its own; the message tells the model what to do."""

    message: str


InvocationVerdict: TypeAlias = PatchInvocation | NotAPatch | PatchRefusal


def patch_from_argv(argv: Sequence[str]) -> InvocationVerdict:
    """Judges one command line; a call's body may still be no valid patch."""
    match list(argv):
        case [body]:
            return _bare(body)
        case [name, body] if name in PATCH_NAMES:
            return PatchInvocation(body)
        case [shell, "-lc" | "-c", script] if PurePosixPath(shell).name in _SHELLS:
            bare = _bare(script)
            return bare if isinstance(bare, PatchRefusal) else _from_script(script)
        case _:
            return NotAPatch()


def _bare(text: str) -> NotAPatch | PatchRefusal:
    try:
        parse_patch(text)
    except PatchSyntaxError:
        return NotAPatch()
    return PatchRefusal(IMPLICIT_CALL)


def _from_script(script: str) -> PatchInvocation | NotAPatch:
    if not any(name in script for name in PATCH_NAMES):
        return NotAPatch()
    # Surrogates come from JSON that a model wrote badly; such a script is no patch.
    source = script.encode("utf-8", "surrogatepass")
    if len(source) > MAX_PATCH_BYTES:
        return NotAPatch()
    try:
        found = ask(PATCH, source)
    except OSError:
        return NotAPatch()
    return NotAPatch() if found is None else PatchInvocation(*found)


# ── local shell ───────────────────────────────────────────────────────────────────────────────────
# The `local_shell` tool: the Responses API's own form of a command.


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


# ── variables ─────────────────────────────────────────────────────────────────────────────────────
# Variables that a model gives to a command: their bounds, and which ones are known to be harmless.
#
# Knows names and values only. A variable can make any program run other code (`LD_PRELOAD`, `BASH_ENV`,
# `GIT_EXTERNAL_DIFF`, `RIPGREP_CONFIG_PATH`, `HOME`), and new ones are invented all the time. So the
# harmless ones are listed, and everything else counts as a reason to ask.


MOST_VARIABLES: Final = 64
MOST_BYTES: Final = 32 * 1024
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

_HARMLESS: Final = re.compile(
    r"CI|CLICOLOR|CLICOLOR_FORCE|COLUMNS|FORCE_COLOR|LANG|LANGUAGE|LC_[A-Z]+|LINES|NO_COLOR|TERM|TZ"
)
_LOADING: Final = re.compile(
    r"(LD|DYLD)_.*|GCONV_PATH|GLIBC_TUNABLES|BASH_ENV|BASH_LOADABLES_PATH|BASHOPTS|SHELLOPTS|ENV|IFS|PS4"
    r"|PROMPT_COMMAND|ZDOTDIR",
    re.IGNORECASE,
)
"""Variables of the loader and of shells: with them any program, and any script, runs other code first."""
# No slash: a locale, a terminal or a time zone named by a path is a file that somebody has written.
_HARMLESS_VALUE: Final = re.compile(r"[A-Za-z0-9_.@+-]{0,64}")


def check_variables(env: Mapping[str, str]) -> None:
    """Raises `BadArguments` for variables that no command can be given or no person could look through."""
    if len(env) > MOST_VARIABLES:
        raise BadArguments(f"env: {len(env)} variables are given, at most {MOST_VARIABLES} are taken")
    for name, value in env.items():
        if _NAME.fullmatch(name) is None:
            raise BadArguments(f"env: {name[:40]!r} is not the name of a variable (letters, digits, _)")
        if _LOADING.fullmatch(name):
            raise BadArguments(
                f"env: {name} is not taken: it makes the loader or a shell run other code; leave it out"
            )
        if "\0" in value or not _encodable(value):
            raise BadArguments(f"env: the value of {name} holds a character that no program can be given")
    size = sum(len(name) + len(value.encode()) for name, value in env.items())
    if size > MOST_BYTES:
        raise BadArguments(f"env: {size} bytes are given, at most {MOST_BYTES} are taken")


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def are_known_safe(env: Mapping[str, str]) -> bool:
    """Whether none of the variables can change what a command that only reads does."""
    return all(_HARMLESS.fullmatch(n) and _HARMLESS_VALUE.fullmatch(v) for n, v in env.items())
