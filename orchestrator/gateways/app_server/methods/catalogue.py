"""Methods that list what new sessions may use: models, providers, modes, skills."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit, urlunsplit

from pydantic import Field

from orchestrator.config_keys import ProviderSettings
from orchestrator.gateways.app_server.door_ports import Offer
from orchestrator.gateways.app_server.messages import RpcError
from orchestrator.gateways.app_server.method import Method, NoParams, PageParams, Params, Result, page
from orchestrator.gateways.principals import Scope
from orchestrator.protocol.catalog import SkillsListEntry
from orchestrator.protocol.wire import JsonObject
from orchestrator.sandbox.git import in_git_thread

if TYPE_CHECKING:
    from orchestrator.gateways.app_server.door import Door

EFFORTS = ("low", "medium", "high")
USUAL_EFFORT = "medium"
_EFFORT_WORDS: Mapping[str, str] = {
    "none": "No reasoning",
    "minimal": "As little reasoning as the model can do with",
    "low": "Little reasoning: quick answers",
    "medium": "A balance of speed and depth",
    "high": "Deep reasoning for hard problems",
    "xhigh": "The deepest reasoning that the model offers",
}
MOST_FOLDERS = 64
MOST_PATH = 4_096
FILES_S = 10.0
"""The wait for the file system of this machine."""
Folder = Annotated[str, Field(max_length=MOST_PATH)]


# ── models ────────────────────────────────────────────────────────────────────────────────────────


class ModelList(PageParams):
    """Hidden models are those that no person named; there are none."""

    include_hidden: bool | None = None
    model_provider: str | None = None


async def model_list(door: Door, asked: ModelList) -> Result:
    """The default model first, then those that the settings name; of another provider none is known."""
    offer = door.ports.offer
    if asked.model_provider not in (None, offer.defaults.model_provider):
        return page([], asked)
    return page([_model_json(offer, model) for model in _models(offer)], asked)


def _models(offer: Offer) -> tuple[str, ...]:
    named = (offer.defaults.model, offer.models.plan_model, offer.models.review_model)
    return tuple(dict.fromkeys(model for model in (*named, *sorted(offer.models.prices)) if model))


def _model_json(offer: Offer, model: str) -> JsonObject:
    default = model == offer.defaults.model
    chosen = offer.defaults.effort if default else None
    efforts = EFFORTS if chosen in (None, *EFFORTS) else (*EFFORTS, str(chosen))
    return {
        "id": model,
        "model": model,
        "displayName": model,
        "description": "",
        "hidden": False,
        "supportedReasoningEfforts": [
            {"reasoningEffort": effort, "description": _EFFORT_WORDS[effort]} for effort in efforts
        ],
        "defaultReasoningEffort": chosen or USUAL_EFFORT,
        "inputModalities": ["text", "image"],
        "supportsPersonality": True,
        "additionalSpeedTiers": [],
        "serviceTiers": [],
        "isDefault": default,
    }


async def model_provider_list(door: Door, _: NoParams) -> Result:
    """The providers by name; where they are and what they obey is the business of the machine's user."""
    offer, owner = door.ports.offer, door.principal.sees_machine
    data = [
        {
            "id": name,
            "name": provider.name or name,
            "baseUrl": public_url(provider.base_url) if owner else None,
            "canEdit": False,
            "settings": _provider_settings(provider, owner=owner),
        }
        for name, provider in sorted(offer.models.providers.items())
    ]
    return {"canChangeDefault": False, "data": data, "defaultProviderId": offer.defaults.model_provider}


def _provider_settings(provider: ProviderSettings, *, owner: bool) -> JsonObject:
    if provider.id == "openai":
        return {"type": "openai"}
    if provider.env_key is None or not owner:
        return {"type": "customGateway", "auth": {"mode": "externallyConfigured", "envKey": None}}
    return {"type": "customGateway", "auth": {"mode": "environmentVariable", "envKey": provider.env_key}}


