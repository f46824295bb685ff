"""Permissions: policies beyond those that a person has set need the scope `approve`, at every door."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.permissions import Permissions, Policies
from orchestrator.gateways.principals import NotPermitted, Principal, Scope
from orchestrator.protocol import ops
from orchestrator.protocol.policy import (
    AskForApproval,
    DangerFullAccess,
    ReadOnly,
    SandboxPolicy,
    WorkspaceWrite,
)
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.new_threads import door_ports
from orchestrator.wiring.open_deployment import opened
from tests.doors.peer import ANN, Peer, connected, served
from tests.servers import RedisServer, start_redis

BEN = Principal("ben", scope=Scope.SUBMIT)
FOLDER = Policies("on-request", {"mode": "workspace-write"})


async def check(op: ops.Op, bound: Policies = FOLDER, now: Policies = FOLDER, who: Principal = BEN) -> None:
    async def in_force() -> Policies:
        return now

    await Permissions(who, bound).check(op, in_force)


def override(sandbox: SandboxPolicy | None = None, approval: str | None = None) -> ops.OverrideTurnContext:
    policy = None if approval is None else AskForApproval(approval)
    return ops.OverrideTurnContext(sandbox_policy=sandbox, approval_policy=policy)


@pytest.mark.parametrize(
    "op",
    [
        override(ReadOnly()),
        override(WorkspaceWrite()),
        override(WorkspaceWrite(exclude_slash_tmp=True), "untrusted"),
        override(approval="on-request"),
        ops.OverrideTurnContext(model="m2"),
    ],
)
async def test_submitter_may_choose_policies_within_the_persons_own(op: ops.Op) -> None:
    await check(op)


@pytest.mark.parametrize("who", [BEN, Principal("acme/eve", "acme", Scope.ADMIN, "t")])
async def test_who_does_not_see_the_machine_lists_skills_of_the_session_s_folder_alone(
    who: Principal,
) -> None:
    now = replace(FOLDER, cwd="/srv/shop")
    own: list[tuple[str, ...]] = [(), ("/srv/shop",), ("/srv/shop/below",)]
    foreign: list[tuple[str, ...]] = [("/srv/shop", "/home/ann"), ("/srv/shop/../x",), ("",), ("below",)]
    for cwds in own:
        await check(ops.ListSkills(cwds=cwds), now=now, who=who)
    for cwds in foreign:
        with pytest.raises(NotPermitted, match="skills of other folders"):
            await check(ops.ListSkills(cwds=cwds), now=now, who=who)
    await check(ops.ListSkills(cwds=("/home/ann",)), now=now, who=Principal("ann", scope=Scope.APPROVE))


LOOSER = (
    override(DangerFullAccess()),
    override(WorkspaceWrite(network_access=True)),
    override(WorkspaceWrite(writable_roots=("/",))),
    override(approval="never"),
    override(approval="on-failure"),
)


@pytest.mark.parametrize("op", LOOSER)
async def test_submitter_may_not_loosen_what_the_person_has_set(op: ops.Op) -> None:
    with pytest.raises(NotPermitted, match=r"more than the settings permit .* needs the scope approve"):
        await check(op)
    await check(op, who=Principal("ann", scope=Scope.APPROVE))


@pytest.mark.parametrize("op", LOOSER)
async def test_submitter_may_choose_what_an_approver_gave_the_session_already(op: ops.Op) -> None:
    await check(op, now=Policies("never", {"mode": "danger-full-access"}))


async def test_submitter_may_not_join_the_loose_halves_of_two_bounds() -> None:
    now = Policies("never", {"mode": "read-only"})
    with pytest.raises(NotPermitted):
        await check(override(WorkspaceWrite()), now=now)
    await check(override(WorkspaceWrite(), "on-request"), now=now)


@pytest.mark.parametrize(
    ("roots", "permitted"),
    [
        (("/data",), True),
        (("/data/a", "/data/b"), True),
        (("/data2",), False),
        (("/data/../etc",), False),
        (("/data/a", "/home/ann"), False),
    ],
)
async def test_submitter_may_name_roots_below_those_of_the_settings(
    roots: tuple[str, ...], permitted: bool
) -> None:
    bound = Policies("on-request", {"mode": "workspace-write", "writable_roots": ["/data"]})
    asked = override(WorkspaceWrite(writable_roots=roots))
    if permitted:
        await check(asked, bound)
    else:
        with pytest.raises(NotPermitted):
            await check(asked, bound)


async def test_submitter_may_not_open_temporary_folders_that_the_person_has_closed() -> None:
    bound = Policies("on-request", {"mode": "workspace-write", "exclude_slash_tmp": True})
    with pytest.raises(NotPermitted):
        await check(override(WorkspaceWrite()), bound, bound)


FLAGS = ("network_access", "exclude_tmpdir_env_var", "exclude_slash_tmp")
ANY_FLAGS = list(product([False, True], repeat=3))


@pytest.mark.parametrize("bound", ANY_FLAGS)
@pytest.mark.parametrize("asked", ANY_FLAGS)
def test_policy_is_within_a_bound_where_each_of_its_parts_is(
    asked: tuple[bool, ...], bound: tuple[bool, ...]
) -> None:
    own, most = (
        Policies("never", {"mode": "workspace-write", **dict(zip(FLAGS, flags, strict=True))})
        for flags in (asked, bound)
    )
    # The network is what may be left out, and a temporary folder what may be left out more.
    network, *spared = zip(asked, bound, strict=True)
    may = (not network[0] or network[1]) and all(mine or not theirs for mine, theirs in spared)
    assert own.within(most) == may


@pytest.mark.parametrize(
    ("cwd", "permitted"),
    [
        ("/shop", True),
        ("/shop/a", True),
        ("/s", True),
        ("/s/b", True),
        ("/shopkeeper", False),
        ("/shop/../etc", False),
    ],
)
@pytest.mark.parametrize("scope", [Scope.SUBMIT, Scope.ADMIN])
async def test_tenant_moves_a_session_within_the_gateways_folder_or_the_session_s_own(
    cwd: str, permitted: bool, scope: Scope
) -> None:
    eve = Principal("acme/eve", "acme", scope)
    bound, now = replace(FOLDER, cwd="/shop"), replace(FOLDER, cwd="/s")
    moved = ops.OverrideTurnContext(cwd=cwd)
    said = ops.UserInput(items=(), overrides=moved)
    for op in (moved, said):
        if permitted:
            await check(op, bound, now, eve)
        else:
            with pytest.raises(NotPermitted, match="works in the gateway's folder"):
                await check(op, bound, now, eve)
        await check(op, bound, now, BEN)


async def test_command_without_a_model_needs_the_scope_approve() -> None:
    with pytest.raises(NotPermitted, match="run_user_shell_command needs the scope approve"):
        await check(ops.RunUserShellCommand(command="true"))


# ── through the door of a deployment ──────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@asynccontextmanager
async def people(folder: Path, redis: RedisServer) -> AsyncIterator[tuple[Peer, Peer]]:
    """An administrator and a submitter at one gateway without a worker."""
    environ = {
        "HOME": str(folder),
        "DENDRO_HOME": str(folder / "h"),
        "PATH": "/usr/bin:/bin",
        "DENDRO_REDIS_URL": redis.url,
    }
    sources = SettingsSources(folder, environ, overrides=("sandbox_mode=workspace-write",))
    async with (
        opened(load_settings(sources)) as found,
        served(door_ports(found, sources), notifications) as server,
        connected(server, ANN) as ann,
        connected(server, BEN) as ben,
    ):
        for peer in (ann, ben):
            await peer.greet(experimentalApi=True)
        yield ann, ben


FULL: dict[str, Any] = {"sandboxPolicy": {"type": "dangerFullAccess"}}
GO = {"input": [{"type": "text", "text": "go"}]}


@pytest.mark.realredis
async def test_token_that_submits_loosens_no_session_by_any_method(
    tmp_path: Path, redis: RedisServer
) -> None:
    async with people(tmp_path, redis) as (_, ben):
        thread = {"threadId": (await ben.call("thread/start", {"sandbox": "read-only"}))["thread"]["id"]}
        id = thread["threadId"]
        flat = {"items": [{"type": "text", "text": "go"}], "cwd": "/", "model": "m", "conversationId": id}
        open_policy = {"mode": "danger-full-access"}
        config = {"sandbox_workspace_write": {"network_access": True}}
        for method, params in (
            ("thread/start", {"sandbox": "danger-full-access"}),
            ("thread/start", {"approvalPolicy": "never"}),
            ("thread/start", {"config": config}),
            ("thread/fork", {**thread, "sandbox": "danger-full-access"}),
            ("thread/resume", {**thread, "sandbox": "danger-full-access"}),
            ("thread/settings/update", {**thread, **FULL}),
            ("turn/start", {**thread, **GO, **FULL}),
            ("thread/shellCommand", {**thread, "command": "true"}),
            ("newConversation", {"sandbox": "danger-full-access"}),
            ("resumeConversation", {"conversationId": id, "overrides": {"approvalPolicy": "never"}}),
            ("sendUserTurn", {**flat, "approvalPolicy": "never", "sandboxPolicy": open_policy}),
        ):
            _, text = await ben.refused(method, params)
            assert "needs the scope approve, and ben has submit" in text, (method, text)
        again = await ben.call("thread/resume", thread)
        assert (again["sandbox"]["type"], again["approvalPolicy"]) == ("readOnly", "on-request")


@pytest.mark.realredis
async def test_token_that_submits_repeats_what_an_approver_chose(tmp_path: Path, redis: RedisServer) -> None:
    async with people(tmp_path, redis) as (ann, ben):
        started = await ann.call("thread/start", {"sandbox": "danger-full-access"})
        turn = await ben.call("turn/start", {"threadId": started["thread"]["id"], **GO, **FULL})
        assert turn["turn"]["status"] == "inProgress"


def test_policy_that_nobody_knows_counts_as_the_strictest() -> None:
    """A newer version may have put it into a session's settings."""
    later = Policies("of a later version", {"mode": "of a later version"})
    assert later.within(FOLDER)
    assert not FOLDER.within(later)
    assert later.within(Policies("untrusted", {"mode": "read-only"}))
