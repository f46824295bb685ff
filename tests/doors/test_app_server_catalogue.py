"""Answers about models, providers, modes, skills and settings: no key is in any of them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.config_keys import (
    McpServerSettings,
    ModelPrice,
    ModelSettings,
    ProviderSettings,
    SandboxPolicy,
    Secret,
    SessionDefaults,
    ToolSettings,
)
from orchestrator.gateways.app_server.door_ports import Offer
from orchestrator.gateways.app_server.messages import Code
from orchestrator.gateways.app_server.methods import catalogue, config
from orchestrator.gateways.principals import Principal
from orchestrator.instructions.skills import Skills
from tests.doors.peer import ANN, Peer, connected, served
from tests.doors.ports import ports
from tests.doors.schema import assert_valid

KEY = "sk-of-nobody"
TENANT = Principal("eve", namespace="eve")


def offer(folder: Path) -> Offer:
    """Settings with a key in every place that may have one."""
    provider = ProviderSettings(
        id="own",
        name="Own",
        base_url=f"https://ann:{KEY}@models.example/v1",
        env_key="OWN_KEY",
        query_params={"key": KEY},
        http_headers={"x-key": KEY},
        api_key=Secret(KEY),
        secret_headers={"x": KEY},
    )
    servers = {
        "files": McpServerSettings(id="files", command="serve-files", args=(KEY,), env={"K": KEY}),
        "web": McpServerSettings(
            id="web", url=f"https://{KEY}@mcp.example/x?k={KEY}", bearer_token=Secret(KEY)
        ),
    }
    models = ModelSettings(
        model="m1",
        provider="own",
        providers={"own": provider},
        prices={"m2": ModelPrice()},
        review_model="m3",
    )
    defaults = SessionDefaults(
        cwd=folder,
        model="m1",
        model_provider="own",
        effort="minimal",
        approval_policy="on-failure",
        sandbox=SandboxPolicy(mode="workspace-write"),
    )
    skills = Skills(folder / "home", folder / "user", folder / "admin")
    return Offer(defaults, models, ToolSettings(), skills, servers)


@asynccontextmanager
async def greeted(folder: Path, principal: Principal = ANN) -> AsyncIterator[Peer]:
    """A client that has greeted."""
    async with (
        served(ports(offer(folder)), lambda session, change, root_turn: ()) as server,
        connected(server, principal) as peer,
    ):
        await peer.greet(experimentalApi=True)
        yield peer


@pytest.fixture
async def peer(tmp_path: Path) -> AsyncIterator[Peer]:
    async with greeted(tmp_path) as peer:
        yield peer


@pytest.fixture
async def tenant(tmp_path: Path) -> AsyncIterator[Peer]:
    async with greeted(tmp_path, TENANT) as peer:
        yield peer


ANSWERS = {
    "model/list": "ModelListResponse",
    "modelProvider/list": "ModelProviderListResponse",
    "collaborationMode/list": "CollaborationModeListResponse",
    "permissionProfile/list": "PermissionProfileListResponse",
    "experimentalFeature/list": "ExperimentalFeatureListResponse",
    "mcpServerStatus/list": "ListMcpServerStatusResponse",
    "hooks/list": "HooksListResponse",
    "skills/list": "SkillsListResponse",
    "config/read": "ConfigReadResponse",
    "configRequirements/read": "ConfigRequirementsReadResponse",
}


@pytest.mark.parametrize("method", ANSWERS)
async def test_strict_client_reads_every_answer_and_finds_no_key_in_it(
    peer: Peer, tenant: Peer, method: str
) -> None:
    for client in (peer, tenant):
        told = await client.call(method, {"includeLayers": True})
        assert_valid(ANSWERS[method], told)
        assert KEY.encode() not in orjson.dumps(told)


async def test_client_finds_one_default_model_and_those_that_settings_name(peer: Peer) -> None:
    models = (await peer.call("model/list"))["data"]
    assert [model["model"] for model in models] == ["m1", "m3", "m2"]
    assert [model["isDefault"] for model in models] == [True, False, False]
    assert models[0]["defaultReasoningEffort"] == "minimal"
    assert "minimal" in [each["reasoningEffort"] for each in models[0]["supportedReasoningEfforts"]]
    assert (await peer.call("model/list", {"modelProvider": "other"}))["data"] == []


async def test_client_reads_a_list_a_page_at_a_time(peer: Peer) -> None:
    first = await peer.call("model/list", {"limit": 2})
    rest = await peer.call("model/list", {"limit": 2, "cursor": first["nextCursor"]})
    assert [len(first["data"]), len(rest["data"]), rest["nextCursor"]] == [2, 1, None]
    assert (await peer.refused("model/list", {"cursor": "²"}))[0] == Code.BAD_PARAMS
    assert (await peer.refused("model/list", {"limit": -1}))[0] == Code.BAD_PARAMS


async def test_client_reads_the_settings_in_force_for_new_sessions(peer: Peer) -> None:
    told = await peer.call("config/read", {"cwd": "."})
    config = told["config"]
    assert (config["model"], config["model_provider"]) == ("m1", "own")
    assert (config["approval_policy"], config["sandbox_mode"]) == ("on-request", "workspace-write")
    assert config["model_providers"]["own"]["base_url"] == "https://models.example/v1"
    assert config["mcp_servers"] == {
        "files": {"command": "serve-files"},
        "web": {"url": "https://mcp.example/x"},
    }
    assert told["layers"] is None


async def test_tenant_learns_nothing_of_the_machine(tenant: Peer, tmp_path: Path) -> None:
    config = (await tenant.call("config/read"))["config"]
    assert (config["mcp_servers"], config["model_providers"]) == ({}, {})
    providers = (await tenant.call("modelProvider/list"))["data"]
    assert [one["baseUrl"] for one in providers] == [None]
    skill(tmp_path / "user/.agents/skills/own")
    told = await tenant.call("skills/list", {"cwds": [str(tmp_path)]})
    assert told["data"] == [{"cwd": str(tmp_path), "skills": [], "errors": []}]


def skill(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: mend\ndescription: Mends things.\n---\nDo it.\n")


async def test_client_finds_the_skills_of_a_folder(peer: Peer, tmp_path: Path) -> None:
    skill(tmp_path / "user/.agents/skills/mend")
    told = await peer.call("skills/list", {"cwds": [str(tmp_path), "."], "forceReload": True})
    assert_valid("SkillsListResponse", told)
    assert [entry["cwd"] for entry in told["data"]] == [str(tmp_path), "."]
    names: Any = [[one["name"] for one in entry["skills"]] for entry in told["data"]]
    assert names == [["mend"], ["mend"]]


async def test_client_that_names_too_many_folders_is_refused(peer: Peer) -> None:
    for method in ("skills/list", "hooks/list"):
        assert (await peer.refused(method, {"cwds": ["/x"] * 65}))[0] == Code.BAD_PARAMS
        assert (await peer.refused(method, {"cwds": ["x" * 5_000]}))[0] == Code.BAD_PARAMS


@pytest.mark.parametrize("asked", [None, "own", "other", "none"])
async def test_models_are_told_of_the_provider_in_force_and_of_no_other_one(asked: str | None) -> None:
    offer = SimpleNamespace(
        defaults=SimpleNamespace(model="m", model_provider="own", effort=None),
        models=SimpleNamespace(
            plan_model=None,
            review_model="r",
            prices={"z": 1, "a": 1, "m": 1},
            providers=dict.fromkeys(("own", "other")),
        ),
    )
    door = cast(Any, SimpleNamespace(ports=SimpleNamespace(offer=offer)))
    found = await catalogue.model_list(door, catalogue.ModelList.model_validate({"modelProvider": asked}))
    known = ["m", "r", "a", "z"] if asked in (None, "own") else []
    assert [one["id"] for one in found["data"]] == known
    assert [one["isDefault"] for one in found["data"]] == [one == "m" for one in known]


def test_profile_is_told_without_its_tables_and_lists_which_may_hold_keys() -> None:
    profile = {
        "model": "m",
        "model_providers": {"p": {"api_key": "k"}},
        "args": ["--key", "k"],
        "effort": None,
    }
    assert config._plain(profile) == {"model": "m", "effort": None}
