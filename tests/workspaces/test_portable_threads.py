"""Portable folders for clients of doors: what they may name, and what is done with it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.broker.worker_state import WorkerState, encoded
from orchestrator.gateways.app_server.door_ports import BadSetting, Born, NewThread
from orchestrator.gateways.app_server.messages import RpcError
from orchestrator.gateways.app_server.method import Params
from orchestrator.gateways.app_server.methods.turns import ThreadStartParams, _workspace
from orchestrator.gateways.fork import fork_at
from orchestrator.gateways.principals import NotPermitted, Principal, Scope, WorkspaceKind
from orchestrator.gateways.sq_eq import DONE_WITH, parse_first_line
from orchestrator.protocol.ops import WorkspaceSource
from orchestrator.rollouts.replay import fold_session
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring.new_threads import NewThreads, Repositories
from orchestrator.wiring.open_deployment import Opened, opened
from tests.servers import RedisServer, start_redis

pytestmark = pytest.mark.realredis

ANN = Principal("ann")
"""The user of the gateway's machine."""


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
async def makes(redis: RedisServer, tmp_path: Path) -> AsyncIterator[NewThreads]:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a").write_text("1\n")
    environ = {
        "HOME": str(tmp_path),
        "DENDRO_HOME": str(tmp_path / "home"),
        "DENDRO_REDIS_URL": redis.url,
        "PATH": os.environ["PATH"],
    }
    sources = SettingsSources(tmp_path / "work", environ)
    async with opened(load_settings(sources)) as found:
        yield NewThreads(found, sources, Repositories(environ))


def by_default(makes: NewThreads) -> NewThreads:
    """The same gateway where people have set `gateway.workspace`."""
    found = makes.found
    return replace(makes, found=replace(found, settings=with_workspace(found.settings, "portable")))


def with_workspace(settings: Settings, kind: str) -> Settings:
    gateway = settings.gateway.model_copy(update={"workspace": kind})
    return replace(settings, gateway=gateway)


async def start(makes: NewThreads, who: Principal, cwd: Path | str | None = None, **wish: Any) -> Born:
    """A thread of a client that cannot choose."""
    client = makes.found.client(who.sender("app-server"), who.namespace)
    return await makes.create(client, who, NewThread(None if cwd is None else str(cwd), **wish))


async def create(makes: NewThreads, who: Principal, **wish: Any) -> Born:
    client = makes.found.client(who.sender("app-server"), who.namespace)
    return await makes.create(client, who, NewThread(workspace=WorkspaceSource(**wish)))


async def snapshot_of(found: Opened, born: Born) -> Any:
    return (await fold_session(found, born.head, None)).state.workspace.snapshot


async def facts_of(found: Opened, born: Born) -> Any:
    return (await fold_session(found, born.head, None)).state.facts


async def test_client_makes_a_session_with_a_copy_of_a_folder(makes: NewThreads, tmp_path: Path) -> None:
    born = await create(makes, ANN, folder=str(tmp_path / "work"))
    facts = await facts_of(makes.found, born)
    assert facts.portable.name == "work"
    assert born.settings.cwd == f"{tmp_path}/home/workspaces/{born.head.tree}/work"


async def test_client_that_may_not_loosen_copies_no_folder_of_the_gateways_machine(
    makes: NewThreads, tmp_path: Path
) -> None:
    bob = Principal("bob", scope=Scope.SUBMIT)
    with pytest.raises(NotPermitted, match=r"copy of a folder .* needs the scope approve"):
        await create(makes, bob, folder=str(tmp_path / "work"))
    born = await create(makes, bob, empty=True)
    assert (await facts_of(makes.found, born)).portable.source is None


async def test_tenant_copies_no_folder_of_the_gateways_machine(makes: NewThreads, tmp_path: Path) -> None:
    eve = Principal("eve", "team")
    for folder in (tmp_path / "work", tmp_path / "none"):
        with pytest.raises(NotPermitted, match="are its user's: name a git address"):
            await create(makes, eve, folder=str(folder))
    born = await create(makes, eve, empty=True)
    assert (await facts_of(makes.found, born)).portable.source is None
    with pytest.raises(BadSetting, match="there is no session"):
        await create(makes, Principal("mallory", "other"), session=born.head.session)


async def test_client_begins_with_no_folder_of_another_tenant(makes: NewThreads, tmp_path: Path) -> None:
    born = await create(makes, ANN, folder=str(tmp_path / "work"))
    again = await create(makes, ANN, session=born.head.session)
    assert (await facts_of(makes.found, again)).portable.name == "work"
    for text in (born.head.session, born.head.session[:8], "nonsense"):
        with pytest.raises(BadSetting, match="there is no session"):
            await create(makes, Principal("eve", "other"), session=text)
    with pytest.raises(BadSetting, match="there is no session"):
        await create(makes, ANN, session=born.head.session[:8])


