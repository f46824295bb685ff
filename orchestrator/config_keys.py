"""The keys of the configuration file, by table: what can be set, each named, typed, limited and told once.

A part of the system that obeys settings takes its table as it is. Nothing here knows where values come
from: `orchestrator.settings` fills the tables from file, environment and flags, and writes
`docs/configuration.md` from them, so a field without its text is a bug.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NewType, Self
from urllib.parse import parse_qsl, quote, quote_plus, unquote, urlsplit

from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

# ── base ──────────────────────────────────────────────────────────────────────────────────────────
# The base of every table of settings, and the mark of a field that can be set.
#
# A table is one frozen pydantic model. Its fields name, type, default, limit and document what can be
# set; the part that uses a table takes the record itself. Knows neither any setting nor where values come
# from.


Secret = NewType("Secret", str)
"""A value that is never shown: not in errors, not in `repr`, not by `doctor`."""

_SECRET_NAME = re.compile(
    r"key|token|secret|passw|passphrase|credential|auth|cookie|signature|^sig$", re.IGNORECASE
)
_BEHIND_SCHEME = re.compile(r"[A-Za-z]+ (\S+)")
"""A header's value that begins with the name of a scheme, such as `Bearer`."""


def stated_secrets(urls: Iterable[str | None], *tables: Mapping[str, str]) -> Iterator[str]:
    """The secrets that a person has written into addresses, and into tables of parameters or headers.

    Passwords, and what has the name of a secret; as it stands there, and as others may repeat it.
    """
    for url in filter(None, urls):
        parts = urlsplit(url)
        yield from (parts.password or "", unquote(parts.password or ""))
        tables += (dict(parse_qsl(parts.query)),)
    for name, value in (pair for table in tables for pair in table.items()):
        if names_secret(name):
            yield from (value, quote(value, safe=""), quote_plus(value))
            if behind := _BEHIND_SCHEME.fullmatch(value):
                yield behind[1]


def names_secret(name: str) -> bool:
    """Whether what a person has named so is a secret, as far as names tell."""
    return _SECRET_NAME.search(name) is not None


def is_address(url: str) -> bool:
    """Whether requests can be sent to a URL, and its user and password with them."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        f"{user}{password}".encode("latin-1")
    except ValueError:
        return False
    return usable and url.isprintable() and " " not in parts.netloc and ":" not in user


def names_user(url: str) -> bool:
    """Whether a URL holds a user or a password, which its requests bear as `Authorization`."""
    return "@" in urlsplit(url).netloc


def is_header_value(value: str) -> bool:
    """Whether HTTP can send a value."""
    return _CONTROL.search(value) is None


def sendable(table: Mapping[str, str]) -> Mapping[str, str]:
    """A table of headers; raises for one that HTTP cannot send."""
    if not all(_HEADER.fullmatch(name) and is_header_value(value) for name, value in table.items()):
        raise unfit("names of letters, digits and hyphens, and values in one line")
    return table


_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")


def headers_of(*tables: Mapping[str, str]) -> dict[str, str]:
    """The headers of several tables: of each name the last one, in whatever letters it is written."""
    last = {name.lower(): (name, value) for table in tables for name, value in table.items()}
    return dict(last.values())


LEAST_SECRET = 4
"""Characters of the shortest secret that is looked for: a shorter one stands in every text."""
LEAST_PART = 12
"""Characters of the shortest part of a secret that is looked for, and half of it at least."""


def redacted(text: str, secrets: Iterable[str | None]) -> str:
    """`text` without these secrets: servers like to quote the key that they refuse."""
    return without_secrets(text, filter(None, secrets), "[redacted]")


def without_secrets(text: str, secrets: Iterable[str], mark: str) -> str:
    """`text` with a mark in the place of each secret, and of what is left of one that was cut.

    Answers are cut before anybody looks for secrets in them.
    """
    # The longest first: another one may be a part of it.
    found = sorted((secret for secret in secrets if len(secret) >= LEAST_SECRET), key=len, reverse=True)
    for secret in found:
        text = text.replace(secret, mark)
    for secret in found:
        text = _without_beginning(text, secret, mark)
        text = _without_beginning(text[::-1], secret[::-1], mark[::-1])[::-1]
    return text


def _without_beginning(text: str, secret: str, mark: str) -> str:
    least = max(LEAST_PART, len(secret) // 2)
    at = text.find(secret[:least]) if least < len(secret) else -1
    while at >= 0:
        size = least
        while size < len(secret) and text[at + size : at + size + 1] == secret[size]:
            size += 1
        text = text[:at] + mark + text[at + size :]
        at = text.find(secret[:least], at + len(mark))
    return text


_ADDRESS = "an http:// or https:// URL; a user in it has no colon, and a password Latin letters"
KIB = 1024
MIB = 1024 * KIB
LOOPBACK_URL = r"http://(localhost|127\.0\.0\.1|\[::1\])(:[0-9]{1,5})?(/[^\s?#]*)?"
ISSUER = rf"^(https://[^\s?#]*|{LOOPBACK_URL})$"
"""The address of an OpenID issuer: encrypted, but for one on loopback."""
OPENAI = "https://api.openai.com/v1"
"""A server that answers nobody without a key."""
NAME_CHARS = 1_000
MOST_OF_A_TREE = 1e15
"""Agents, tokens, requests or millionths of a dollar: below 2^52, to which Redis's scripts add exactly."""
_MARK = "setting"

FolderRule = Literal["free", "trusted", "down", "up"] | tuple[object, ...]
"""The effect of a folder's `dendro.toml` on a setting while no person has trusted the file.

free      set it: nothing comes of it that the person has not permitted
trusted   nothing: it loosens a bound, or names where data, keys or programs are
down, up  lower it, or raise it: only in the direction that permits less
a tuple   move it towards the first of these values, which permits least
"""


class Table(BaseModel):
    """A table of the configuration file, frozen; its types and limits are checked when it is made."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, hide_input_in_errors=True, allow_inf_nan=False
    )


@dataclass(frozen=True, slots=True)
class Setting:
    """A field's key, and what its reader must know beside type and limits."""

    key: str
    folder: FolderRule | None = None
    """None: as its record has it, see `TRUSTED_ONLY`; a folder may not set it."""
    milliseconds: bool = False
    """Whether people write milliseconds; the field holds seconds."""
    switch: bool = False
    """Of a list of fixed words: `true` is all of them, `false` none."""
    shown_default: str = ""


def setting(
    default: Any,
    key: str = "",
    *,
    at_least: float | None = None,
    at_most: float | None = None,
    pattern: str | None = None,
    hidden: bool = False,
    checked: bool = False,
    **mark: Any,
) -> Any:
    """A field that can be set under `key` (dotted; the field's name if empty).

    `hidden` keeps it from `repr`; with `checked` the default has to pass the field's own check, too.
    """
    return Field(
        default,
        ge=at_least,
        le=at_most,
        pattern=pattern,
        repr=not hidden,
        validate_default=checked or None,
        json_schema_extra={_MARK: Setting(key, **mark)},  # type: ignore[dict-item]
    )


