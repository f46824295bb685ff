"""Methods that read the settings in force for new sessions, never with a key, and write the person's file."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

import orjson
from pydantic import Field

from orchestrator.config_keys import McpServerSettings, ProviderSettings
from orchestrator.gateways.app_server.door_ports import BadSetting, ConfigWrite, ConfigWritten, Saved
from orchestrator.gateways.app_server.messages import RpcError, bad_params
from orchestrator.gateways.app_server.method import Method, NoParams, Params, Result, Whose
from orchestrator.gateways.app_server.methods.catalogue import Folder, public_url
from orchestrator.gateways.app_server.turn_params import approval_json
from orchestrator.gateways.principals import Scope
from orchestrator.protocol.wire import JsonMapping, JsonObject

if TYPE_CHECKING:
    from orchestrator.gateways.app_server.door import Door


MOST_PATH, MOST_EDITS, MOST_VALUE = 1_024, 100, 64 << 10


class ConfigRead(Params):
    """The settings of a folder; they are the same for each: sessions get those of the gateway."""

    cwd: Folder | None = None
    include_layers: bool = False


async def config_read(door: Door, asked: ConfigRead) -> Result:
    """The settings by their keys in the file. Layers are not told: what they made is."""
    config = _config(await door.ports.saved(), owner=door.principal.sees_machine)
    return {"config": config, "origins": {}, "layers": [] if asked.include_layers else None}


def _config(saved: Saved, *, owner: bool) -> JsonObject:
    offer = saved.offer
    defaults, models = offer.defaults, offer.models
    policy = defaults.sandbox.wire()
    config: JsonObject = {
        "model": defaults.model,
        "model_provider": defaults.model_provider,
        "model_reasoning_effort": defaults.effort,
        "model_reasoning_summary": defaults.summary,
        "model_verbosity": defaults.verbosity,
        "model_context_window": models.context_window,
        "model_auto_compact_token_limit": models.auto_compact_token_limit,
        "review_model": models.review_model,
        "personality": defaults.personality,
        "approval_policy": approval_json(defaults.approval_policy),
        "sandbox_mode": policy["mode"],
        "sandbox_workspace_write": {name: policy[name] for name in _FLAGS if name in policy},
        "web_search": "live" if offer.tools.web_search else "disabled",
        "profiles": {},
        "projects": {},
        "mcp_servers": {},
        "model_providers": {},
    }
    if owner:
        # Folders, commands, addresses and names of variables are the machine's.
        if roots := policy.get("writable_roots"):
            config["sandbox_workspace_write"]["writable_roots"] = roots
        config["profile"] = saved.profile
        config["profiles"] = {name: _plain(one) for name, one in saved.profiles.items()}
        config["projects"] = {path: {"trust_level": level} for path, level in saved.projects.items()}
        config["mcp_servers"] = {name: _server(server) for name, server in offer.servers.items()}
        config["model_providers"] = {name: _provider(one) for name, one in models.providers.items()}
    return config


_FLAGS = ("network_access", "exclude_tmpdir_env_var", "exclude_slash_tmp")


def _plain(profile: JsonMapping) -> JsonObject:
    """A profile without its tables, which may hold keys of providers."""
    return {key: value for key, value in profile.items() if not isinstance(value, dict | list)}


def _server(server: McpServerSettings) -> JsonObject:
    """A server without its arguments, headers and variables, which may hold keys."""
    if server.url is not None:
        return {"url": public_url(server.url)}
    return {"command": server.command}


def _provider(provider: ProviderSettings) -> JsonObject:
    return {
        "name": provider.name,
        "base_url": public_url(provider.base_url),
        "env_key": provider.env_key,
        "wire_api": provider.wire_api,
        "request_max_retries": provider.request_max_retries,
        "stream_max_retries": provider.stream_max_retries,
        "stream_idle_timeout_ms": int(provider.stream_idle_timeout_s * 1000),
    }


async def requirements_read(door: Door, _: NoParams) -> Result:
    """Nothing that an administrator forbids: there is no such file yet."""
    return {"supportsIndependentSpeedModes": None, "requirements": None}


# ── writing ───────────────────────────────────────────────────────────────────────────────────────


class ConfigEdit(Params):
    """A key by its dotted path, and its new value; null takes it out."""

    key_path: Annotated[str, Field(min_length=1, max_length=MOST_PATH)]
    value: Any
    merge_strategy: Literal["replace", "upsert"]

    def edits(self) -> Iterator[tuple[tuple[str, ...], object]]:
        """The edits that it asks for: with `upsert` those of each member of a table."""
        path = _parts(self.key_path)
        if self.merge_strategy == "upsert" and isinstance(self.value, dict) and self.value:
            yield from _leaves(path, self.value)
        else:
            yield path, self.value


class ConfigValueWrite(ConfigEdit):
    """An edit of the person's settings file."""

    file_path: str | None = None
    expected_version: str | None = None


