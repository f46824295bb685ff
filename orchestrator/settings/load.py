"""From layers of raw values to one checked `Settings`: derived defaults, rules between settings.

Must not read the environment itself: what it may know stands in `SettingsSources`.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import cache
from ipaddress import ip_address, ip_network
from pathlib import Path
from types import MappingProxyType, NoneType, UnionType
from typing import Any, Final, NewType, TypeVar, Union, get_args, get_origin
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from orchestrator import config_keys
from orchestrator.core.frozen import record
from orchestrator.home import absolute
from orchestrator.sandbox.environment import secret_variables
from orchestrator.settings.folder_trust import FolderConfig
from orchestrator.settings.layers import Found, KeyPath, Layers, SettingsError
from orchestrator.settings.sources import (
    INSTRUCTIONS_FILES,
    KEYED_RECORDS,
    SHARED_RETRY_KEYS,
    SettingsSources,
    gather,
    known_paths,
    named_keys,
    own_file,
    refused_keys,
    variable,
)

# ── whole ─────────────────────────────────────────────────────────────────────────────────────────
# The whole of the settings, and the machine that they were read on.
#
# Composes the tables of `orchestrator.config_keys`; says nothing of any single setting.


HIDDEN: Final = "(hidden)"
"""In the place of a value that is, or may hold, a secret."""
_USER_OF_URL = re.compile(r"(?<=//)[^/?#\n]*(?=@)")
_PARAMETER = re.compile(r"(?<=[?&])([^=&#\s]+)=([^&#\s]+)")
_OPTION = re.compile(r"--?([^=\s]+)(?:=(.*))?", re.DOTALL)
_USER_OF_ANY_URL = re.compile(r"(?<=//)[^\n]*(?=@)")
"""The same in one value that is refused, perhaps because of a sign in its password."""


@record
class HostSettings:
    """The machine and the process: read once, passed down, so that no other module looks."""

    machine_id: str
    """Stable name of this machine: what `host:<…>` pools are made of."""

    search_path: str
    """`PATH`: where programs are looked for."""

    user_home: Path
    """`HOME`."""

    runtime_dir: Path | None
    """`XDG_RUNTIME_DIR`: where the private server's socket goes if it is there."""

    temp_dir: Path | None
    """`TMPDIR`, if set."""

    environ: Mapping[str, str] = field(repr=False)
    """The whole environment: what commands inherit from, after the filter."""


@record
class Settings:
    """Everything that can be set, resolved."""

    home: Path
    config_file: Path | None
    """The person's own file, named by `--config` or in the home folder."""

    host: HostSettings
    session_defaults: config_keys.SessionDefaults
    model: config_keys.ModelSettings
    redis: config_keys.RedisSettings
    chain: config_keys.ChainSettings
    worker: config_keys.WorkerSettings
    log: config_keys.LogSettings
    upkeep: config_keys.UpkeepSettings
    tools: config_keys.ToolSettings
    sandbox: config_keys.SandboxSettings
    wire: config_keys.WireSettings
    agents: config_keys.AgentSettings = field(default_factory=config_keys.AgentSettings)
    front: config_keys.FrontSettings = field(default_factory=config_keys.FrontSettings)
    gateway: config_keys.GatewaySettings = field(default_factory=config_keys.GatewaySettings)
    auth: config_keys.AuthSettings = field(default_factory=config_keys.AuthSettings)
    exec: config_keys.ExecSettings = field(default_factory=config_keys.ExecSettings)
    workspace: config_keys.WorkspaceSettings = field(default_factory=config_keys.WorkspaceSettings)
    webhook: config_keys.WebhookSettings = field(default_factory=config_keys.WebhookSettings)
    receipts: config_keys.ReceiptsSettings = field(default_factory=config_keys.ReceiptsSettings)
    approvals: config_keys.ApprovalsSettings = field(default_factory=config_keys.ApprovalsSettings)
    mcp_servers: Mapping[str, config_keys.McpServerSettings] = field(default_factory=dict)
    folder_config: FolderConfig | None = None
    """The file of the current folder, and whether the person trusts it."""

    named: frozenset[str] = frozenset()
    """The keys that the command line sets, `cwd` among them: a fork has all others from its source."""

    warnings: tuple[str, ...] = ()
    """Keys that no setting reads, and settings that deserve a second look: to be shown, never fatal."""

    def without_secrets(self) -> str:
        """All of it as JSON, readable and always the same; instead of secrets it says that they are set."""
        tables = {spec.name: getattr(self, spec.name) for spec in fields(self) if spec.name not in _NOT_SET}
        host = {"machine_id": self.host.machine_id, "search_path": self.host.search_path}
        folder = self.folder_config
        told = _told(tables) | {"host": host, "folder_config": str(folder.path) if folder else None}
        return json.dumps(told, sort_keys=True, indent=1)