@cache
def settings_of(record: type[Table]) -> tuple[tuple[str, Setting], ...]:
    """The fields of a record that can be set, each with its mark."""
    extras: Mapping[str, Any] = {name: each.json_schema_extra for name, each in record.model_fields.items()}
    return tuple((name, extra[_MARK]) for name, extra in extras.items() if extra)


def limits_of(spec: FieldInfo) -> tuple[float | None, float | None]:
    """The least and the most that a field takes; None is no limit."""
    least = [each.ge for each in spec.metadata if isinstance(each, Ge)]
    most = [each.le for each in spec.metadata if isinstance(each, Le)]
    return next(iter(least), None), next(iter(most), None)  # type: ignore[return-value]


def conflict(keys: str, found: str, allowed: str) -> PydanticCustomError:
    """An error about settings that do not fit together; `found` is what a person may be shown of them."""
    return PydanticCustomError("conflict", "{allowed}", {"keys": keys, "found": found, "allowed": allowed})


def unfit(allowed: str) -> PydanticCustomError:
    """An error about a value that its field's own check refuses; `allowed` says what would do."""
    return PydanticCustomError("unfit", "{allowed}", {"allowed": allowed})


def named(value: str | None) -> str | None:
    """A name as it was given; raises if it is blank, as nothing is found under it, or very long."""
    if value is not None and not 0 < len(value.strip()) <= NAME_CHARS:
        raise unfit(f"a name of 1 to {NAME_CHARS:,} characters; without this setting its default counts")
    return value


def pool_name(value: str) -> str:
    """A pool's name as it was given; raises for one that Redis and logs, which keep UTF-8, cannot hold."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise unfit("valid Unicode, without bytes of another encoding") from None
    return value


def store(url: str | None) -> str | None:
    """The URL of a folder or an object store; raises for a path: it would begin where each process does."""
    if url and not _STORE.match(url):
        raise unfit("a folder as file:///PATH, or an object store such as s3://BUCKET/PATH")
    return url


_STORE = re.compile(r"file:///|(?!file:|local:)[a-z][a-z0-9+.-]*://.")


# ── commands ──────────────────────────────────────────────────────────────────────────────────────
# Settings of commands that agents run: their limits, their environment, their sandbox.


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

    set: Mapping[str, str] = setting({}, "shell_environment_policy.set", folder="trusted", hidden=True)
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


# ── sessions ──────────────────────────────────────────────────────────────────────────────────────
# Settings of sessions and trees: how a new one starts, and what its agents may do and use.


ApprovalPolicy = Literal["untrusted", "on-failure", "on-request", "never"]
APPROVAL_POLICIES = ("untrusted", "on-request", "on-failure", "never")
"""From the one that asks most to the one that never does."""
Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
Summary = Literal["auto", "concise", "detailed", "none"]
Verbosity = Literal["low", "medium", "high"]
Personality = Literal["none", "friendly", "pragmatic"]
INSTRUCTIONS_BYTES = 32 * KIB
MOST_FALLBACKS = 16


class SessionDefaults(Table):
    """The start of a new session. It travels with the session, wherever that runs."""

    cwd: Path

    model: str = setting("gpt-5", "model", folder="free")
    """Model of the first turn; `user_turn` and `override_turn_context` may change it."""

    model_provider: str = setting("openai", "model_provider", folder="trusted")
    """Name of a provider; its URL and key are looked up by the worker that runs the turn."""

    effort: Effort | None = setting(
        None, "model_reasoning_effort", folder="free", shown_default="the model's own"
    )
    """How much the model thinks."""

    summary: Summary = setting("auto", "model_reasoning_summary", folder="free")
    """How much of that thinking it tells."""

    verbosity: Verbosity | None = setting(
        None, "model_verbosity", folder="free", shown_default="the model's own"
    )
    """Length of answers; sent to `gpt-5` models only."""

    personality: Personality | None = setting(
        None, "personality", folder="free", shown_default="the model's own"
    )
    """The model's way of speaking; `none` takes back what was chosen before."""

    approval_policy: ApprovalPolicy = setting("on-request", "approval_policy", folder=APPROVAL_POLICIES)
    """The person is asked before a command: always unless it is known to be safe, after a denial by the
    sandbox, when the model asks for more, or never."""

    approval_timeout_s: float | None = setting(
        None, "approval_timeout_s", folder="down", at_least=1, shown_default="never"
    )
    """Seconds after which an open approval is denied in the timer's name."""

    on_user_input: Literal["replace", "steer"] = setting("replace", "on_user_input", folder="free")
    """The effect of input on a running task: end it and start anew, or join it."""

    item_events: Literal["plan", "all"] = setting("plan", "item_events", folder="free")
    """The items of a turn of which clients are told when they begin and end (`item_started`,
    `item_completed`): proposed plans alone, or all of them, beside the older events."""

    pool: str = setting("", "pool", folder="trusted", shown_default="`host:<machine id>`")
    """Which workers may run the session."""

    base_instructions: str | None = setting(
        None, "base_instructions", folder="trusted", shown_default="Dendro's own"
    )
    """Replaces the system prompt. `model_instructions_file` names a file that holds it."""

    user_instructions: str | None = setting(None, "user_instructions", folder="free", shown_default="none")
    """Added to the first message of every session."""

    project_doc_max_bytes: int = setting(
        INSTRUCTIONS_BYTES, "project_doc_max_bytes", folder="down", at_least=0, at_most=64 * KIB
    )
    """Bytes that are read of a repository's `AGENTS.md` files, and of your own; 0 reads none."""

    project_doc_fallbacks: tuple[str, ...] = setting(
        (), "project_doc_fallback_filenames", folder="trusted", shown_default="none"
    )
    """Names of files that stand in for `AGENTS.md` in a folder that has none, tried in this order."""

    history: Literal["save-all", "none"] = setting("save-all", "history.persistence", folder="free")
    """Keep the prompts that a client adds to your history, which all your sessions share; `none` writes
    nothing."""

    sandbox: SandboxPolicy = SandboxPolicy()

    @field_validator("project_doc_fallbacks")
    @classmethod
    def _names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        if len(names) > MOST_FALLBACKS or any(not name or "/" in name or "\0" in name for name in names):
            raise unfit(f"at most {MOST_FALLBACKS} names of files, without a folder")
        return names

    _named = field_validator("model", "model_provider")(named)
    _pool = field_validator("pool")(pool_name)


SESSION_KEYS: Mapping[str, str] = {name: mark.key for name, mark in settings_of(SessionDefaults)} | {
    "sandbox": dict(settings_of(SandboxPolicy))["mode"].key
}
"""The key of each field that a new session begins with; of the sandbox that of its mode."""


