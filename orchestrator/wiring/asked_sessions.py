"""Sessions that a program asks for, with settings in the name of a model: never beyond the person's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from orchestrator.core.ids import SessionId
from orchestrator.gateways.client import Client
from orchestrator.gateways.mcp_server import NotPermitted, RunArguments
from orchestrator.protocol.ops import WorkspaceSource
from orchestrator.sandbox.git import in_git_thread
from orchestrator.settings import Settings, SettingsError, SettingsSources, keys_that_loosen, load_settings
from orchestrator.tables import SESSION_KEYS
from orchestrator.wiring.open_deployment import Opened, new_session, portable_session

Sources = Callable[[Mapping[str, object]], SettingsSources]
"""The person's sources with these flags laid over them."""


class AskedSessions:
    """Makes sessions in one folder or below it, or in copies of those folders, as the settings say."""

    def __init__(self, found: Opened, sources: Sources, client: Client, folder: Path) -> None:
        self._found = found
        self._sources = sources
        self._client = client
        self._folder = folder.resolve()

    async def create(self, asked: RunArguments) -> SessionId:
        """A session as a `run` wants it; raises `NotPermitted` for more than the person permits, `ViewError`
        for a folder that cannot be copied.
        """
        # The folder is looked at, and files are read.
        settings = await in_git_thread(self._settings, asked)
        if self._found.settings.gateway.workspace == "host":
            return await new_session(settings, self._client)
        copied = WorkspaceSource(folder=str(settings.session_defaults.cwd))
        return await portable_session(replace(self._found, settings=settings), self._client, copied)

    def _settings(self, asked: RunArguments) -> Settings:
        folder = self._in_folder(asked.cwd)
        wanted = {key: value for key, value in _wanted(asked).items() if value is not None}
        try:
            if refused := keys_that_loosen(self._sources({"cwd": str(folder)}), wanted):
                raise NotPermitted(
                    f"only a person may set {', '.join(refused)} so: it permits more than this server was "
                    "started with; start it with it (dendro mcp-server -c KEY=VALUE), or leave it out"
                )
            return load_settings(self._sources({"cwd": str(folder), **wanted}))
        except SettingsError as error:
            raise NotPermitted(str(error)) from error

    def _in_folder(self, cwd: str | None) -> Path:
        try:
            folder = (self._folder / (cwd or ".")).resolve()
            there = folder.is_dir()
        except (OSError, ValueError):
            raise NotPermitted(f"cwd: {cwd!r} is no folder") from None
        if not folder.is_relative_to(self._folder):
            raise NotPermitted(
                f"cwd: {cwd} is outside of {self._folder}, the folder that this server was started for; "
                "start it with -C and a folder above both"
            )
        if not there:
            raise NotPermitted(f"cwd: {cwd} is no folder")
        return folder


def _wanted(asked: RunArguments) -> dict[str, object]:
    named = {key: getattr(asked, name, None) for name, key in SESSION_KEYS.items()}
    return _flat(asked.config or {}) | {key: value for key, value in named.items() if value is not None}


def _flat(table: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """The values of nested tables by their dotted keys."""
    flat: dict[str, object] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