_NOT_SET: Final = frozenset({"host", "folder_config", "warnings", "named"})


def _told(value: Any) -> Any:
    match value:
        case BaseModel():
            return {
                name: _told_field(each, getattr(value, name))
                for name, each in type(value).model_fields.items()
            }
        case Mapping():
            return {str(name): _told(each) for name, each in value.items()}
        case frozenset() | set():
            return sorted(map(str, value))
        case list() | tuple():
            return _told_words(value)
        case None | bool() | int() | float():
            return value
        case _:
            return _public(str(value))


def _told_words(values: Sequence[Any]) -> list[Any]:
    """The values of a list, which may be the arguments of a program: none of an option that is a secret."""
    told, hides = list[Any](), False
    for value in values:
        option = _OPTION.fullmatch(value) if isinstance(value, str) else None
        secret = option is not None and config_keys.names_secret(option[1])
        if hides and option is None:
            told.append(HIDDEN)
        elif option is not None and secret and option[2] is not None:
            told.append(f"{value.partition('=')[0]}={HIDDEN}")
        else:
            told.append(_told(value))
        hides = option is not None and secret and option[2] is None
    return told


def _public(text: str) -> str:
    """A text without the users and the secret parameters of addresses in it."""
    return _PARAMETER.sub(_parameter, _USER_OF_URL.sub(HIDDEN, text))


def _parameter(found: re.Match[str]) -> str:
    return f"{found[1]}={HIDDEN}" if config_keys.names_secret(unquote(found[1])) else found[0]


def _told_field(spec: FieldInfo, value: Any) -> Any:
    if spec.repr:
        return _told(value)
    # Names say what was set; values of them may be secrets.
    if isinstance(value, Mapping):
        return dict.fromkeys(map(str, value), HIDDEN)
    return HIDDEN if value else None


# ── load ────────────────────────────────────────────────────────────


RESERVED_SERVER = "custom"
"""The server as which events show the tools of a program around Dendro (`examples/custom_tool.py`)."""
TABLES_OF_NAMES = frozenset({"profiles", "model_providers", "model_prices", "mcp_servers"})
MCP_SERVER_NAME = re.compile(r"[!-~](?:[ -~]{0,62}[!-~])?")
"""Models are offered its tools under names in which other characters than letters, digits, _ and - are _."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
NOT_SETTINGS = frozenset({"DENDRO_DEBUG", "DENDRO_HOME", "DENDRO_PROGRAMS", "DENDRO_SANDBOX", "DENDRO_TOKEN"})
"""The last one is the name that the pages give to a client's token."""
NO_EFFECT = "has no effect here"
"""The end of the warning about a key of Codex's that nothing here obeys."""
WITHOUT_EFFECT = frozenset(
    {
        "chatgpt_base_url",
        "disable_response_storage",
        "features",
        "file_opener",
        "hide_agent_reasoning",
        "history.max_bytes",
        "model_supports_reasoning_summaries",
        "notice",
        "preferred_auth_method",
        "projects",
        "tui",
    }
)
"""Keys of Codex's that this version has no use for; all else unknown is taken for a typing error."""