class AgentSettings(Table):
    """Trees: what the agents of one may do and use, settled when its root is made."""

    enabled: bool = setting(True, "agents.enabled", folder=(False, True))
    """Offer the model the tools that make agents."""

    slots: int = setting(8, "max_active_subagents", folder="down", at_least=1, at_most=10_000)
    """Agents of one tree that may be at work at once. A model that makes more is refused until one is
    done; 64 is plenty for one machine, a fleet may take more."""

    spawned: int = setting(200, "agents.max_spawned", folder="down", at_least=1, at_most=MOST_OF_A_TREE)
    """Agents that one tree may make in all, finished ones counted: what ends a tree that breeds."""

    depth: int = setting(4, "agents.max_depth", folder="down", at_least=1, at_most=32)
    """Generations below the root."""

    autosubmit: bool = setting(True, "subagent_root_inbox_autosubmit", folder=(False, True))
    """Let a child's result begin a turn of its idle parent. Otherwise it waits for the next input."""

    await_floor_s: float = setting(300.0, "agents.await_floor_s", folder="up", at_least=0, at_most=1800)
    """Shortest wait that `subagent_await` accepts. The protocol's is 300 s; lower it for tests only: a
    model that polls costs tokens."""

    watchdog_floor_s: float = setting(30.0, "agents.watchdog_floor_s", folder="up", at_least=1)
    """Shortest interval of a watchdog; the longest is 7 days. Each bark may begin a turn of whoever is
    watched, so a short one costs tokens all the time; lower it for tests only."""

    watchdogs: int = setting(16, "agents.max_watchdogs", folder="down", at_least=0)
    """Watchdogs that one agent may keep."""

    budget_tokens: int | None = setting(
        None,
        "agents.budget_tokens",
        folder="down",
        at_least=1,
        at_most=MOST_OF_A_TREE,
        shown_default="no limit",
    )
    """Tokens that one tree may use, the root's too. Reserved before each request and settled after it: the
    overshoot is what is in flight. At the end of a budget the tree pauses, and goes on when more is added."""

    budget_cost: float | None = setting(
        None,
        "agents.budget_cost",
        folder="down",
        at_least=0,
        at_most=MOST_OF_A_TREE / 1e6,
        shown_default="no limit",
    )
    """Dollars, by `model_prices`. A model without a price is refused then."""

    budget_requests: int = setting(
        10_000, "agents.budget_requests", folder="down", at_least=1, at_most=MOST_OF_A_TREE
    )
    """Model requests of one tree. A night of eight agents that each ask every 23 s comes to 10,000; so does a
    model that only repeats itself, and it is paused then instead of being paid for for ever. At 80 % people
    are warned; `dendro budget ID --add requests=N` lets a tree go on."""

    budget_wall_s: float | None = setting(
        None, "agents.budget_wall_s", folder="down", at_least=1, at_most=1e12, shown_default="no limit"
    )
    """Seconds since the tree was made."""


# ── models ────────────────────────────────────────────────────────────────────────────────────────
# Settings of models: their providers, their prices, and what a worker knows of them.


