"""Methods of version 1 about the machine: its user and settings, its files, a command of its own.

Commands and files are a worker's; the settings' file is that of the machine's user alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from orchestrator.gateways.app_server.door import Door
from orchestrator.gateways.app_server.door_ports import ConfigWrite
from orchestrator.gateways.app_server.messages import Code, RpcError, bad_params, invalid
from orchestrator.gateways.app_server.method import Method, NoParams, Params, Result, Whose
from orchestrator.gateways.app_server.methods import account
from orchestrator.gateways.app_server.methods.config import write
from orchestrator.gateways.app_server.methods.handshake import named_agent
from orchestrator.gateways.app_server.methods.v1 import V1Params
from orchestrator.gateways.app_server.turn_params import sandbox_of
from orchestrator.gateways.pool_jobs import JobError
from orchestrator.gateways.principals import Scope
from orchestrator.model.credentials import ApiKey
from orchestrator.protocol import jobs as j
from orchestrator.protocol.policy import (
    NO_EXTERNAL_SANDBOX,
    ExternalSandbox,
    SandboxPolicy,
    SandboxPolicyField,
)
from orchestrator.protocol.scalars import ReasoningEffort
from orchestrator.protocol.wire import JsonObject, JsonValue, written

_POLICY: TypeAdapter[SandboxPolicy] = TypeAdapter(SandboxPolicyField)


async def job_result(door: Door, job: j.Job, result: type[j.Result]) -> j.Result:
    """The result of a job of the gateway's pool; raises `RpcError`."""
    if door.ports.jobs is None:
        raise RpcError("this gateway has no pool to do it", Code.INTERNAL)
    try:
        return await door.ports.jobs.do(job, result)
    except JobError as error:
        raise RpcError(str(error)) from None


# ── commands and files ────────────────────────────────────────────────────────────────────────────


class OfCommand(V1Params):
    """A command, and where it runs."""

    command: tuple[str, ...]
    timeout_ms: int | None = None
    cwd: j.Path | None = None


class ExecOneOff(OfCommand):
    """The same with the policy that confines it."""

    sandbox_policy: SandboxPolicyField | None = None


async def exec_one_off(door: Door, params: ExecOneOff) -> Result:
    """Runs a command of no session under the sandbox of a worker."""
    return await _ran(door, params, params.sandbox_policy)


class CommandExec(OfCommand):
    """The same of version 2, whose policies have tags of their own."""

    sandbox_policy: dict[str, Any] | None = None
    tty: bool = False
    stream_stdin: bool = False
    stream_stdout_stderr: bool = False


async def command_exec(door: Door, params: CommandExec) -> Result:
    """Runs a command of no session; its output comes with its end."""
    if params.tty or params.stream_stdin or params.stream_stdout_stderr:
        raise bad_params("a command of no session has no terminal and no streams: use thread/shellCommand")
    policy = None
    if params.sandbox_policy is not None:
        try:
            policy = _POLICY.validate_python(sandbox_of(params.sandbox_policy))
        except ValidationError as error:
            raise invalid(error, "sandboxPolicy") from None
    return await _ran(door, params, policy)


async def _ran(door: Door, params: OfCommand, policy: SandboxPolicy | None) -> Result:
    limit = j.DEFAULT_TIMEOUT_MS if params.timeout_ms is None else params.timeout_ms
    if isinstance(policy, ExternalSandbox):
        raise bad_params(f"sandboxPolicy: {NO_EXTERNAL_SANDBOX}")
    if not params.command or len(params.command) > j.MOST_WORDS:
        raise bad_params(f"command: 1 to {j.MOST_WORDS:,} words are expected")
    if sum(len(word.encode("utf-8", "surrogatepass")) for word in params.command) > j.MOST_COMMAND_BYTES:
        raise bad_params(f"command: at most {j.MOST_COMMAND_BYTES:,} bytes")
    if not 1 <= limit <= j.MOST_TIMEOUT_MS:
        raise bad_params(f"timeoutMs: 1 to {j.MOST_TIMEOUT_MS:,}")
    cwd = params.cwd or str(door.ports.offer.defaults.cwd)
    job = j.RunCommand(command=params.command, cwd=cwd, timeout_ms=limit, sandbox_policy=policy)
    done = await job_result(door, job, j.CommandResult)
    return {"exitCode": done.exit_code, "stdout": done.stdout, "stderr": done.stderr}


class GitDiff(V1Params):
    """A folder of a repository."""

    cwd: j.Path


async def git_diff_to_remote(door: Door, params: GitDiff) -> Result:
    """The changes of a repository since the last commit that a remote has."""
    found = await job_result(door, j.DiffToRemote(cwd=params.cwd), j.DiffResult)
    return {"sha": found.sha, "diff": found.diff}