def load_settings(sources: SettingsSources) -> Settings:
    """Everything that can be set, resolved and checked.

    Raises `SettingsError` for a value that cannot be used; unknown keys are in `Settings.warnings`.
    """
    usual_mode = cache(lambda: _usual_mode(sources))
    layers, folder = gather(sources, {("sandbox_mode",): usual_mode})
    reader = TableReader(layers, sources.user_home)
    host = _host(sources)
    defaults = _session_defaults(reader, sources, host, usual_mode)
    settings = Settings(
        home=sources.home,
        config_file=own_file(sources),
        folder_config=folder,
        host=host,
        session_defaults=defaults,
        model=_model_settings(reader, defaults, host),
        mcp_servers=_mcp_servers(reader, host),
        redis=reader.table(config_keys.RedisSettings),
        chain=reader.table(config_keys.ChainSettings),
        worker=reader.table(config_keys.WorkerSettings),
        log=reader.table(config_keys.LogSettings),
        upkeep=reader.table(config_keys.UpkeepSettings),
        receipts=reader.table(config_keys.ReceiptsSettings),
        approvals=reader.table(config_keys.ApprovalsSettings),
        webhook=reader.table(config_keys.WebhookSettings),
        tools=reader.table(config_keys.ToolSettings),
        sandbox=reader.table(
            config_keys.SandboxSettings, environment=reader.table(config_keys.EnvironmentPolicy)
        ),
        wire=reader.table(config_keys.WireSettings),
        agents=reader.table(config_keys.AgentSettings),
        front=reader.table(config_keys.FrontSettings),
        gateway=reader.table(config_keys.GatewaySettings),
        auth=reader.table(config_keys.AuthSettings),
        exec=reader.table(config_keys.ExecSettings),
        workspace=reader.table(config_keys.WorkspaceSettings),
        named=named_keys(sources),
    )
    if settings.redis.cluster and settings.upkeep.url is None:
        raise SettingsError("settings", "upkeep.url", "none", "a cluster needs a single server for upkeep")
    for key in settings.approvals.signers:
        _check_signer(key)
    return _complete(settings, (*reader.warnings, *_unknown_keys(layers), *_unknown_variables(host)))


def _check_signer(key: str) -> None:
    # Few name any: whoever does not is not to wait for the import.
    from orchestrator.rollouts.signed_notes import ED25519, BadNote, VerifierKey

    try:
        if VerifierKey.read(key).type != ED25519:
            raise BadNote("it is a witness's key, and not one that signs answers")
    except BadNote as error:
        raise SettingsError("settings", "approvals.signers", repr(key[:120]), str(error)) from None


def keys_that_loosen(sources: SettingsSources, wanted: Mapping[str, object]) -> tuple[str, ...]:
    """The keys among these that permit more than the person's own settings, or that only a person may set.

    For settings that a program asks for in the name of a model: they count as a folder's file that nobody has
    trusted. Raises `SettingsError` for sources that cannot be read.
    """
    usual: Mapping[KeyPath, Callable[[], object]] = {("sandbox_mode",): lambda: _usual_mode(sources)}
    return refused_keys(gather(sources, usual)[0], wanted, usual)


def _host(sources: SettingsSources) -> HostSettings:
    environ = sources.environ
    runtime, temp = environ.get("XDG_RUNTIME_DIR"), environ.get("TMPDIR")
    return HostSettings(
        machine_id=_machine_id(sources.machine_id_files),
        search_path=environ.get("PATH", os.defpath),
        user_home=sources.user_home,
        runtime_dir=Path(runtime) if runtime else None,
        temp_dir=Path(temp) if temp else None,
        environ=MappingProxyType(dict(environ)),
    )


def _machine_id(files: Sequence[Path]) -> str:
    """A digest: the id itself is confidential by its manual page, and pools travel with sessions."""
    for file in files:
        if file.is_file() and (text := file.read_text().strip()):
            return hashlib.blake2b(text.encode(), digest_size=6, person=b"dendro-host").hexdigest()
    return os.uname().nodename


def _usual_mode(sources: SettingsSources) -> config_keys.SandboxMode:
    return "workspace-write" if sources.in_work_tree(sources.session_cwd, sources.environ) else "read-only"


