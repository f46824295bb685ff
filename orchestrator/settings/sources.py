"""The sources of values: the file, the chosen profile, the environment, `-c` and flags.

The one place in the system that reads the environment of its process. Knows which keys exist, not what
they mean.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Any

from orchestrator import config_keys
from orchestrator.core.frozen import record
from orchestrator.home import absolute, data_home, user_home, without_links
from orchestrator.sandbox.policy_paths import PROJECT_CONFIG
from orchestrator.sandbox.trusted_files import own_link
from orchestrator.settings.folder_trust import FolderConfig, FolderRules, TrustList, written
from orchestrator.settings.layers import (
    Found,
    KeyPath,
    Layers,
    Origin,
    Rank,
    SettingsError,
    leaves,
    parse_override,
    parse_toml,
    parse_value,
    read_config,
    read_folder_file,
)

# ── repository ────────────────────────────────────────────────────────────────────────────────────
# Detection of a git work tree: git itself is asked, because a `.git` may be empty, or nobody's.


def in_work_tree(folder: Path, environ: Mapping[str, str]) -> bool:
    """Whether git works here; False without git. Blocking: some 2 ms where a `.git` lies above."""
    if not any(os.path.lexists(parent / ".git") for parent in (folder, *without_links(folder).parents)):
        return False
    from orchestrator.sandbox.git import GitFailed, run_git

    try:
        return run_git(folder, "rev-parse", "--is-inside-work-tree", person=environ).text == "true"
    except (GitFailed, OSError, ValueError):
        return False


# ── sources ───────────────────────────────────────────────────────────────────────────────────────


Usual = Mapping[KeyPath, Callable[[], object]]
"""Defaults that depend on the machine, looked up only if they are needed."""
MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
KEYED_RECORDS: tuple[type[config_keys.Table], ...] = (
    config_keys.SessionDefaults,
    config_keys.SandboxPolicy,
    config_keys.AgentSettings,
    config_keys.ModelSettings,
    config_keys.EnvironmentPolicy,
    config_keys.RedisSettings,
    config_keys.ChainSettings,
    config_keys.WorkerSettings,
    config_keys.LogSettings,
    config_keys.UpkeepSettings,
    config_keys.ReceiptsSettings,
    config_keys.ApprovalsSettings,
    config_keys.WebhookSettings,
    config_keys.ToolSettings,
    config_keys.SandboxSettings,
    config_keys.WireSettings,
    config_keys.GatewaySettings,
    config_keys.AuthSettings,
    config_keys.ExecSettings,
    config_keys.WorkspaceSettings,
    config_keys.FrontSettings,
)
TRUSTED_ONLY: frozenset[type[config_keys.Table]] = frozenset(
    {
        config_keys.RedisSettings,
        config_keys.ChainSettings,
        config_keys.WorkerSettings,
        config_keys.LogSettings,
        config_keys.UpkeepSettings,
        config_keys.ReceiptsSettings,
        config_keys.ApprovalsSettings,
        config_keys.WebhookSettings,
        config_keys.WireSettings,
        config_keys.GatewaySettings,
        config_keys.AuthSettings,
        config_keys.ExecSettings,
        config_keys.WorkspaceSettings,
    }
)
"""Records of which a folder's file may set nothing while it is not trusted; every field of the others
says so for itself. Tables with names of the user's own (providers, prices, profiles) are never free."""
INSTRUCTIONS_FILES: tuple[KeyPath, ...] = (("model_instructions_file",), ("experimental_instructions_file",))
BUILT_IN: Mapping[str, object] = {
    "model_providers": {
        "openai": {"name": "OpenAI", "base_url": "https://api.openai.com/v1", "env_key": "OPENAI_API_KEY"}
    }
}
SHARED_RETRY_KEYS = ("request_max_retries", "stream_max_retries", "stream_idle_timeout_ms")


@record
class SettingsSources:
    """All that settings are made of.

    `flags` are keyed like the file (`worker.concurrency`), with `home` and `cwd` beside; None = not given.
    """

    cwd: Path
    environ: Mapping[str, str] = field(repr=False)
    config_file: Path | None = None
    overrides: Sequence[str] = ()
    flags: Mapping[str, object] = field(default_factory=dict)
    machine_id_files: Sequence[Path] = MACHINE_ID_FILES
    in_work_tree: Callable[[Path, Mapping[str, str]], bool] = in_work_tree
    """Whether git works in a folder; a process that makes many sessions remembers it."""

    @classmethod
    def of_process(
        cls,
        config_file: Path | None = None,
        overrides: Sequence[str] = (),
        flags: Mapping[str, object] | None = None,
    ) -> SettingsSources:
        """The sources of this process: its folder and its environment.

        Raises `SettingsError` in a folder that was removed.
        """
        try:
            folder = Path.cwd()
        except FileNotFoundError:
            gone = "it was removed: go to a folder that is there, and start again"
            raise SettingsError("this process", "", "its folder", gone) from None
        return cls(folder, dict(os.environ), config_file, overrides, flags or {})

    @property
    def user_home(self) -> Path:
        """The user's home folder."""
        return user_home(self.environ)

    @property
    def home(self) -> Path:
        """Dendro's data folder."""
        given = self.flags.get("home")
        return data_home(str(given) if given else None, self.environ, self.cwd)

    @property
    def session_cwd(self) -> Path:
        """The working folder of new sessions.

        One that is named by a link of this user's is the folder that the link leads to now: commands of other
        sessions may put another link there later.
        """
        folder = absolute(str(self.flags.get("cwd") or "."), self.cwd, self.user_home)
        return folder if own_link(folder) is None else without_links(folder)