class FuzzySearch(V1Params):
    """Letters of a path, and the folders below which it lies."""

    query: str
    roots: tuple[j.Path, ...]


async def fuzzy_file_search(door: Door, params: FuzzySearch) -> Result:
    """The files whose paths have the letters in their order."""
    if not params.query or not params.roots:
        return {"files": []}
    if len(params.query) > j.MOST_QUERY or len(params.roots) > j.MOST_ROOTS:
        raise bad_params(f"at most {j.MOST_QUERY} letters and {j.MOST_ROOTS} roots")
    found = await job_result(door, j.SearchFiles(query=params.query, roots=params.roots), j.FoundFiles)
    return {"files": [written(one) for one in found.files]}


class OfPath(V1Params):
    """A path of the machine."""

    path: j.Path


async def read_file(door: Door, params: OfPath) -> Result:
    """A file's bytes."""
    found = await job_result(door, j.ReadFile(path=params.path), j.FileContent)
    return {"dataBase64": found.data_base64}


async def read_directory(door: Door, params: OfPath) -> Result:
    """A folder's entries."""
    found = await job_result(door, j.ReadDirectory(path=params.path), j.Directory)
    entries = [
        {"fileName": one.file_name, "isDirectory": one.is_directory, "isFile": one.is_file}
        for one in found.entries
    ]
    return {"entries": entries}


async def get_metadata(door: Door, params: OfPath) -> Result:
    """The kind of a path, and its times."""
    found = await job_result(door, j.GetMetadata(path=params.path), j.Metadata)
    return {
        "isDirectory": found.is_directory,
        "isFile": found.is_file,
        "isSymlink": found.is_symlink,
        "createdAtMs": found.created_at_ms,
        "modifiedAtMs": found.modified_at_ms,
    }


# ── the user ──────────────────────────────────────────────────────────────────────────────────────


async def get_user_agent(door: Door, _: NoParams) -> Result:
    """The server's name for itself."""
    return {"userAgent": named_agent(door)}


async def user_info(door: Door, _: NoParams) -> Result:
    """The address that the machine's user signed in with, for whoever sees the machine."""
    kept = await account.kept_sign_in(door)
    return {"allegedUserEmail": None if kept is None or isinstance(kept, ApiKey) else kept.email}


class AuthStatus(V1Params):
    """The parts of the answer that are wanted."""

    include_token: bool | None = None
    refresh_token: bool | None = None


async def get_auth_status(door: Door, params: AuthStatus) -> Result:
    """The sign-in of the machine's user; its key is told to that user alone, and not over the network."""
    kept = await account.kept_sign_in(door)
    offer = door.ports.offer
    provider = offer.models.providers.get(offer.defaults.model_provider)
    status: JsonObject = {"requiresOpenaiAuth": provider is not None and provider.auth == "login"}
    if isinstance(kept, ApiKey):
        status["authMethod"] = "apikey"
        if params.include_token and not door.principal.token:
            status["authToken"] = str(kept.key)
    elif kept is not None:
        status["authMethod"] = "chatgpt"
    return status


async def get_user_saved_config(door: Door, _: NoParams) -> Result:
    """The settings of new sessions, as the person's file has them now."""
    saved = await door.ports.saved()
    defaults, tools = saved.offer.defaults, saved.offer.tools
    policy: JsonObject = dict(defaults.sandbox.wire())
    config: JsonObject = {
        "approvalPolicy": defaults.approval_policy,
        "sandboxMode": policy["mode"],
        "model": defaults.model,
        "modelReasoningSummary": defaults.summary,
        "modelVerbosity": defaults.verbosity,
        "tools": {"webSearch": tools.web_search, "viewImage": tools.view_image},
        "profiles": {},
    }
    if door.principal.sees_machine:
        config["profile"] = saved.profile
        config["profiles"] = {name: _profile(table) for name, table in saved.profiles.items()}
    if policy["mode"] == "workspace-write":
        config["sandboxSettings"] = {
            "writableRoots": list(policy.get("writable_roots") or ()) if door.principal.sees_machine else [],
            "networkAccess": bool(policy.get("network_access")),
            "excludeTmpdirEnvVar": bool(policy.get("exclude_tmpdir_env_var")),
            "excludeSlashTmp": bool(policy.get("exclude_slash_tmp")),
        }
    if defaults.effort is not None:
        config["modelReasoningEffort"] = defaults.effort
    return {"config": config}


_PROFILE = (
    "model",
    "model_provider",
    "approval_policy",
    "model_reasoning_effort",
    "model_reasoning_summary",
    "model_verbosity",
)