def _session_defaults(
    reader: TableReader,
    sources: SettingsSources,
    host: HostSettings,
    usual_mode: Callable[[], config_keys.SandboxMode],
) -> config_keys.SessionDefaults:
    cwd = sources.session_cwd
    sandbox = reader.table(config_keys.SandboxPolicy)
    if not reader.is_set(("sandbox_mode",)):
        sandbox = sandbox.model_copy(update={"mode": usual_mode(), "chosen": False})
    defaults = reader.table(config_keys.SessionDefaults, cwd=cwd, sandbox=sandbox)
    texts = [text for path in INSTRUCTIONS_FILES if (text := reader.text_of_file(path)) is not None]
    derived = {
        "pool": defaults.pool or f"host:{host.machine_id}",
        "base_instructions": defaults.base_instructions or next(iter(texts), None),
    }
    return defaults.model_copy(update=derived)


def _model_settings(
    reader: TableReader, defaults: config_keys.SessionDefaults, host: HostSettings
) -> config_keys.ModelSettings:
    names = reader.layers.names(("model_prices",))
    prices = {name: reader.table(config_keys.ModelPrice, ("model_prices", name)) for name in names}
    providers = _providers(reader, defaults.model_provider, host)
    return reader.table(
        config_keys.ModelSettings,
        model=defaults.model,
        provider=defaults.model_provider,
        providers=providers,
        prices=prices,
    )


def _providers(
    reader: TableReader, chosen: str, host: HostSettings
) -> dict[str, config_keys.ProviderSettings]:
    _share_retry_keys(reader.layers, chosen)
    providers: dict[str, config_keys.ProviderSettings] = {}
    for name in reader.layers.names(("model_providers",)):
        try:
            providers[name] = _provider(reader, name, host)
        except SettingsError as error:
            # A file of Codex's may hold providers that only Codex can use; unchosen, they do no harm.
            if name == chosen:
                raise
            reader.warnings.append(f"provider {name} is left out: {error}")
    if chosen not in providers:
        known = ", ".join(providers)
        raise SettingsError(
            reader.where(("model_provider",)), "model_provider", repr(chosen), f"providers here: {known}"
        )
    return providers


def _provider(reader: TableReader, name: str, host: HostSettings) -> config_keys.ProviderSettings:
    path = ("model_providers", name)
    given = reader.table(config_keys.ProviderSettings, path, id=name)
    derived = {
        "name": given.name or name,
        "proxy": given.proxy or _usual_proxy(given.base_url, host.environ),
        "ca_file": given.ca_file or _usual_authorities(host),
        "api_key": _secret(host, given.env_key),
        "secret_headers": _sent_headers(given.env_http_headers, host),
    }
    provider = given.model_copy(update=derived)
    if config_keys.names_user(provider.base_url) and provider.bears_key:
        raise _two_users(reader, (*path, "base_url"), 'a key (env_key), a sign-in (auth = "login")')
    return provider


def _two_users(reader: TableReader, path: KeyPath, others: str) -> SettingsError:
    allowed = f"no user and no password beside {others} or an Authorization header: a request bears one"
    return SettingsError(reader.where(path), ".".join(path), HIDDEN, allowed)


def _secret(host: HostSettings, variable: str | None) -> config_keys.Secret | None:
    value = _sent(variable, host) if variable else ""
    return config_keys.Secret(value) if value else None


def _sent(variable: str, host: HostSettings) -> str:
    """The value of a variable that a header bears. Files of variables leave line ends behind it."""
    value = host.environ.get(variable, "").strip()
    if not config_keys.is_header_value(value):
        found = "a line break or another control character in it"
        raise SettingsError(
            f"environment variable {variable}", "", found, "what it holds is sent in one line"
        )
    return value


def _sent_headers(sources: Mapping[str, str], host: HostSettings) -> dict[str, str]:
    """The headers whose values the variables hold that `sources` names; empty ones are left out."""
    return {name: value for name, source in sources.items() if (value := _sent(source, host))}


def _from_variables(sources: Mapping[str, str], host: HostSettings) -> dict[str, str]:
    """The values of the variables that `sources` names; empty ones are left out."""
    return {name: host.environ[source] for name, source in sources.items() if host.environ.get(source)}


def _usual_authorities(host: HostSettings) -> Path | None:
    file = host.environ.get("SSL_CERT_FILE")
    return Path(file) if file else None