def own_file(sources: SettingsSources) -> Path | None:
    """The person's own configuration file: the one that was named, else that of the home folder."""
    if sources.config_file is not None:
        return sources.cwd / sources.config_file
    file = sources.home / PROJECT_CONFIG
    return file if file.is_file() else None


def folder_file(sources: SettingsSources) -> Path | None:
    """The current folder's file, if it counts: not beside a named one, and not the home folder's own."""
    file = sources.cwd / PROJECT_CONFIG
    if sources.config_file is not None or not file.is_file():
        return None
    return None if without_links(file.parent) == without_links(sources.home) else file


def gather(sources: SettingsSources, usual: Usual) -> tuple[Layers, FolderConfig | None]:
    """Lays all sources over one another. `usual` gives defaults that depend on the machine."""
    layers = Layers()
    layers.merge(BUILT_IN, Origin(Rank.DEFAULT, "default", sources.cwd))
    if (file := own_file(sources)) is not None:
        layers.merge(parse_toml(file, read_config(file)), Origin(Rank.FILE, str(file), file.parent))
    folder = _lay_folder(layers, sources, usual)
    stronger = [*_from_environment(sources), *_from_overrides(sources), *_from_flags(sources)]
    _merge_profile(layers, stronger)
    for path, found in stronger:
        layers.assign(path, found)
    return layers, folder


def _lay_folder(layers: Layers, sources: SettingsSources, usual: Usual) -> FolderConfig | None:
    """Lays the folder's file over the person's: what was hashed is what is read."""
    file = folder_file(sources)
    if file is None:
        return None
    content = read_folder_file(file)
    table, trusted = parse_toml(file, content), TrustList(sources.home).trusts(file, content)
    refused = [] if trusted else _folder_rules(usual).refused(table, layers)
    layers.merge(table, Origin(Rank.FOLDER, str(file), file.parent), without=frozenset(refused))
    obeyed = [path for path, _ in leaves(table) if path and path not in refused]
    return FolderConfig(file, trusted, tuple(map(written, refused)), tuple(map(written, obeyed)))


def _folder_rules(usual: Usual) -> FolderRules:
    return FolderRules([each for each in KEYED_RECORDS if each not in TRUSTED_ONLY], usual)


def keys_to_trust(file: Path, content: bytes) -> Sequence[tuple[KeyPath, object]]:
    """The keys of a folder's file that count only once it is trusted, whatever the person has set."""
    table = parse_toml(file, content)
    wanted = set(_folder_rules({}).refused(table, Layers()))
    return [(path, value) for path, value in leaves(table) if path in wanted]


def refused_keys(person: Layers, wanted: Mapping[str, object], usual: Usual) -> tuple[str, ...]:
    """The keys among these, dotted, that nobody but a person may set so over what `person` holds."""
    table: dict[str, object] = {}
    for key, value in wanted.items():
        inner = table
        *above, last = key.split(".")
        for part in above:
            found = inner.setdefault(part, {})
            if not isinstance(found, dict):
                return (key,)
            inner = found
        inner[last] = value
    return tuple(map(written, _folder_rules(usual).refused(table, person)))


@cache
def known_paths() -> tuple[KeyPath, ...]:
    """Every key with a fixed name; keys below tables named by the user are not among them."""
    keys = (spec.key for record in KEYED_RECORDS for _, spec in config_keys.settings_of(record))
    retries = ((key,) for key in SHARED_RETRY_KEYS)
    return ("profile",), *INSTRUCTIONS_FILES, *retries, *(tuple(key.split(".")) for key in keys)


def variable(path: KeyPath) -> str:
    """The environment variable of a key."""
    return "DENDRO_" + "_".join(path).upper()


@cache
def _variables() -> Mapping[str, KeyPath]:
    own = {variable(path): path for path in known_paths()}
    return {**own, "OPENAI_BASE_URL": ("model_providers", "openai", "base_url")}


def _from_environment(sources: SettingsSources) -> Iterator[tuple[KeyPath, Found]]:
    for name, path in _variables().items():
        if text := sources.environ.get(name):
            origin = Origin(Rank.ENVIRONMENT, f"environment variable {name}", sources.cwd)
            yield path, Found(parse_value(text), origin, text)


def _from_overrides(sources: SettingsSources) -> Iterator[tuple[KeyPath, Found]]:
    for override in sources.overrides:
        path, text = parse_override(override)
        yield path, Found(parse_value(text), Origin(Rank.OVERRIDE, "-c", sources.cwd), text)