class ProviderSettings(Table):
    """A model provider: a table `[model_providers.NAME]`. Never leaves the worker."""

    id: str

    name: str = setting("")
    """Name for people."""

    base_url: str = setting("", checked=True)
    """Root of the API, with its version: `https://host/v1`. Required; `OPENAI_BASE_URL` sets that of
    `openai`. A user and a password in it are sent as `Authorization`, and beside no key."""

    env_key: str | None = setting(None, shown_default="none: no key is sent")
    """Environment variable that holds the API key; blanks around it do not count."""

    env_key_instructions: str = setting("")
    """The text for a person when that variable is empty."""

    auth: Literal["env", "login"] = setting("env")
    """`"env"`: the key of the variable `env_key`. `"login"`: that of the sign-in which the worker's user made
    through a door (`account/login/start`), whatever the environment holds."""

    wire_api: Literal["responses", "chat"] = setting("responses")
    """Protocol: the Responses API (`POST {base_url}/responses`), or chat completions (`POST
    {base_url}/chat/completions`), which most servers of open models speak."""

    query_params: Mapping[str, str] = setting({}, hidden=True)
    """Added to every URL."""

    http_headers: Mapping[str, str] = setting({}, hidden=True)
    """Added to every request."""

    env_http_headers: Mapping[str, str] = setting({})
    """Header → environment variable that holds its value; left out when that is empty."""

    request_max_retries: int = setting(4, at_least=0, at_most=100)
    """Repetitions of an HTTP request after 429, 5xx or a failed connection, silent."""

    stream_max_retries: int = setting(5, at_least=0, at_most=100)
    """Repetitions after a stream that broke off, each announced by `stream_error`."""

    stream_idle_timeout_s: float = setting(300.0, "stream_idle_timeout_ms", milliseconds=True, at_least=0.001)
    """Milliseconds without a byte after which a stream counts as broken."""

    max_response_bytes: int = setting(64 << 20, at_least=1 << 20)
    """Longest stream that one request may bring, in bytes. A longer one is cut off and fails its task: it
    is not tried again, because it would be paid for again."""

    connect_timeout_s: float = setting(15.0, at_least=0.1)
    """Seconds to wait for a connection."""

    proxy: str | None = setting(
        None, hidden=True, shown_default="`HTTPS_PROXY`, `HTTP_PROXY`, unless `NO_PROXY` says so"
    )
    """HTTP proxy on the way, `http://` or `https://`. Those of the environment are not used for loopback
    addresses."""

    ca_file: Path | None = setting(None, shown_default="`SSL_CERT_FILE`, else the built-in authorities")
    """PEM file of the authorities to trust, for the provider and for a proxy that is reached by `https://`."""

    previous_response_id: bool = setting(False)
    """Send only what is new and name the response before. Only for providers that store responses."""

    supports_reasoning_effort: bool = setting(False)
    """With `wire_api = "chat"`: send `model_reasoning_effort` as `reasoning_effort`. Off, because servers
    whose model does not reason refuse it."""

    developer_role: Literal["system", "developer", "user"] = setting("system")
    """With `wire_api = "chat"`: the role of the messages that are neither the person's nor the model's, such
    as an agent's part in its tree. `"user"` for models whose template takes one system message alone."""

    parallel_tool_calls: bool = setting(False)
    """Let the model ask for several calls in one response: for trees that make many agents at once. Off, as
    with the recorded Codex; not every model of a provider takes it."""

    requests_per_minute: int | None = setting(None, at_least=1, shown_default="no limit")
    """Requests per minute of the whole fleet."""

    tokens_per_minute: int | None = setting(None, at_least=1, shown_default="no limit")
    """Tokens per minute of the whole fleet."""

    api_key: Secret | None = Field(None, repr=False)
    """Value of the variable that `env_key` names."""

    secret_headers: Mapping[str, str] = Field({}, repr=False)
    """Resolved `env_http_headers`."""

    @property
    def bears_key(self) -> bool:
        """Whether its requests bear a key, or a header of the person's in the key's place."""
        named = (name.lower() for name in (*self.http_headers, *self.secret_headers))
        return self.auth != "env" or self.api_key is not None or "authorization" in named

    @property
    def unset_key(self) -> str | None:
        """The variable of a key that is empty here, with no header of the person's in the key's place."""
        return None if self.bears_key else self.env_key

    @field_validator("http_headers", "env_http_headers")
    @classmethod
    def _is_sendable(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        return sendable(headers)

    @field_validator("base_url")
    @classmethod
    def _is_url(cls, url: str) -> str:
        if not is_address(url):
            raise unfit(_ADDRESS)
        return url.rstrip("/")

    @model_validator(mode="after")
    def _keeps_what_it_names(self) -> Self:
        if self.wire_api == "chat" and self.previous_response_id:
            allowed = 'false with wire_api = "chat": chat completions keep no responses'
            raise conflict(f"model_providers.{self.id}.previous_response_id", "true", allowed)
        return self


class ModelPrice(Table):
    """The cost of a model: a table `[model_prices."NAME"]`, in dollars per million tokens."""

    input: float = setting(0.0, at_least=0)
    """Input tokens that were not cached."""

    cached_input: float = setting(0.0, at_least=0)
    """Cached input tokens."""

    output: float = setting(0.0, at_least=0)
    """Output tokens, reasoning included."""


class ModelSettings(Table):
    """Models: what the worker knows of them and of their providers."""

    context_window: int | None = setting(
        None,
        "model_context_window",
        folder="free",
        at_least=1,
        shown_default="272,000 for `gpt-5*`, 200,000 for `codex-mini-latest`, `o3*` and `o4-mini*`, "
        "1,047,576 for `gpt-4.1*`, 128,000 for `gpt-4o*`",
    )
    """Tokens that the configured model can read. Unknown models have none: no share of it is shown, and
    nothing is compacted automatically."""

    auto_compact_token_limit: int | None = setting(
        None, "model_auto_compact_token_limit", folder="free", at_least=1, shown_default="90 % of the window"
    )
    """Tokens of a turn after which the history is compacted."""

    max_output_tokens: int = setting(16_000, "model_max_output_tokens", folder="up", at_least=1)
    """Tokens reserved for an answer when a budget is checked before the request."""

    plan_model: str | None = setting(None, "plan_model", folder="free", shown_default="the session's model")
    """Model of planning sessions (`plan`), and of the helpers that draft variants for them."""

    plan_effort: Effort | None = setting(
        None, "plan_reasoning_effort", folder="free", shown_default="the session's"
    )
    """How much that model thinks."""

    show_raw_reasoning: bool = setting(False, "show_raw_agent_reasoning", folder="free")
    """Tell clients the raw reasoning of models that give it away (`agent_reasoning_raw_content`)."""

    review_model: str | None = setting(None, "review_model", folder="free", shown_default="the session's")
    """Model of code reviews."""

    model: str = "gpt-5"
    provider: str = "openai"
    providers: Mapping[str, ProviderSettings] = {}
    prices: Mapping[str, ModelPrice] = {}

    _named = field_validator("plan_model", "review_model")(named)


# ── mcp ───────────────────────────────────────────────────────────────────────────────────────────
# Settings of MCP servers: programs and URLs whose tools a worker offers to its agents.


_OF_PROGRAMS = ("args", "env", "env_vars", "cwd")
_OF_URLS = ("bearer_token_env_var", "http_headers", "env_http_headers", "proxy", "ca_file")


class McpServerSettings(Table):
    """An MCP server: a table `[mcp_servers.NAME]`. It belongs to the worker; a client never sends one."""

    id: str

    command: str | None = setting(None, shown_default="none: the server has a URL")
    """Program to start. It speaks MCP on its standard input and output, runs outside of the sandbox with
    the environment that commands get, and ends with the worker."""

    args: tuple[str, ...] = setting(())
    """Its arguments."""

    env: Mapping[str, str] = setting({}, hidden=True)
    """Variables that it gets beside those that commands get."""

    env_vars: tuple[str, ...] = setting(())
    """Names of variables of the worker's own environment that it gets too, secret ones among them."""

    cwd: Path | None = setting(None, shown_default="the session's folder")
    """Folder that it runs in."""

    url: str | None = setting(None, shown_default="none: the server is a program")
    """URL of a server that speaks MCP over streamable HTTP. A user and a password in it are sent as
    `Authorization`, and beside no token."""

    bearer_token_env_var: str | None = setting(None, shown_default="none: no token is sent")
    """Environment variable that holds the token for the `Authorization` header."""

    http_headers: Mapping[str, str] = setting({}, hidden=True)
    """Added to every request."""

    env_http_headers: Mapping[str, str] = setting({})
    """Header → environment variable that holds its value; left out when that is empty."""

    proxy: str | None = setting(
        None, hidden=True, shown_default="`HTTPS_PROXY`, `HTTP_PROXY`, unless `NO_PROXY` says so"
    )
    """HTTP proxy on the way to the URL."""

    ca_file: Path | None = setting(None, shown_default="`SSL_CERT_FILE`, else the built-in authorities")
    """PEM file of the authorities to trust for the URL."""

    enabled: bool = setting(True)
    """Without it the server is not started and offers nothing."""

    startup_timeout_s: float = setting(10.0, "startup_timeout_sec", at_least=0.1, at_most=600)
    """Seconds until a server that has not listed its tools counts as failed. The first request of a session
    waits as long."""

    tool_timeout_s: float = setting(60.0, "tool_timeout_sec", at_least=0.1, at_most=86_400)
    """Seconds until a call that was not answered has failed."""

    enabled_tools: tuple[str, ...] | None = setting(None, shown_default="all")
    """Tools to offer, by the server's own names."""

    disabled_tools: tuple[str, ...] = setting(())
    """Tools not to offer; counts after `enabled_tools`."""

    trust_annotations: bool = setting(False)
    """Believe the server when it says of a tool that it only reads (`readOnlyHint`). Such a tool is not
    asked about under the approval policy `untrusted`, and is offered to helpers, reviews and plans."""

    bearer_token: Secret | None = Field(None, repr=False)
    """Value of the variable that `bearer_token_env_var` names."""

    secret_headers: Mapping[str, str] = Field({}, repr=False)
    """Resolved `env_http_headers`."""

    given_env: Mapping[str, str] = Field({}, repr=False)
    """Resolved `env_vars`, and what looks secret in `env`."""

    @field_validator("http_headers", "env_http_headers")
    @classmethod
    def _is_sendable(cls, headers: Mapping[str, str]) -> Mapping[str, str]:
        return sendable(headers)

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        if not is_address(url or "http://none"):
            raise unfit(_ADDRESS)
        return url

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        key = f"mcp_servers.{self.id}"
        if (self.command is None) == (self.url is None):
            found = "both" if self.url else "neither"
            raise conflict(f"{key}.command, url", found, "a server is a program (command) or a URL (url)")
        strange = _OF_URLS if self.command is not None else _OF_PROGRAMS
        for name in strange:
            if getattr(self, name):
                wanted = "url" if self.command is not None else "command"
                raise conflict(f"{key}.{name}", "set", f"counts only for a server with `{wanted}`")
        return self

    @property
    def bears_token(self) -> bool:
        """Whether its requests bear a token, or a header of the person's in the token's place."""
        named = (name.lower() for name in (*self.http_headers, *self.secret_headers))
        return self.bearer_token is not None or "authorization" in named

    def offers(self, tool: str) -> bool:
        """Whether the settings let a tool of the server be offered."""
        return (self.enabled_tools is None or tool in self.enabled_tools) and tool not in self.disabled_tools


# ── service ───────────────────────────────────────────────────────────────────────────────────────
# Settings of the service: Redis, chain, workers, logs, upkeep, connections, notifications.


Notification = Literal["agent-turn-complete", "approval-requested"]
WebhookEvent = Literal["needs_you", "done", "failed"]
BASE64 = re.compile(r"([A-Za-z0-9+/]{4})+([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?")
WEBHOOK = rf"^(https://[^\s#]+|{LOOPBACK_URL}(\?[^\s#]*)?)$"


class RedisSettings(Table):
    """Redis: where the SQ, the EQ and every rollout live."""

    url: str | None = setting(None, "redis.url", hidden=True, shown_default="a private server of this user")
    """Server of the deployment: `redis://`, `rediss://` (TLS), `unix://`, or `redis+sentinel://host,host/name/0`
    for the primary that Sentinels name. Without it, `dendro` starts a private server under its home folder
    and shares it among all `dendro` processes of this user."""

    cluster: bool = setting(False, "redis.cluster")
    """Whether `url` names a node of a Redis cluster. The upkeep queue then needs a server of its own."""

    prefix: str = setting("dendro:", "redis.prefix", pattern=r"^[A-Za-z0-9_.:-]+$")
    """First part of every key, separator included, so that several deployments can share a server. No
    braces: they would move the hash tag, and with it the shard."""

    shards: int = setting(16, "redis.shards", at_least=16, at_most=4096)
    """Hash tags over which trees are spread. Counts only when the deployment is created: the figure is kept
    in Redis, because the ids of living sessions carry their shard and nothing could move them."""

    connect_timeout_s: float = setting(2.0, "redis.connect_timeout_s", at_least=0.1)
    """Seconds to wait for a connection. Below a lease, so that a worker learns in time that it cannot
    renew."""

    command_timeout_s: float = setting(5.0, "redis.command_timeout_s", at_least=0.1)
    """Seconds to wait for a reply. A commit without a reply is sent again under its id, so a timeout is
    safe."""

    appendfsync: Literal["everysec", "always"] = setting("everysec", "redis.appendfsync")
    """How often the private server syncs its log to disk. `everysec` may lose about a second when the machine
    dies; `always` loses nothing acknowledged, and every commit waits for the disk."""

    effects: Literal["none", "wait"] = setting("none", "effects")
    """`wait` holds every command back until its begin has been confirmed by `redis.wait_replicas` replicas,
    so that a failover cannot forget that it ran. Costs one round trip to the replicas per command."""

    wait_replicas: int = setting(1, "redis.wait_replicas", at_least=1)
    """Replicas that must confirm under `effects = "wait"`."""

    wait_timeout_s: float = setting(1.0, "redis.wait_timeout_s", at_least=0.01)
    """Seconds to wait for these confirmations before the command is refused."""

    def at(self, url: str) -> Self:
        """The same for the server at `url`: a private one, or that of the upkeep queue."""
        return self.model_copy(update={"url": url})


class ChainSettings(Table):
    """The hash chain over every rollout."""

    key: Secret | None = setting(None, "chain.secret", hidden=True)
    """A secret of at most 64 bytes that keys the chain: who can write to Redis still cannot forge a log.
    Without it the chain shows damage and careless edits only. Give it by `DENDRO_CHAIN_SECRET` rather than
    in a file."""

    key_id: str = setting("", "chain.key_id", pattern=r"^[A-Za-z0-9_.-]{0,64}$")
    """Name under which entries mention the key, so that it can be changed. Needed with a key."""

    @model_validator(mode="after")
    def _named_and_short(self) -> Self:
        if self.key is not None and not self.key_id:
            needs = "a chain secret needs a name: set this key, or DENDRO_CHAIN_KEY_ID, such as 2026-01"
            raise conflict("chain.key_id", "''", needs)
        if self.key is not None and len(self.key.encode()) > 64:
            raise conflict("chain.secret", "(hidden)", "at most 64 bytes")
        return self


class WorkerSettings(Table):
    """Workers: how many sessions, for how long, and when a claim may be trusted."""

    pools: tuple[str, ...] = setting((), "worker.pools", shown_default='this host and "default"')
    """Labels that the worker serves, beside that of sessions made here (`pool`). A session made in a local
    folder asks for `host:<machine id>`, because only that machine has the folder; `default` is for folders
    that every worker of the pool can see."""

    concurrency: int = setting(16, "worker.concurrency", at_least=1, at_most=10_000)
    """Sessions that one worker runs at once. Parked sessions do not count."""

    quantum_s: float = setting(30.0, "worker.quantum_s", at_least=0.1)
    """Seconds after which a session gives way to a waiting one, between two steps."""

    lease_s: float = setting(6.0, "worker.lease_s", at_least=1)
    """Seconds until other workers may take over a session whose holder is silent. The longest pause that a
    crash costs; shorter leases suffer false alarms on busy machines."""

    renew_s: float = setting(2.0, "worker.renew_s", at_least=0.1)
    """Seconds from the begin of one renewal of all claims to that of the next. A third of the lease, so that
    one may be lost. One that takes longer is followed at once."""

    trust_s: float = setting(4.0, "worker.trust_s", at_least=0.2)
    """Seconds for which a worker trusts its claim after the last renewal that it sent. Below the lease: the
    difference is what clocks may drift and what the supervisor needs to kill."""

    burial: bool = setting(True, "worker.burial")
    """Whether sessions of a worker that was killed go on elsewhere as soon as its supervisor has proved that
    nothing of it runs, and do not wait for the lease. Takes a small process beside each worker (40 MB)."""

    stall_s: float = setting(2.0, "worker.stall_s", at_least=0.1)
    """Seconds without a tick of the event loop and without a commit after which renewals stop: a worker that
    cannot act must not keep others from acting."""

    drain_grace_s: float = setting(10.0, "worker.drain_grace_s", at_least=0)
    """Seconds that a running command gets on SIGTERM before it is killed and recorded as killed."""

    metrics_port: int | None = setting(
        None, "worker.metrics_port", at_least=0, at_most=65_535, shown_default="none are served"
    )
    """Port at which each worker answers `/healthz`, `/readyz` and `/metrics` ([metrics](metrics.md)). 0 takes
    a free one and prints it; a port that is taken is a warning."""

    metrics_host: str = setting("127.0.0.1", "worker.metrics_host", pattern=r"^[A-Za-z0-9_.:-]+$")
    """Address of that port. Nobody is asked who they are there: another address than loopback shows every
    host that reaches it how much work there is, which models are asked and what they cost."""

    tracing: bool = setting(False, "worker.tracing")
    """Whether the worker sends traces by OpenTelemetry ([tracing](tracing.md)), which needs the extra `otel`.
    The standard variables (`OTEL_EXPORTER_OTLP_ENDPOINT` and the like) say where they go."""

    trace_contents: bool = setting(False, "worker.trace_contents")
    """Whether traces hold what people say, what agents answer, and what tools are given and give back, 4,096
    characters each. Without it they hold none of it."""

    @field_validator("pools")
    @classmethod
    def _pools(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(map(pool_name, names))

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.renew_s < self.trust_s < self.lease_s:
            found = f"{self.renew_s}, {self.trust_s}, {self.lease_s}"
            keys = "worker.renew_s, worker.trust_s, worker.lease_s"
            raise conflict(keys, found, "each must be smaller than the next")
        return self


class LogSettings(Table):
    """Rollouts: what is kept, and what makes resuming cheap."""

    rollout_deltas: bool = setting(False, "rollout_deltas")
    """Keep deltas in the rollout too. The finished item holds their text; a rollout grows about tenfold."""

    snapshot_every: int = setting(256, "log.snapshot_every", at_least=16)
    """Entries after a snapshot that call for the next one: what a takeover has to fold at most."""

    file_days: float = setting(0.0, "log.file_days", at_least=0)
    """Days for which a rollout file below a worker's home folder stays there when its session was deleted, by
    `upkeep.retention_days` or `dendro rm` on any machine. From 30 on it stays for ever: for so long Redis
    knows what was deleted. Files of sessions that were not deleted are never removed."""


class UpkeepSettings(Table):
    """Upkeep: sealing, archiving, retention. Losing it for an hour loses only tidiness."""

    url: str | None = setting(None, "upkeep.url", hidden=True, shown_default="`redis.url`")
    """Redis server of the upkeep queue. Its job runner cannot use a cluster: name a single server then."""

    _store = field_validator("archive_url")(store)

    archive_url: str = setting("", "upkeep.archive_url", shown_default="`archive` in the home folder")
    """Where sealed segments of rollouts go: a folder (`file:///…`) or an object store (`s3://…`, with its
    fsspec plug-in). Every worker must be able to read it."""

    seal_after: int = setting(1024, "upkeep.seal_after", at_least=1)
    """Entries behind a snapshot that call for a new segment: what a living session's log keeps in Redis
    for nothing. Longer logs are sealed in larger stretches, so that their segments stay few."""

    seal_idle_s: float | None = setting(
        None, "upkeep.seal_idle_s", at_least=60, at_most=604_800, shown_default="never"
    )
    """Seconds for which a session has waited, for a person, for agents or for nothing, when its whole log
    goes to the archive. The session stays what it is, and the next claim of it reads the archive: name one
    that every worker and every door can read. The log of a tree that has told of nothing for so long is
    compressed in Redis; processes of earlier versions do not find its entries."""

    archive_after_days: float = setting(7.0, "upkeep.archive_after_days", at_least=0)
    """Days after its end for which a closed session and its agents stay in Redis. Later they are in the
    archive alone, and come back when somebody speaks to them."""

    archive_idle_days: float | None = setting(
        None, "upkeep.archive_idle_days", at_least=0, shown_default="never"
    )
    """Days without any work after which a session that nobody closed goes to the archive with its agents.
    It comes back when somebody speaks to it. It stays while one of them waits for a person's answer, or has a
    process or a timer."""

    retention_days: float | None = setting(
        None, "upkeep.retention_days", at_least=0, shown_default="for ever"
    )
    """Days after its end for which a closed session is kept: then its whole tree is deleted from Redis and
    from the archive."""

    verify_sessions: int = setting(20, "upkeep.verify_sessions", at_least=0)
    """Sessions whose hash chain is checked from the first entry every ten minutes, in turn. A broken chain
    is an error in the log of `dendro upkeep`."""


class ApprovalsSettings(Table):
    """Approvals: whether they have to be signed ([verifying](verifying.md#signed-answers))."""

    signed: Literal["off", "wanted", "required"] = setting("off", "approvals.signed")
    """Whether the answer of a person to a request has to bear their signature (`dendro approvals --sign`):
    `required` refuses one without, and the request stays open; `wanted` warns. Read by workers, for all
    sessions that they run."""

    signed_in: Mapping[str, Literal["off", "wanted", "required"]] = setting({}, "approvals.signed_in")
    """The same for work that somebody of a namespace has given, in the place of `approvals.signed`:
    namespaces by name, the machine's own as `home`."""

    signers: tuple[str, ...] = setting((), "approvals.signers")
    """Verifier keys of the people whose signatures count, as `dendro approvals --sign` prints them:
    `ada+26a23f38+AdmMXYMQ…`. A signature that names one of them and is none of it is refused in any case."""

    @model_validator(mode="after")
    def _somebody_can_sign(self) -> Self:
        if "required" in (self.signed, *self.signed_in.values()) and not self.signers:
            raise conflict("approvals.signed", "required", "approvals.signers has to name who may sign")
        return self


class ReceiptsSettings(Table):
    """Receipts: a notary states the heads of all logs in a register that it signs ([notary](notary.md))."""

    _store = field_validator("url")(store)

    url: str | None = setting(None, "receipts.url")
    """Where the registers are published: a folder (`file:///…`) or an object store (`s3://…`), which any file
    server may serve. Where it is set, lines of trees' logs get salts, `dendro notary` writes there, and
    `dendro bundle --receipts` reads there."""

    name: str | None = setting(None, "receipts.name", pattern=r"^[^\s+/]{1,100}$")
    """The deployment's name, such as `fleet.example`: the register of a namespace is `<name>/<namespace>`,
    and that of sessions without one `<name>/home`. It is fixed by `dendro notary init`."""

    state: Path | None = setting(None, "receipts.state", shown_default="`notary` in the home folder")
    """Folder of the notary's state, on a local disk. It is not restored from a backup: a register goes on
    with its last state alone."""

    key_file: Path | None = setting(
        None, "receipts.key_file", shown_default="`notary.key` in the home folder"
    )
    """The Ed25519 key that signs, in a file of mode 600 which `dendro notary init` makes where there is none.
    No worker and no gateway needs it."""

    metrics_port: int | None = setting(
        None, "receipts.metrics_port", at_least=0, at_most=65_535, shown_default="none are served"
    )
    """Port of loopback at which the notary answers `/healthz`, `/readyz` and `/metrics`
    ([metrics](metrics.md)). 0 takes a free one and prints it; a port that is taken is a warning."""

    witnesses: tuple[str, ...] = setting((), "receipts.witnesses")
    """Witnesses that are asked to sign each checkpoint, each as its verifier key, a blank, and its address:
    `witness.example/w1+a7e12144+BGG3… https://witness.example`."""

    interval_s: float = setting(60.0, "receipts.interval_s", at_least=1, at_most=3_600)
    """Seconds after which a log that grows is stated again, and within which a cut log is noticed."""


class WebhookSettings(Table):
    """The webhook: upkeep tells a server of the owner's who is needed, and which tasks have ended."""

    url: str | None = setting(None, "webhook.url", pattern=WEBHOOK, hidden=True)
    """Address that gets a signed `POST` for each event of `webhook.events`
    ([upkeep](upkeep.md#the-webhook)). `https://`, or `http://` on loopback. Needs `webhook.secret`. It is
    told of the sessions of every namespace."""

    secret: Secret | None = setting(None, "webhook.secret", hidden=True)
    """Secret of 16 to 256 characters by which the server knows that a call is upkeep's. Behind `whsec_` it is
    base64, as Standard Webhooks writes it. Give it by `DENDRO_WEBHOOK_SECRET` rather than in a file."""

    events: tuple[WebhookEvent, ...] = setting(
        ("needs_you", "done", "failed"), "webhook.events", shown_default="all of them"
    )
    """Of what it is told: `needs_you`, a request or a spent budget waits for a person; `done` and `failed`, a
    root has ended a task. Nobody is told of a task that a person stopped."""

    @field_validator("secret")
    @classmethod
    def _long_enough(cls, secret: Secret | None) -> Secret | None:
        if secret is None:
            return None
        encoded = secret.removeprefix("whsec_")
        if not 16 <= len(encoded) <= 256:
            raise unfit("a secret of 16 to 256 characters")
        if encoded != secret and not BASE64.fullmatch(encoded):
            raise unfit("behind whsec_ the secret in base64")
        return secret


class WireSettings(Table):
    """Clients: what a connection may send."""

    line_limit_bytes: int = setting(8 * MIB, "wire.line_limit_bytes", at_least=KIB)
    """Longest line of NDJSON that is read. A longer one is skipped to its end and answered with an
    `error`."""


class ExecSettings(Table):
    """Runs of `dendro exec`, which a program starts for one turn each."""

    approvals: Literal["refuse", "queue"] = setting("refuse", "exec.approvals")
    """The fate of a call that needs a person: it is refused, the model reads so, and the run ends by
    itself (`approval_policy` is `never`, whatever was asked for); or it waits in the fleet's queue
    (`dendro approvals`), and the run waits with it."""


class FrontSettings(Table):
    """Calling the person: from `dendro run` and `dendro attach`, when they are needed."""

    notify: tuple[str, ...] = setting((), "notify", folder="trusted")
    """A program with its arguments that is started with one more: a JSON object with `type`
    (`agent-turn-complete` or `approval-requested`), `thread-id`, `turn-id`, `cwd`, and `input-messages` and
    `last-assistant-message`, or `call-id`, `command` or `paths`, and `reason`. It runs as the person's own
    program, outside of any sandbox, for at most 5 seconds. Started by the process in front of the person,
    never by a worker."""

    notifications: tuple[Notification, ...] = setting((), "tui.notifications", switch=True, folder="trusted")
    """Of which news the terminal makes a sound or a desktop notification: a list of `agent-turn-complete` and
    `approval-requested`, or `true` for both."""

    notification_method: Literal["auto", "osc9", "bel"] = setting(
        "auto", "tui.notification_method", folder="trusted"
    )
    """How: `osc9` is a desktop notification where the terminal knows the escape sequence, `bel` the
    terminal's bell; `auto` takes `osc9` in terminals that are known to have it."""


# ── gateway ───────────────────────────────────────────────────────────────────────────────────────
# Settings of gateways: what `dendro serve` and `dendro app-server` take from the network.


class GatewaySettings(Table):
    """Gateways: who may connect from where ([tokens](doors/tokens.md))."""

    allowed_origins: tuple[str, ...] = setting((), "gateway.allowed_origins")
    """Web origins (`https://board.example`) whose pages may open a WebSocket. Pages of all others are refused
    with 403: a page may otherwise use its reader's network, and his tokens."""

    hosts: tuple[str, ...] = setting((), "gateway.hosts")
    """Names under which clients reach a gateway, beside those of loopback and the address itself. A request
    for another name is refused with 421: its name may lead here by somebody else's doing."""

    tls_certificate: Path | None = setting(None, "gateway.tls_certificate")
    """File of the certificate (PEM, with its chain) for `wss://` and `tcps://`. Whatever is not loopback is
    encrypted."""

    tls_key: Path | None = setting(None, "gateway.tls_key")
    """File of the certificate's private key (PEM)."""

    loopback_needs_token: bool = setting(False, "gateway.loopback_needs_token")
    """Whether a process of this user needs a token on loopback, too. On unix sockets it never does; processes
    of other users, and commands of agents in their sandbox, always need one."""

    token_issuer: str | None = setting(None, "gateway.token_issuer", pattern=ISSUER)
    """OpenID issuer whose access tokens count beside Dendro's own ([tokens](doors/tokens.md)): signed with a
    key that it publishes, for `gateway.token_audience`, with a scope `dendro:read`, `dendro:submit`,
    `dendro:approve` or `dendro:admin`."""

    token_audience: str | None = setting(None, "gateway.token_audience")
    """Audience (`aud`) that such a token must name: the name of this deployment at the issuer."""

    max_connections: int = setting(4096, "gateway.max_connections", at_least=1, at_most=100_000)
    """Connections that each address serves at once; a further one is closed."""

    cwd: Path | None = setting(None, "gateway.cwd", shown_default="the folder that it was started in")
    """Working folder of a new session whose client of the app-server protocol names none."""

    workspace: Literal["host", "portable"] = setting("host", "gateway.workspace")
    """Kind of the folder of a new session whose client does not choose one (`workspace`): the folder itself
    that its client names as `cwd`, or a portable copy of it ([portable folders](workspaces.md)). With
    `portable`, a client that names no `cwd` begins with an empty folder. A token that says one of both
    (`dendro token new --workspace`) is heard before this setting."""

    auto_review: Literal["queue", "ask"] = setting("queue", "gateway.auto_review")
    """The way of a request for approval whose client says that a model reviews it
    (`approvalsReviewer: auto_review`, the default of Codex's Python SDK, whose handler accepts anything): it
    waits for people (`dendro approvals`), or that client is asked."""

    client_tool_timeout_s: float = setting(
        600.0, "gateway.client_tool_timeout_s", at_least=1, at_most=7 * 86_400
    )
    """Seconds that a call of a tool which a client brings along (`dynamicTools`) waits for that client,
    connected or not. Then it has failed, and its turn goes on."""

    metrics_port: int | None = setting(
        None, "gateway.metrics_port", at_least=0, at_most=65_535, shown_default="none are served"
    )
    """Port at which a gateway answers `/healthz`, `/readyz` and `/metrics` ([metrics](metrics.md)). 0 takes
    a free one and prints it; a port that is taken is a warning."""

    metrics_host: str = setting("127.0.0.1", "gateway.metrics_host", pattern=r"^[A-Za-z0-9_.:-]+$")
    """Address of that port. Nobody is asked who they are there: it shows how many clients are connected, and
    how much work there is."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise conflict("gateway.tls_certificate, gateway.tls_key", "one of them", "both or none")
        if (self.token_issuer is None) != (self.token_audience is None):
            raise conflict("gateway.token_issuer, gateway.token_audience", "one of them", "both or none")
        return self


# ── workspaces ────────────────────────────────────────────────────────────────────────────────────
# Settings of portable folders: where copies lie, what is recorded, and within which bounds.


DEFAULT_EXCLUDES = (".env", ".env.*", "*.pem", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*")
FOLDER_SETUP = ".dendro/setup.sh"
"""A folder's own set-up, which is run only if a person has trusted it as it is."""
GIB = 1024 * MIB


class WorkspaceSettings(Table):
    """Portable folders: copies that any worker makes from the log."""

    root: Path | None = setting(None, "workspace.root", shown_default="`workspaces` in the home folder")
    """Folder below which this machine has its copies. Commands see a portable folder at
    `<root>/<tree>/<name>` on every machine, so all workers of a pool need the same one; a worker with another
    one gives such a session back. It may not lead through a symbolic link."""

    key_file: Path | None = setting(None, "workspace.key_file")
    """File of the keys by which packs of portable folders are encrypted before the store gets them
    (`dendro keys new FILE` makes one), readable for its owner only. Every process that writes or reads such
    packs needs it: workers, gateways, and commands such as `dendro diff`. The first key writes, all of them
    read. Packs of before there was a key are read as well."""

    include: tuple[str, ...] = setting((), "workspace.include")
    """Files that are recorded although the folder's rules ignore them: lines as in a `.gitignore`. Counts for
    sessions that are made with it."""

    exclude: tuple[str, ...] = setting(DEFAULT_EXCLUDES, "workspace.exclude")
    """New files that are never recorded, whatever the folder's rules say: lines as in a `.gitignore`. Each is
    named once in a warning. Files that the repository has are recorded. Counts for sessions that are made
    with it."""

    setup: Path | None = setting(None, "workspace.setup")
    """File with a script that prepares each portable folder, for instance by installing packages. It runs in
    the folder once it was made, before the first call that needs it, and again where the folder is made anew.
    Its text is read when a session is made, or an agent's copy of an ordinary folder, and stays that one's;
    no sandboxed command writes the file. Without it a folder's own `.dendro/setup.sh` runs if you have
    trusted it as it is (`dendro trust .dendro/setup.sh`)."""

    setup_script: str = setting("", "workspace.setup_script")
    """The script itself, instead of a file."""

    setup_network: bool = setting(False, "workspace.setup_network")
    """Lets the script reach the network, in every folder in which it runs: also where files that it reads,
    such as a list of packages, are an agent's by then. Counts for sessions that are made with it."""

    setup_timeout_s: float = setting(600.0, "workspace.setup_timeout_s", at_least=1, at_most=14_400)
    """Seconds until the script is killed, and the task fails. Counts for sessions that are made with it."""

    max_file: int = setting(50 * MIB, "workspace.max_file", at_least=1024)
    """Bytes of a file from which on it is left out, and named in a warning."""

    max_files: int = setting(200_000, "workspace.max_files", at_least=1, at_most=2_000_000)
    """Files of a folder; one with more is refused as a portable folder."""

    max_bytes: int = setting(4 * GIB, "workspace.max_bytes", at_least=MIB)
    """Bytes of all recorded files of a folder; one with more is refused as a portable folder."""

    seconds: float = setting(120.0, "workspace.seconds", at_least=1)
    """Seconds for one snapshot, or for making one folder."""

    store_s: float = setting(10.0, "workspace.store_s", at_least=0.1)
    """Seconds that a call's end waits for the store to take a snapshot. Then the session goes on, its folder
    is unsaved, and the store is tried again."""

    hold_s: float = setting(86_400.0, "workspace.hold_s", at_least=0)
    """Seconds for which a worker keeps a session whose folder the store does not take, and tries again. Then
    it gives the session back, and its machine tries again now and then. Another machine takes the session,
    and goes on without the changes, when that one's workers are gone, or a person gives the changes up."""

    leave_s: float = setting(1.0, "workspace.leave_s", at_least=0, at_most=60)
    """Seconds for which workers of other machines leave a portable session to the machine that has its copy,
    where it need not be made anew. A machine whose workers are gone or full is not waited for."""

    min_free: int = setting(1 * GIB, "workspace.min_free", at_least=0)
    """Bytes that have to be free on the disk of `workspace.root`: with less, this machine makes no folder,
    and its workers leave portable sessions to those of other machines."""

    max_disk: int | None = setting(None, "workspace.max_disk", at_least=MIB, shown_default="no limit")
    """Bytes that all copies of this machine may take. Above it those of sessions that nobody works on are
    removed before their time, least recently used first. Copies with unsaved changes stay."""

    keep_s: float = setting(3600.0, "workspace.keep_s", at_least=0)
    """Seconds for which a copy stays on the machine after its session was given back: the next claim here
    finds it. Copies with unsaved changes stay."""

    git_protocols: tuple[str, ...] = setting(("https", "ssh"), "workspace.git_protocols")
    """Protocols by which a worker may clone the repository that a session's first content comes from, with
    the worker's own credentials. `file` lets whoever makes sessions read repositories of the worker's
    machine."""

    clone_s: float = setting(300.0, "workspace.clone_s", at_least=1)
    """Seconds for such a clone."""

    @model_validator(mode="after")
    def _plain(self) -> Self:
        if self.root is not None and (not self.root.is_absolute() or len(str(self.root)) > 512):
            raise conflict(
                "workspace.root", str(self.root)[:80], "an absolute path of at most 512 characters"
            )
        if self.key_file is not None and not self.key_file.is_absolute():
            raise conflict("workspace.key_file", str(self.key_file)[:80], "an absolute path")
        for key, globs in (("workspace.include", self.include), ("workspace.exclude", self.exclude)):
            if len(globs) > 256 or any(not glob or len(glob) > 512 or "\n" in glob for glob in globs):
                raise conflict(key, f"{len(globs)} lines", "at most 256 lines of at most 512 characters")
        if self.setup is not None and self.setup_script:
            both = "workspace.setup, workspace.setup_script"
            raise conflict(both, "a file and a text", "one of them: they mean the same script")
        if any(not name.isalnum() for name in self.git_protocols):
            raise conflict(
                "workspace.git_protocols", "a name with signs", "names of protocols, such as https"
            )
        return self


# ── auth ──────────────────────────────────────────────────────────────────────────────────────────
# Settings of the person's sign-in at model providers.


class AuthSettings(Table):
    """Sign-in: where the key or the tokens of providers with `auth = "login"` come from, and are kept."""

    issuer: str | None = setting(None, "auth.issuer", pattern=ISSUER)
    """OpenID issuer at which a person signs in (`account/login/start` with `chatgpt`, `loginChatGpt`), in
    place of a key. `https://`, or `http://` on loopback."""

    client_id: str | None = setting(None, "auth.client_id")
    """Id of Dendro as a public client of that issuer, with `http://127.0.0.1/callback` (any port) as its
    redirect."""

    store: Literal["auto", "keyring", "file"] = setting("auto", "auth.store")
    """Where a sign-in is kept: the system's keyring, a file in the home folder that its owner alone may read,
    or (`auto`) the keyring if there is one, and else the file."""

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.issuer is None) != (self.client_id is None):
            raise conflict("auth.issuer, auth.client_id", "one of them", "both or none")
        return self


# ── tables ────────────────────────────────────────────────────────────────────────────────────────


__all__ = [
    "APPROVAL_POLICIES",
    "SANDBOX_MODES",
    "SESSION_KEYS",
    "AgentSettings",
    "ApprovalPolicy",
    "ApprovalsSettings",
    "AuthSettings",
    "ChainSettings",
    "EnvironmentPolicy",
    "ExecSettings",
    "FrontSettings",
    "GatewaySettings",
    "LogSettings",
    "McpServerSettings",
    "ModelPrice",
    "ModelSettings",
    "ProviderSettings",
    "ReceiptsSettings",
    "RedisSettings",
    "SandboxMode",
    "SandboxPolicy",
    "SandboxSettings",
    "Secret",
    "SessionDefaults",
    "Setting",
    "Table",
    "ToolSettings",
    "UpkeepSettings",
    "WebhookSettings",
    "WireSettings",
    "WorkerSettings",
    "WorkspaceSettings",
    "limits_of",
    "settings_of",
]