class ConfigBatchWrite(Params):
    """Edits that count together or not at all."""

    edits: Annotated[tuple[ConfigEdit, ...], Field(max_length=MOST_EDITS)]
    file_path: str | None = None
    expected_version: str | None = None


async def value_write(door: Door, params: ConfigValueWrite) -> Result:
    """Writes one key; sessions to come have it when the gateway starts anew."""
    return await write(door, ConfigWrite(tuple(params.edits()), params.file_path, params.expected_version))


async def batch_write(door: Door, params: ConfigBatchWrite) -> Result:
    """Writes several keys, all or none."""
    edits = tuple(one for edit in params.edits for one in edit.edits())
    return await write(door, ConfigWrite(edits, params.file_path, params.expected_version))


async def write(door: Door, wanted: ConfigWrite) -> Result:
    """Writes keys into the person's file; raises `RpcError`."""
    if door.ports.write_settings is None:
        raise RpcError("this server writes no settings: edit the settings file")
    if len(orjson.dumps([value for _, value in wanted.edits])) > MOST_VALUE:
        raise bad_params(f"value: at most {MOST_VALUE:,} bytes as JSON can be written at once")
    try:
        done = await door.ports.write_settings(wanted)
    except BadSetting as error:
        raise RpcError(str(error)) from None
    return {
        "status": "okOverridden" if done.hidden else "ok",
        "filePath": str(done.file),
        "version": done.version,
        "overriddenMetadata": await _overridden(door, done) if done.hidden else None,
    }


async def _overridden(door: Door, done: ConfigWritten) -> JsonObject:
    value: object = _config(await door.ports.saved(), owner=True)
    for part in done.hidden[0].split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return {
        "message": f"the gateway's command line sets {', '.join(done.hidden)}, and counts before its file",
        "effectiveValue": value,
        "overridingLayer": {"name": {"type": "sessionFlags"}, "version": ""},
    }


def _parts(path: str) -> tuple[str, ...]:
    """The parts of a dotted key, a quoted one with its dots; raises `RpcError`."""
    parts: list[str] = []
    try:
        table: object = tomllib.loads(f"{path} = 0")
        while isinstance(table, dict):
            ((part, table),) = table.items()
            parts.append(part)
    except ValueError:
        raise bad_params(f"keyPath: {path[:100]!r} is no key of a settings file") from None
    return tuple(parts)


def _leaves(path: tuple[str, ...], table: Mapping[str, object]) -> Iterator[tuple[tuple[str, ...], object]]:
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves((*path, key), value)
        else:
            yield (*path, key), value


METHODS: Mapping[str, Method] = {
    "config/read": Method(ConfigRead, config_read, Scope.READ),
    "configRequirements/read": Method(NoParams, requirements_read, Scope.READ),
    "config/value/write": Method(ConfigValueWrite, value_write, Scope.ADMIN, Whose.SETTINGS),
    "config/batchWrite": Method(ConfigBatchWrite, batch_write, Scope.ADMIN, Whose.SETTINGS),
}