async def test_client_that_names_an_entry_begins_with_the_folder_as_it_was_then(
    makes: NewThreads, tmp_path: Path
) -> None:
    born = await create(makes, ANN, folder=str(tmp_path / "work"))
    with pytest.raises(BadSetting, match="and no 10,000"):
        await create(makes, ANN, session=born.head.session, at=10_000)
    again = await create(makes, ANN, session=born.head.session, at=born.head.seq)
    assert (await facts_of(makes.found, again)).portable is not None


async def test_client_that_cannot_choose_works_in_a_copy_where_the_gateway_says_so(
    makes: NewThreads, tmp_path: Path
) -> None:
    portable = by_default(makes)
    born = await start(portable, ANN, tmp_path / "work")
    facts = await facts_of(makes.found, born)
    assert (born.portable, facts.portable.name, facts.workspace) == (True, "work", None)
    assert born.settings.cwd == f"{tmp_path}/home/workspaces/{born.head.tree}/work"
    assert (await snapshot_of(makes.found, born)) is not None
    plain = await start(makes, ANN, tmp_path / "work")
    assert (plain.portable, plain.settings.cwd) == (False, str(tmp_path / "work"))
    assert (await facts_of(makes.found, plain)).portable is None


async def test_client_that_names_no_folder_begins_with_an_empty_one(makes: NewThreads) -> None:
    for who in (ANN, Principal("bob", scope=Scope.SUBMIT), Principal("acme/eve", "acme", Scope.SUBMIT)):
        born = await start(by_default(makes), who)
        assert (await facts_of(makes.found, born)).portable.source is None
        assert await snapshot_of(makes.found, born) is None