def _mcp_servers(reader: TableReader, host: HostSettings) -> dict[str, config_keys.McpServerSettings]:
    """The servers that can be used. One with a wrong table is left out: an agent can work without it."""
    servers: dict[str, config_keys.McpServerSettings] = {}
    for name in reader.layers.names(("mcp_servers",)):
        try:
            servers[name] = _mcp_server(reader, name, host)
        except SettingsError as error:
            reader.warnings.append(f"MCP server {name} is left out: {error}")
    return servers


def _mcp_server(reader: TableReader, name: str, host: HostSettings) -> config_keys.McpServerSettings:
    if not MCP_SERVER_NAME.fullmatch(name):
        where = reader.where(("mcp_servers", name))
        raise SettingsError(
            where, "mcp_servers", repr(name[:80]), "a name of at most 64 printable ASCII characters"
        )
    if name == RESERVED_SERVER:
        where = reader.where(("mcp_servers", name))
        allowed = "another name: events show a program's own tools as those of a server named so"
        raise SettingsError(where, "mcp_servers", repr(name), allowed)
    given = reader.table(config_keys.McpServerSettings, ("mcp_servers", name), id=name)
    derived: dict[str, object] = {
        "given_env": _secret_env(given, host),
        "bearer_token": _secret(host, given.bearer_token_env_var),
        "secret_headers": _sent_headers(given.env_http_headers, host),
    }
    if given.url is not None:
        derived["proxy"] = given.proxy or _usual_proxy(given.url, host.environ)
        derived["ca_file"] = given.ca_file or _usual_authorities(host)
    server = given.model_copy(update=derived)
    if server.url is not None and config_keys.names_user(server.url) and server.bears_token:
        raise _two_users(reader, ("mcp_servers", name, "url"), "a token (bearer_token_env_var)")
    return server


def _secret_env(given: config_keys.McpServerSettings, host: HostSettings) -> dict[str, str]:
    """The variables of a server that are secret: those that it is handed, and those of `env` that look so."""
    handed = _from_variables({each: each for each in given.env_vars}, host)
    return secret_variables(given.env) | handed


def _usual_proxy(url: str, environ: Mapping[str, str]) -> str | None:
    """The proxy that other programs would take, by the customary variables in either case."""
    parts = urlsplit(url)

    def said(name: str) -> str:
        return environ.get(name.lower()) or environ.get(name.upper()) or ""

    host = parts.hostname or ""
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)
    entries = [entry.strip() for entry in said("no_proxy").lower().split(",") if entry.strip()]
    if host in LOOPBACK or any(_excepts(entry, host, port) for entry in entries):
        return None
    proxy = said(f"{parts.scheme}_proxy") or said("all_proxy")
    if not proxy:
        return None
    return proxy if "://" in proxy else f"http://{proxy}"