def _from_flags(sources: SettingsSources) -> Iterator[tuple[KeyPath, Found]]:
    origin = Origin(Rank.FLAG, "command line", sources.cwd)
    for key, value in sources.flags.items():
        if value is not None and key not in {"home", "cwd"}:
            yield tuple(key.split(".")), Found(value, origin)


def named_keys(sources: SettingsSources) -> frozenset[str]:
    """The keys that the command line sets, the folder (`cwd`) among them."""
    named = {path for path, _ in (*_from_overrides(sources), *_from_flags(sources))}
    folder = {"cwd"} if sources.flags.get("cwd") else set()
    return frozenset(folder.union(map(".".join, named)))


def _merge_profile(layers: Layers, stronger: Sequence[tuple[KeyPath, Found]]) -> None:
    """Lays `[profiles.NAME]` over the file; the strongest source that names a profile chooses it."""
    named = [found for path, found in stronger if path == ("profile",)]
    in_file = layers.take(("profile",))
    chosen = named[-1] if named else in_file
    if chosen is None:
        return
    table = layers.below(("profiles", str(chosen.value)))
    if not table:
        allowed = ", ".join(layers.names(("profiles",))) or "none is defined"
        raise SettingsError(chosen.origin.where, "profile", repr(chosen.value), f"profiles here: {allowed}")
    for path, found in table.items():
        if not path and found.value != {}:
            raise SettingsError(
                found.origin.where, f"profiles.{chosen.value}", "a value", "a table of settings"
            )
        # An empty table in a profile says nothing; it must not clear the file's.
        if found.value != {}:
            where = f"{found.origin.where} [profiles.{chosen.value}]"
            layers.assign(path, replace(found, origin=replace(found.origin, rank=Rank.PROFILE, where=where)))


# ── overrides ─────────────────────────────────────────────────────────────────────────────────────
# Overrides as Codex's own clients write them, in the words of our settings.
#
# Clients of several doors hand them in: a command line has `key=value` texts, a request has a JSON
# object. Both become the texts of `-c`, so that they are checked, and refused, where all others are.
# Knows names of keys and what their values mean; must not read anything.


MOST_OVERRIDES = 256
OPENAI = ("model_providers", "openai")
RENAMED: Mapping[KeyPath, KeyPath] = {("openai_base_url",): (*OPENAI, "base_url")}
"""Keys with another name here."""
WEB_SEARCH: KeyPath = ("web_search",)
WEB_SEARCH_MODES: Mapping[object, bool] = {
    "live": True,
    "cached": True,
    "disabled": False,
    True: True,
    False: False,
}


def translated(overrides: Iterable[str]) -> tuple[str, ...]:
    """The overrides of a command line under our keys; what is ours already stays byte for byte.

    Raises `SettingsError` for a text that is no override, and for a mode of search that nobody knows.
    """
    return tuple(_translated(override) for override in overrides)


def _translated(override: str) -> str:
    path, text = parse_override(override)
    if path in RENAMED:
        return f"{written_key(RENAMED[path])}={text}"
    if path == WEB_SEARCH:
        return f"tools.web_search={_searches(parse_value(text))}"
    return override


def _searches(mode: object) -> str:
    if not isinstance(mode, str | bool) or mode not in WEB_SEARCH_MODES:
        raise SettingsError("-c", "web_search", repr(mode), "live, cached or disabled")
    return "true" if WEB_SEARCH_MODES[mode] else "false"


def of_object(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The overrides of a request's `config`, whose keys may be dotted, nested, or both; nulls set nothing.

    Raises `SettingsError` for more of them than a person would write.
    """
    texts = tuple(_texts(config))
    if len(texts) > MOST_OVERRIDES:
        raise SettingsError("config", "", f"{len(texts):,} keys", f"at most {MOST_OVERRIDES}")
    return translated(texts)


def _texts(config: Mapping[str, Any]) -> Iterator[str]:
    for path, value in leaves(config):
        if value is not None and path:
            # A dotted key names a table, as in the file; the keys inside a table are names as they are.
            head, rest = parse_override(f"{path[0]}=")
            if rest:
                raise SettingsError("config", "", repr(path[0]), "a key, dotted as in the file")
            yield f"{written_key((*head, *path[1:]))}={_toml(value)}"


def written_key(path: KeyPath) -> str:
    """A key as a file has it: parts that are no bare words are quoted."""
    # An override ends its key at the first `=`, a quoted one too.
    quoted = (part if _is_bare(part) else _string(part).replace("=", "\\u003d") for part in path)
    return ".".join(quoted)


def _is_bare(part: str) -> bool:
    return bool(part) and part.isascii() and part.replace("-", "").replace("_", "").isalnum()


def _toml(value: object) -> str:
    """A JSON value as TOML; a table inside an array is an inline one."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case Mapping():
            members = (f"{written_key((str(name),))} = {_toml(one)}" for name, one in value.items())
            return "{" + ", ".join(members) + "}"
        case list() | tuple():
            return "[" + ", ".join(_toml(one) for one in value if one is not None) + "]"
        case _:
            return json.dumps(value)


def _string(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for those of characters outside of the basic plane."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