def public_url(url: str) -> str:
    """An address without the name and password that may stand in it, and without a query."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path, "", ""))


# ── modes, profiles, features ─────────────────────────────────────────────────────────────────────


async def collaboration_modes(door: Door, _: NoParams) -> Result:
    """The two modes of the protocol that sessions know."""
    models = door.ports.offer.models
    plan = {
        "name": "Plan",
        "mode": "plan",
        "model": models.plan_model,
        "reasoning_effort": models.plan_effort,
    }
    default = {"name": "Default", "mode": "default", "model": None, "reasoning_effort": None}
    return {"data": [plan, default]}


class InFolder(PageParams):
    """A list that other servers make for a folder."""

    cwd: Folder | None = None


async def permission_profiles(door: Door, asked: InFolder) -> Result:
    """No profiles: a session's permissions are its sandbox and its approval policy."""
    return page([], asked)


class OfThread(PageParams):
    """A list that other servers make for a thread."""

    thread_id: str | None = None


async def experimental_features(door: Door, asked: OfThread) -> Result:
    """No switches: what there is, is served."""
    return page([], asked)


async def mcp_servers(door: Door, asked: OfThread) -> Result:
    """No servers: they belong to workers, and a session lists their tools when it is asked."""
    return page([], asked)


# ── hooks and skills ──────────────────────────────────────────────────────────────────────────────


class HooksList(Params):
    """Hooks of folders."""

    cwds: Annotated[tuple[Folder, ...], Field(max_length=MOST_FOLDERS)] = ()


async def hooks_list(door: Door, asked: HooksList) -> Result:
    """An empty entry for each folder: there are no hooks."""
    cwds = asked.cwds or (str(door.ports.offer.defaults.cwd),)
    return {"data": [{"cwd": cwd, "hooks": [], "warnings": [], "errors": []} for cwd in cwds]}


class SkillsList(Params):
    """Skills of folders."""

    cwds: Annotated[tuple[Folder, ...], Field(max_length=MOST_FOLDERS)] = ()
    force_reload: bool = False


async def skills_list(door: Door, asked: SkillsList) -> Result:
    """The skills that sessions of these folders would have; none if a client does not see its files."""
    cwds = asked.cwds or (str(door.ports.offer.defaults.cwd),)
    if not door.principal.sees_machine:
        return {"data": [{"cwd": cwd, "skills": [], "errors": []} for cwd in cwds]}
    try:
        async with asyncio.timeout(FILES_S):
            found = await in_git_thread(partial(_skills, door.ports.offer, cwds, anew=asked.force_reload))
    except TimeoutError:
        raise RpcError(
            f"the files of this machine did not answer within {FILES_S:g} s: check the mounts, ask again"
        ) from None
    return {"data": [_skills_json(cwd, entry) for cwd, entry in zip(cwds, found, strict=True)]}


def _skills(offer: Offer, cwds: tuple[str, ...], *, anew: bool) -> list[SkillsListEntry]:
    base = offer.defaults.cwd
    return [offer.skills.listed(str(base / cwd), anew=anew) for cwd in cwds]


def _skills_json(cwd: str, entry: SkillsListEntry) -> JsonObject:
    return {
        "cwd": cwd,
        "skills": list(_each_skill(entry)),
        "errors": [{"path": error.path, "message": error.message} for error in entry.errors],
    }


def _each_skill(entry: SkillsListEntry) -> Iterator[JsonObject]:
    for skill in entry.skills:
        yield {
            "name": skill.name,
            "description": skill.description,
            "shortDescription": skill.short_description,
            "path": skill.path,
            "scope": skill.scope.value,
            "enabled": True,
        }


METHODS: Mapping[str, Method] = {
    "model/list": Method(ModelList, model_list, Scope.READ),
    "modelProvider/list": Method(NoParams, model_provider_list, Scope.READ),
    "collaborationMode/list": Method(NoParams, collaboration_modes, Scope.READ),
    "permissionProfile/list": Method(InFolder, permission_profiles, Scope.READ),
    "experimentalFeature/list": Method(OfThread, experimental_features, Scope.READ),
    "mcpServerStatus/list": Method(OfThread, mcp_servers, Scope.READ),
    "hooks/list": Method(HooksList, hooks_list, Scope.READ),
    "skills/list": Method(SkillsList, skills_list, Scope.READ),
}