def _profile(table: Mapping[str, JsonValue]) -> JsonObject:
    return {to_camel(name): table.get(name) for name in _PROFILE}


class SetDefaultModel(V1Params):
    """The model of sessions to come; null takes back what the file says."""

    model: str | None = None
    reasoning_effort: ReasoningEffort | None = None


async def set_default_model(door: Door, params: SetDefaultModel) -> Result:
    """Writes the settings' file of the machine's user; sessions that are made from then on have it."""
    effort = None if params.reasoning_effort is None else params.reasoning_effort.value
    await write(door, ConfigWrite(((("model",), params.model), (("model_reasoning_effort",), effort))))
    return {}


# ── sign-in ───────────────────────────────────────────────────────────────────────────────────────


class LoginApiKey(V1Params):
    """A key, which is kept and never told."""

    api_key: str


async def login_api_key(door: Door, params: LoginApiKey) -> Result:
    """Keeps a key for the providers with `auth = "login"`."""
    await account.login_start(door, _login({"type": "apiKey", "apiKey": params.api_key}))
    door.notify("authStatusChange", {"authMethod": "apikey"})
    return {}


async def login_chatgpt(door: Door, _: NoParams) -> Result:
    """Signs in at the issuer of the settings, as far as there is one."""
    account.own_store(door)
    changed = "authStatusChange", {"authMethod": "chatgpt"}
    begun = await account.at_issuer(door, "loginChatGptComplete", changed)
    return {"loginId": begun["loginId"], "authUrl": begun["authUrl"]}


def _login(wire: JsonObject) -> account.LoginStart:
    try:
        return account.LoginStart.model_validate(wire)
    except ValidationError:
        raise bad_params(f"apiKey: 1 to {account.MOST_KEY:,} characters are expected") from None


class CancelLogin(V1Params):
    """A sign-in that was begun."""

    login_id: str


async def cancel_login(door: Door, params: CancelLogin) -> Result:
    """Ends a sign-in that waits for a browser; raises `RpcError` for one that nobody knows."""
    ended = await account.login_cancel(door, account.LoginCancel.model_validate({"loginId": params.login_id}))
    if ended["status"] == "notFound":
        raise RpcError(f"login id not found: {params.login_id[:100]}")
    return {}


async def logout(door: Door, params: NoParams) -> Result:
    """Forgets the sign-in."""
    await account.logout(door, params)
    door.notify("authStatusChange", {"authMethod": None})
    return {}


def _method(
    params: type[Params], answer: Any, scope: Scope, whose: Whose = Whose.ANYONES, *, waits: bool = False
) -> Method:
    return Method(params, answer, scope, whose, waits=waits, before_initialize=True)


METHODS: Mapping[str, Method] = {
    "execOneOffCommand": _method(ExecOneOff, exec_one_off, Scope.APPROVE, Whose.MACHINES, waits=True),
    "command/exec": Method(CommandExec, command_exec, Scope.APPROVE, Whose.MACHINES, waits=True),
    "gitDiffToRemote": _method(GitDiff, git_diff_to_remote, Scope.APPROVE, Whose.MACHINES, waits=True),
    "fuzzyFileSearch": _method(FuzzySearch, fuzzy_file_search, Scope.APPROVE, Whose.MACHINES, waits=True),
    "fs/readFile": Method(OfPath, read_file, Scope.APPROVE, Whose.MACHINES, waits=True),
    "fs/readDirectory": Method(OfPath, read_directory, Scope.APPROVE, Whose.MACHINES, waits=True),
    "fs/getMetadata": Method(OfPath, get_metadata, Scope.APPROVE, Whose.MACHINES, waits=True),
    "getUserAgent": _method(NoParams, get_user_agent, Scope.READ),
    "userInfo": _method(NoParams, user_info, Scope.READ),
    "getAuthStatus": _method(AuthStatus, get_auth_status, Scope.READ),
    "getUserSavedConfig": _method(NoParams, get_user_saved_config, Scope.READ),
    "setDefaultModel": _method(SetDefaultModel, set_default_model, Scope.ADMIN, Whose.SETTINGS),
    "loginApiKey": _method(LoginApiKey, login_api_key, Scope.ADMIN, Whose.KEYS),
    "loginChatGpt": _method(NoParams, login_chatgpt, Scope.ADMIN, Whose.KEYS),
    "cancelLoginChatGpt": _method(CancelLogin, cancel_login, Scope.ADMIN, Whose.KEYS),
    "logoutChatGpt": _method(NoParams, logout, Scope.ADMIN, Whose.KEYS),
}