async def test_token_says_where_its_holder_works_whatever_the_gateway_says(
    makes: NewThreads, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    kinds: tuple[tuple[NewThreads, WorkspaceKind], ...] = ((makes, "portable"), (by_default(makes), "host"))
    for gateway, kind in kinds:
        holder = Principal("bob", scope=Scope.APPROVE, token="t", workspace=kind)
        assert (await start(gateway, holder, work)).portable == (kind == "portable")
    chosen = Principal("bob", scope=Scope.APPROVE, token="t", workspace="host")
    born = await start(makes, chosen, work, workspace=WorkspaceSource(empty=True))
    assert born.portable


async def test_client_that_may_copy_no_folder_is_told_so_before_it_is_looked_at(
    makes: NewThreads, tmp_path: Path
) -> None:
    refused = {
        Principal("bob", scope=Scope.SUBMIT): r"needs the scope approve.*leave `cwd` out",
        Principal("acme/eve", "acme"): r"are its user's: leave `cwd` out",
    }
    for who, said in refused.items():
        for folder in (tmp_path / "work", tmp_path / "none"):
            with pytest.raises(NotPermitted, match=said):
                await start(by_default(makes), who, folder)


@pytest.mark.parametrize(
    ("cwd", "said"),
    [
        ("/nowhere", "there is no folder /nowhere: the session begins with a copy"),
        ("here", "is no absolute path"),
        ("", "is no absolute path"),
        ("/" + "a/" * 3_000, r"at most 4,096 bytes, this has 6,001"),
    ],
)
async def test_client_with_a_folder_that_cannot_be_copied_is_told_why(
    makes: NewThreads, cwd: str, said: str
) -> None:
    with pytest.raises(BadSetting, match=said):
        await start(by_default(makes), ANN, cwd)


async def test_client_that_names_the_folder_it_was_told_begins_with_a_copy_of_it(
    makes: NewThreads, tmp_path: Path
) -> None:
    portable = by_default(makes)
    first = await start(portable, ANN, tmp_path / "work")
    for cwd in (first.settings.cwd, f"{first.settings.cwd}/below"):
        again = await start(portable, Principal("bob", scope=Scope.SUBMIT), cwd)
        assert again.settings.cwd == f"{tmp_path}/home/workspaces/{again.head.tree}/work"
        assert again.head.tree != first.head.tree
        assert await snapshot_of(makes.found, again) == await snapshot_of(makes.found, first)
    with pytest.raises(BadSetting, match="there is no session"):
        await start(portable, Principal("acme/eve", "acme"), first.settings.cwd)
    root = tmp_path / "home/workspaces"
    for elsewhere in (root, root / "copies" / first.head.session, root / "0199a2b4-0000" / "work"):
        with pytest.raises(BadSetting, match="folder"):
            await start(portable, ANN, elsewhere)


async def test_client_cannot_change_where_it_works_by_a_setting(makes: NewThreads, tmp_path: Path) -> None:
    config = {"gateway.workspace": "host", "gateway": {"workspace": "host"}}
    born = await start(by_default(makes), ANN, tmp_path / "work", config=config)
    assert born.portable
    assert "gateway.workspace" in born.warnings[0]


async def test_client_is_told_why_a_repository_is_not_cloned(makes: NewThreads) -> None:
    with pytest.raises(BadSetting, match=r"workspace\.git_protocols"):
        await create(makes, ANN, git="file:///srv/secret.git")


def test_first_line_leaves_nothing_of_the_folder_to_be_configured_again() -> None:
    line = b'{"id":"1","op":{"type":"configure_session","cwd":"/work","workspace":{"empty":true}}}'
    first = parse_first_line(line)
    assert not first.changes_settings
    assert first.op.workspace == WorkspaceSource(empty=True)
    left = first.op.model_copy(update=DONE_WITH)
    assert (left.cwd, left.workspace, left.session_id) == (None, None, None)


def test_thread_start_takes_the_same_words_and_refuses_others_by_name() -> None:
    assert isinstance(ThreadStartParams(workspace={"empty": True}), Params)
    assert _workspace({"git": "https://x/a.git", "ref": "main"}) == WorkspaceSource(
        git="https://x/a.git", ref="main"
    )
    assert _workspace(None) is None
    with pytest.raises(RpcError, match="one of folder, git, session and empty"):
        _workspace({})


@pytest.mark.parametrize(
    ("cwd", "said"),
    [
        ("here", "is no absolute path"),
        ("/nowhere", "there is no folder"),
        ("/a\0b", "there is no folder"),
        ("/" + "a" * 300, "cannot be looked at"),
        ("/" + "a/" * 3_000, r"at most 4,096 bytes, this has 6,001"),
    ],
)
async def test_client_with_a_folder_that_cannot_be_is_told_why(
    makes: NewThreads, cwd: str, said: str
) -> None:
    client = makes.found.client(ANN.sender("app-server"), ANN.namespace)
    with pytest.raises(BadSetting, match=said):
        await makes.create(client, ANN, NewThread(cwd=cwd))


# ── the pool that a client chooses ────────────────────────────────────────────────────────────


async def serves(makes: NewThreads, *pools: str) -> None:
    """A worker serves these pools, by its heartbeat."""
    await makes.found.broker.claims.heartbeat("w1", encoded(WorkerState(pools, 0, 1)))


async def chosen(makes: NewThreads, who: Principal, pool: object, **more: Any) -> Born:
    client = makes.found.client(who.sender("app-server"), who.namespace)
    return await makes.create(client, who, NewThread(config={"pool": pool}, **more))


async def test_client_chooses_a_pool_that_a_worker_serves(makes: NewThreads) -> None:
    await serves(makes, "gpu", "default")
    born = await chosen(makes, ANN, "gpu")
    assert (born.head.pool, born.warnings) == ("gpu", ())
    portable = await chosen(makes, ANN, "gpu", workspace=WorkspaceSource(empty=True))
    assert (portable.head.pool, portable.portable) == ("gpu", True)


async def test_pool_without_a_worker_is_refused_by_name(makes: NewThreads) -> None:
    await serves(makes, *(f"p{n}" for n in range(10)), "host:one")
    with pytest.raises(BadSetting, match=r"no worker serves 'gpu'; .*: host:one, p0, .*p6 and 3 more$"):
        await chosen(makes, ANN, "gpu")
    with pytest.raises(BadSetting) as refused:
        await chosen(makes, ANN, "g" * 2_000)
    assert len(str(refused.value)) < 300
    for wrong in (7, ["gpu"]):
        with pytest.raises(BadSetting, match="pool"):
            await chosen(makes, ANN, wrong)
    with pytest.raises(BadSetting, match="is one machine's, and a portable session is for any"):
        await chosen(makes, ANN, "host:one", workspace=WorkspaceSource(empty=True))
    assert (await chosen(makes, ANN, "host:one")).head.pool == "host:one"


async def test_client_that_may_not_loosen_chooses_no_pool(makes: NewThreads) -> None:
    await serves(makes, "gpu")
    with pytest.raises(NotPermitted, match=r"choice of the pool needs the scope approve"):
        await chosen(makes, Principal("bob", scope=Scope.SUBMIT), "gpu")
    born = await chosen(makes, Principal("eve", "team"), "gpu", workspace=WorkspaceSource(empty=True))
    assert (born.head.pool, born.warnings) == ("default", ("config: not acted on: pool",))


async def test_fork_goes_to_the_pool_that_its_client_chooses(makes: NewThreads) -> None:
    await serves(makes, "gpu", "host:one")

    async def forked(who: Principal, born: Born, pool: str) -> Born:
        client = makes.found.client(who.sender("app-server"), who.namespace)
        source = await fork_at(makes.found, born.head, born.head.seq)
        return await makes.fork(client, who, source, NewThread(config={"pool": pool}))

    plain, portable = await start(makes, ANN), await create(makes, ANN, empty=True)
    for born in (plain, portable):
        assert (await forked(ANN, born, "gpu")).head.pool == "gpu"
        with pytest.raises(BadSetting, match="no worker serves 'none'"):
            await forked(ANN, born, "none")
        with pytest.raises(NotPermitted, match="choice of the pool"):
            await forked(Principal("bob", scope=Scope.SUBMIT), born, "gpu")
    with pytest.raises(BadSetting, match="a portable session is for any"):
        await forked(ANN, portable, "host:one")
    theirs = await create(makes, Principal("eve", "team"), empty=True)
    again = await forked(Principal("eve", "team"), theirs, "gpu")
    assert (again.head.pool, again.warnings) == (theirs.head.pool, ("config: not acted on: pool",))
