"""The person's own settings file, written by a door."""

from __future__ import annotations

import asyncio
import hashlib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.gateways.app_server.ports import BadSetting, ConfigWrite, ConfigWritten
from orchestrator.private_files import make_folder, new_file
from orchestrator.protocol.wire import JsonValue
from orchestrator.sandbox.policy import PROJECT_CONFIG
from orchestrator.settings import Settings, SettingsError, SettingsSources, load_settings
from orchestrator.settings.file_edits import CannotEdit, with_edits
from orchestrator.settings.layers import FILE_LIMIT_BYTES, KeyPath, parse_override
from orchestrator.settings.load import NO_EFFECT


@record
class SavedSettings:
    """The file of the person whose gateway this is."""

    settings: Settings
    sources: SettingsSources
    """The sources of the gateway's settings: what the changed file makes of them is checked first."""

    async def write(self, write: ConfigWrite) -> ConfigWritten:
        """Sets keys, and takes out those that are None, all or none; raises `BadSetting`."""
        return await asyncio.to_thread(self._write, write)

    def _write(self, write: ConfigWrite) -> ConfigWritten:
        file = self.settings.config_file or self.settings.home / PROJECT_CONFIG
        if write.file is not None and Path(write.file) != file:
            raise BadSetting(f"filePath: the settings stand in {file}, and no other file is written")
        try:
            text = file.read_text(encoding="utf-8") if file.exists() else ""
            if write.version not in (None, _version(text)):
                raise BadSetting(f"{file} has changed since that version: config/read tells what is in force")
            changed = with_edits(text, write.edits)
            if len(changed.encode()) > FILE_LIMIT_BYTES:
                raise BadSetting(f"{file} would be larger than {FILE_LIMIT_BYTES:,} bytes")
            self._replace(file, changed)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, CannotEdit) as error:
            raise BadSetting(f"{file} was not changed: {error}") from None
        hidden = tuple(".".join(path) for path, _ in write.edits if self._overrides(path))
        return ConfigWritten(file, _version(changed), hidden)

    def _overrides(self, path: KeyPath) -> bool:
        """Whether the command line of this gateway counts before its file."""
        key = ".".join(path)
        return any(key == named or key.startswith(f"{named}.") for named in self.settings.named)

    def _replace(self, file: Path, text: str) -> None:
        """Puts the new content in the place of the old, whole or not at all, if it makes settings."""
        make_folder(file.parent)
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        draft.unlink(missing_ok=True)
        try:
            with os.fdopen(new_file(draft), "w", encoding="utf-8") as opened:
                opened.write(text)
            self._check(draft, file)
            if file.exists() and not file.is_relative_to(self.settings.home):
                # A file that other users of the machine share stays theirs to read.
                draft.chmod(file.stat().st_mode & 0o777)
            draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)

    def _check(self, draft: Path, file: Path) -> None:
        """Raises `BadSetting` for a value that cannot be, and for a key that nobody knows."""
        try:
            settings = load_settings(replace(self.sources, config_file=draft))
        except SettingsError as error:
            raise BadSetting(str(error).replace(str(draft), str(file))) from None
        warnings = [warning.replace(str(draft), str(file)) for warning in settings.warnings]
        for warning in warnings:
            if warning not in self.settings.warnings and not warning.endswith(NO_EFFECT):
                raise BadSetting(warning)


def _version(text: str) -> str:
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def saved_tables(
    settings: Settings, sources: SettingsSources
) -> tuple[str | None, Mapping[str, Mapping[str, JsonValue]], Mapping[str, str]]:
    """The chosen profile, the profiles, and the folders with a terminal's trust, as the file has them."""
    file = settings.config_file or settings.home / PROJECT_CONFIG
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError):
        table = {}
    profiles, projects = (_tables(table.get(name)) for name in ("profiles", "projects"))
    trust = {
        path: level for path, one in projects.items() if isinstance(level := one.get("trust_level"), str)
    }
    chosen = _chosen_profile(sources) or table.get("profile")
    return (chosen if isinstance(chosen, str) else None), profiles, trust


def _chosen_profile(sources: SettingsSources) -> object:
    """The profile that the command line or the environment names."""
    said = dict(parse_override(override) for override in sources.overrides)
    return sources.flags.get("profile") or said.get(("profile",)) or sources.environ.get("DENDRO_PROFILE")


def _tables(value: object) -> dict[str, dict[str, JsonValue]]:
    named = value.items() if isinstance(value, dict) else ()
    return {name: table for name, table in named if isinstance(table, dict)}
