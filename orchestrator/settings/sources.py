"""Where values are found: the file, the chosen profile, the environment, `-c` and flags.

The one place in the system that reads the environment of its process. Knows which keys exist, not what
they mean.
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from orchestrator.settings.layers import (
    Found,
    KeyPath,
    Layers,
    Origin,
    Rank,
    SettingsError,
    absolute,
    parse_override,
    parse_value,
    read_toml,
)
from orchestrator.settings.records import (
    SETTING,
    AgentSettings,
    ChainSettings,
    EnvironmentPolicy,
    LogSettings,
    ModelSettings,
    RedisSettings,
    SandboxPolicy,
    SandboxSettings,
    SessionDefaults,
    Setting,
    ToolSettings,
    UpkeepSettings,
    WireSettings,
    WorkerSettings,
)

FILE_NAME = "dendro.toml"
MACHINE_ID_FILES = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))
KEYED_RECORDS: tuple[type, ...] = (
    SessionDefaults,
    SandboxPolicy,
    AgentSettings,
    ModelSettings,
    EnvironmentPolicy,
    RedisSettings,
    ChainSettings,
    WorkerSettings,
    LogSettings,
    UpkeepSettings,
    ToolSettings,
    SandboxSettings,
    WireSettings,
)
INSTRUCTIONS_FILES: tuple[KeyPath, ...] = (("model_instructions_file",), ("experimental_instructions_file",))
BUILT_IN: Mapping[str, object] = {
    "model_providers": {
        "openai": {"name": "OpenAI", "base_url": "https://api.openai.com/v1", "env_key": "OPENAI_API_KEY"}
    }
}
SHARED_RETRY_KEYS = ("request_max_retries", "stream_max_retries", "stream_idle_timeout_ms")


@dataclass(frozen=True, slots=True)
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

    @classmethod
    def of_process(
        cls,
        config_file: Path | None = None,
        overrides: Sequence[str] = (),
        flags: Mapping[str, object] | None = None,
    ) -> SettingsSources:
        """Those of this process: its folder and its environment."""
        return cls(Path.cwd(), dict(os.environ), config_file, overrides, flags or {})

    @property
    def user_home(self) -> Path:
        """The user's home folder."""
        return Path(self.environ.get("HOME") or pwd.getpwuid(os.getuid()).pw_dir)

    @property
    def home(self) -> Path:
        """Dendro's data folder."""
        given = self.flags.get("home") or self.environ.get("DENDRO_HOME")
        if given:
            return absolute(str(given), self.cwd, self.user_home)
        data = self.environ.get("XDG_DATA_HOME", "")
        # The base directory specification: a relative path is to be ignored.
        return (Path(data) if data.startswith("/") else self.user_home / ".local/share") / "dendro"

    @property
    def session_cwd(self) -> Path:
        """The working folder of new sessions."""
        return absolute(str(self.flags.get("cwd") or "."), self.cwd, self.user_home)


def find_file(sources: SettingsSources) -> Path | None:
    """The configuration file in force, None if there is none."""
    if sources.config_file is not None:
        return sources.cwd / sources.config_file
    candidates = (sources.cwd / FILE_NAME, sources.home / FILE_NAME)
    return next((file for file in candidates if file.is_file()), None)


def gather(sources: SettingsSources, config_file: Path | None) -> Layers:
    """Lays all sources over one another."""
    layers = Layers()
    layers.merge(BUILT_IN, Origin(Rank.DEFAULT, "default", sources.cwd))
    if config_file is not None:
        layers.merge(read_toml(config_file), Origin(Rank.FILE, str(config_file), config_file.parent))
    stronger = [*_from_environment(sources), *_from_overrides(sources), *_from_flags(sources)]
    _merge_profile(layers, stronger)
    for path, found in stronger:
        layers.assign(path, found)
    return layers


def known_paths() -> Iterator[KeyPath]:
    """Every key with a fixed name; those below tables named by the user are not among them."""
    yield from (("profile",), *INSTRUCTIONS_FILES, *((key,) for key in SHARED_RETRY_KEYS))
    for record in KEYED_RECORDS:
        for _, spec in settings_of(record):
            yield tuple(spec.key.split("."))


def variable(path: KeyPath) -> str:
    """The environment variable of a key."""
    return "DENDRO_" + "_".join(path).upper()


def settings_of(record: type) -> Iterator[tuple[str, Setting]]:
    """The fields of a record that can be set, with what the reader must know of each."""
    for each in fields(record):
        if (spec := each.metadata.get(SETTING)) is not None:
            yield each.name, spec


def _from_environment(sources: SettingsSources) -> Iterator[tuple[KeyPath, Found]]:
    paths = {variable(path): path for path in known_paths()}
    paths["OPENAI_BASE_URL"] = ("model_providers", "openai", "base_url")
    for name, path in paths.items():
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
