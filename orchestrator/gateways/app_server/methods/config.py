"""Methods that read the settings in force for new sessions. No key is ever among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from orchestrator.gateways.app_server.method import Method, NoParams, Params, Result
from orchestrator.gateways.app_server.methods.catalogue import Folder, public_url
from orchestrator.gateways.app_server.offer import Offer, is_owner
from orchestrator.gateways.app_server.write_settings import approval_json
from orchestrator.protocol.wire import JsonObject
from orchestrator.tables import McpServerSettings, ProviderSettings

if TYPE_CHECKING:
    from orchestrator.gateways.app_server.door import Door


class ConfigRead(Params):
    """The settings of a folder; they are the same for each: sessions get those of the gateway."""

    cwd: Folder | None = None
    include_layers: bool = False


async def config_read(door: Door, asked: ConfigRead) -> Result:
    """The settings by their keys in the file. Layers are not told: what they made is."""
    config = _config(door.ports.offer, owner=is_owner(door.principal))
    return {"config": config, "origins": {}, "layers": [] if asked.include_layers else None}


def _config(offer: Offer, *, owner: bool) -> JsonObject:
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
        "sandbox_workspace_write": {name: policy[name] for name in _WORKSPACE_WRITE if name in policy},
        "web_search": "live" if offer.tools.web_search else "disabled",
        "profiles": {},
        "projects": {},
        "mcp_servers": {},
        "model_providers": {},
    }
    if owner:
        # Commands, addresses and names of variables are those of the machine's user.
        config["mcp_servers"] = {name: _server(server) for name, server in offer.servers.items()}
        config["model_providers"] = {name: _provider(one) for name, one in models.providers.items()}
    return config


_WORKSPACE_WRITE = ("writable_roots", "network_access", "exclude_tmpdir_env_var", "exclude_slash_tmp")


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


METHODS: Mapping[str, Method] = {
    "config/read": Method(ConfigRead, config_read),
    "configRequirements/read": Method(NoParams, requirements_read),
}