def _excepts(entry: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY covers a server: `*`, a name and all below it, an address, a network.

    A name or an IPv4 address may end with the port that it is about.
    """
    name, colon, number = entry.rpartition(":")
    if colon and number.isdigit() and ":" not in name:
        return number == str(port) and _excepts(name, host, port)
    suffix = entry.removeprefix("*").lstrip(".")
    return suffix in {"", host} or host.endswith(f".{suffix}") or _in_network(entry, host)


def _in_network(entry: str, host: str) -> bool:
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        return False


def _share_retry_keys(layers: Layers, chosen: str) -> None:
    """Retry keys at the top level count for the chosen provider, unless its table has precedence."""
    for key in SHARED_RETRY_KEYS:
        path = ("model_providers", chosen, key)
        shared, own = layers.take((key,)), layers.take(path)
        if shared is not None and (own is None or own.origin.rank < shared.origin.rank):
            layers.assign(path, shared)


def usual_pools(host: HostSettings) -> tuple[str, ...]:
    """The pools of a worker for which none is named: this machine's, and that of every worker."""
    return f"host:{host.machine_id}", "default"


def _complete(settings: Settings, warnings: Iterable[str]) -> Settings:
    """Defaults that follow from other settings."""
    places = {
        "url": settings.upkeep.url or settings.redis.url,
        "archive_url": settings.upkeep.archive_url or (settings.home / "archive").as_uri(),
    }
    upkeep = settings.upkeep.model_copy(update=places)
    pools = settings.worker.pools or usual_pools(settings.host)
    worker = settings.worker.model_copy(update={"pools": pools})
    root = settings.workspace.root or settings.home / "workspaces"
    workspace = settings.workspace.model_copy(update={"root": root})
    told = settings.receipts
    files = {
        "state": told.state or settings.home / "notary",
        "key_file": told.key_file or settings.home / "notary.key",
    }
    return replace(
        settings,
        worker=worker,
        upkeep=upkeep,
        workspace=workspace,
        receipts=told.model_copy(update=files),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _unknown_keys(layers: Layers) -> Iterator[str]:
    known = sorted({".".join(path) for path in known_paths()} | TABLES_OF_NAMES)
    for path, found in layers.unread():
        key = ".".join(path)
        # Profiles that were not chosen are not read; empty tables say nothing.
        if path[0] == "profiles" or found.value == {} or _is_terminals_trust(path):
            continue
        if useless := {path[0], key} & WITHOUT_EFFECT:
            yield f"{found.origin.where}: {useless.pop()} {NO_EFFECT}"
        else:
            yield f"{found.origin.where}: unknown key {key}{_hint(key, known)}"


def _is_terminals_trust(path: KeyPath) -> bool:
    """Whether a key is what a terminal was told about a folder: a gateway keeps it, and tells it again."""
    return len(path) == 3 and (path[0], path[2]) == ("projects", "trust_level")


def _unknown_variables(host: HostSettings) -> Iterator[str]:
    known = sorted({variable(path) for path in known_paths()} | NOT_SETTINGS)
    for name in sorted(host.environ):
        if name.startswith("DENDRO_") and name not in known:
            yield f"environment: unknown variable {name}{_hint(name, known)}"


def _hint(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f" (did you mean {close[0]}?)" if close else ""


# ── values ────────────────────────────────────────────────────────────────────────────────────────
# Turns written values into a checked table, or into an error that says what is allowed.
#
# Knows how people write values in files, variables and options; types and limits are the tables' own.
# Must not know any particular setting, nor where layers come from.


MOST_NUMBER = 1 << 53
"""Of a setting without a limit of its own: Redis's scripts hold larger numbers inexactly, or not at all."""
T = TypeVar("T", bound=config_keys.Table)


@record
class _Place:
    """The place where the value of a field was looked for."""

    path: KeyPath
    field: FieldInfo
    spec: config_keys.Setting

    @property
    def hint(self) -> Any:
        return bare(self.field.annotation)


class TableReader:
    """Reads tables out of the layers."""

    def __init__(self, layers: Layers, user_home: Path) -> None:
        self.layers = layers
        self.warnings: list[str] = []
        self._user_home = user_home

    def is_set(self, path: KeyPath) -> bool:
        """Whether a source sets the key."""
        return bool(self.layers.below(path))

    def where(self, path: KeyPath) -> str:
        """The origin of a table or value, for error messages."""
        return next((found.origin.where for found in self.layers.below(path).values()), "settings")

    def table(self, record: type[T], prefix: KeyPath = (), **given: Any) -> T:
        """Fills a table from its fields' keys; fields that are not settings come in `given`.

        Raises `SettingsError` for what its model refuses.
        """
        places: dict[str, _Place] = {}
        fields = record.model_fields
        for name, spec in config_keys.settings_of(record):
            path = (*prefix, *(spec.key or name).split("."))
            places[name] = place = _Place(path, fields[name], spec)
            if (found := self._found(place)) is not None:
                given[name] = found
        try:
            return record(**given)
        except ValidationError as error:
            raise self._refused(error.errors(include_input=False)[0], prefix, places) from None

    def text_of_file(self, path: KeyPath) -> str | None:
        """The content of the file that a setting names, None if it names none."""
        found = self._one(path)
        if found is None:
            return None
        file = self._path(found.value, found)
        if not isinstance(file, Path):
            raise _error(path, found, _shown(found), _STRING)
        try:
            return str(file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(
                self.where(path), path[0], str(file), f"a readable text file ({error})"
            ) from error

    def _found(self, place: _Place) -> Any:
        """The value of a field, as its model takes it; None if nobody gave it."""
        if get_origin(place.hint) is Mapping:
            return self._strings(place.path)
        found = self._one(place.path)
        return None if found is None else self._prepared(found, place)

    def _one(self, path: KeyPath) -> Found | None:
        found = self.layers.take(path)
        if found is None and (table := self.layers.below(path)):
            raise _error(path, next(iter(table.values())), "a table", "a single value")
        return found

    def _strings(self, path: KeyPath) -> dict[str, str] | None:
        below = self.layers.below(path)
        if not below:
            return None
        strings: dict[str, str] = {}
        for name, found in below.items():
            self.layers.take(path + name)
            if found.value == {}:
                continue
            if len(name) != 1 or not isinstance(found.value, (str, int, float)):
                raise _error(path + name, found, _shown(found), "a table of strings")
            # Numbers are taken as they were typed: `-c shell_environment_policy.set.N=1` means the text "1".
            strings[name[0]] = (
                found.value if isinstance(found.value, str) else found.text or _typed(found.value)
            )
        return strings

    def _prepared(self, found: Found, place: _Place) -> object:
        """The value with what people may leave to the reader: quotes, lists by commas, folders' bases."""
        if get_origin(place.hint) is tuple:
            return self._list(found, place)
        value = self._item(found.value, found, place.hint)
        if isinstance(value, (int, float)) and MOST_NUMBER < value < math.inf:
            _, most = config_keys.limits_of(place.field)
            if most is None:
                raise _error(place.path, found, _shown(found), f"at most {MOST_NUMBER}")
        if place.spec.milliseconds and isinstance(value, (int, float)) and not isinstance(value, bool):
            return value / 1000
        return value

    def _list(self, found: Found, place: _Place) -> object:
        item = get_args(place.hint)[0]
        if place.spec.switch and isinstance(found.value, bool):
            return get_args(item) if found.value else ()
        value = found.value
        if found.text is not None and isinstance(value, str):
            value = [item.strip() for item in found.text.split(",") if item.strip()]
        if not isinstance(value, (list, tuple)):
            return value
        return tuple(self._item(each, found, item) for each in value)

    def _item(self, value: object, found: Found, hint: Any) -> object:
        if hint is Path:
            return self._path(value, found)
        return _text(value, found) if hint is str else value

    def _path(self, value: object, found: Found) -> object:
        text = _text(value, found)
        return absolute(text, found.origin.base, self._user_home) if isinstance(text, str) else text

    def _refused(self, error: ErrorDetails, prefix: KeyPath, places: Mapping[str, _Place]) -> SettingsError:
        context = error.get("ctx", {})
        if error["type"] == "conflict":
            return SettingsError("settings", context["keys"], context["found"], context["allowed"])
        place = places[str(error["loc"][0])]
        allowed = _allowed(error, place)
        found = self.layers.take(place.path)
        if found is None:
            return SettingsError(self.where(prefix), ".".join(place.path), repr(place.field.default), allowed)
        return _error(place.path, found, _shown(found), allowed)


def bare(hint: Any) -> Any:
    """The type without `| None`, and without the name of a `NewType`."""
    if get_origin(hint) in {Union, UnionType}:
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    return hint.__supertype__ if isinstance(hint, NewType) else hint


def _typed(value: float) -> str:
    """A number, or true or false, as a file has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _text(value: object, found: Found) -> object:
    """The text that a person means; `-c model=5` is one, too. What cannot be one stays as it is."""
    if isinstance(value, Path):
        return str(value)
    typed = found.text is not None and not isinstance(found.value, list)
    return found.text if typed and not isinstance(value, str) else value


_STRING = "a string in quotes"
_ALLOWED: Mapping[str, Callable[[Mapping[str, Any], config_keys.Setting], str]] = {
    "bool_type": lambda ctx, spec: "true or false",
    "float_type": lambda ctx, spec: "a number",
    "int_type": lambda ctx, spec: "a whole number",
    "tuple_type": lambda ctx, spec: "a list",
    "string_type": lambda ctx, spec: _STRING,
    "is_instance_of": lambda ctx, spec: _STRING,
    "greater_than_equal": lambda ctx, spec: f"at least {_written(ctx['ge'], spec)}",
    "less_than_equal": lambda ctx, spec: f"at most {_written(ctx['le'], spec)}",
    "string_pattern_mismatch": lambda ctx, spec: f"must match {ctx['pattern'].removeprefix('^')[:-1]}",
    "unfit": lambda ctx, spec: str(ctx["allowed"]),
}
"""The message for each kind of refusal that pydantic makes of a table's fields."""


def _allowed(error: ErrorDetails, place: _Place) -> str:
    """The values that would be accepted in the place of a refused value."""
    kind = error["type"]
    if place.spec.switch:
        return f"true, false, or a list of {', '.join(get_args(get_args(place.hint)[0]))}"
    if kind == "literal_error":
        return "allowed are " + ", ".join(f'"{each}"' for each in get_args(place.hint))
    least, _ = config_keys.limits_of(place.field)
    if kind == "finite_number":
        return "a finite number" if least is None else f"at least {_written(least, place.spec)}, and finite"
    told = _ALLOWED.get(kind)
    return told(error.get("ctx", {}), place.spec) if told else error["msg"]


def _written(limit: float, spec: config_keys.Setting) -> str:
    return f"{limit * 1000 if spec.milliseconds else limit:g}"


def _shown(found: Found) -> str:
    if found.text is not None:
        shown = repr(found.text)
    else:
        shown = f'"{found.value}"' if isinstance(found.value, str) else str(found.value)
    return _PARAMETER.sub(_parameter, _USER_OF_ANY_URL.sub(HIDDEN, shown))


def _error(path: KeyPath, found: Found, shown: str, allowed: str) -> SettingsError:
    return SettingsError(
        found.origin.where, ".".join(path), HIDDEN if _may_be_secret(path) else shown, allowed
    )


_OF_NAMES: Mapping[str, type[config_keys.Table]] = {
    "model_providers": config_keys.ProviderSettings,
    "mcp_servers": config_keys.McpServerSettings,
}
_ANY_NAME = "*"
_VARIABLES: Final = frozenset({("shell_environment_policy", "set"), ("mcp_servers", _ANY_NAME, "env")})
"""Tables of variables."""


def _may_be_secret(path: KeyPath) -> bool:
    """Whether a value there, or a part of it, may be a secret: a person may hand an error on."""
    if path[0] == "webhook" or any(part == "set" or "secret" in part or "headers" in part for part in path):
        return True
    return any(_place_of(path)[: len(key)] == key for key in _hidden_keys())


def _place_of(path: KeyPath) -> KeyPath:
    return (path[0], _ANY_NAME, *path[2:]) if path[0] in _OF_NAMES else path


def permitted(path: KeyPath, value: object) -> str:
    """The value of a key as a person reads what they permit by it: all but secrets.

    Variables of commands and of servers are shown, unless they look secret: some of them run programs.
    """
    shown = json.dumps(value, ensure_ascii=False, default=str)
    shown = _PARAMETER.sub(_parameter, _USER_OF_ANY_URL.sub(HIDDEN, shown))
    place, named = _place_of(path), any("secret" in part or "headers" in part for part in path)
    if place[:-1] in _VARIABLES:
        return HIDDEN if secret_variables({path[-1]: str(value)}) else shown
    return HIDDEN if named or any(place[: len(key)] == key for key in _hidden_keys()) else shown


@cache
def _hidden_keys() -> frozenset[KeyPath]:
    """The keys whose values are kept from `repr`."""
    records: list[tuple[KeyPath, type[config_keys.Table]]] = [((), record) for record in KEYED_RECORDS]
    records += [((table, _ANY_NAME), record) for table, record in _OF_NAMES.items()]
    return frozenset(
        (*above, *(spec.key or name).split("."))
        for above, record in records
        for name, spec in config_keys.settings_of(record)
        if not record.model_fields[name].repr
    )
