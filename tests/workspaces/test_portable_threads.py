"""Portable folders for clients of doors: what they may name, and what is done with it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from orchestrator.gateways.app_server.errors import RpcError
from orchestrator.gateways.app_server.method import Params
from orchestrator.gateways.app_server.methods.running import ThreadStartParams, _workspace
from orchestrator.gateways.app_server.ports import BadSetting, Born, NewThread
from orchestrator.gateways.principals import NotPermitted, Principal, Scope
from orchestrator.gateways.sq_eq.door import _done_with
from orchestrator.gateways.sq_eq.first_line import parse_first_line
from orchestrator.protocol.workspaces import WorkspaceSource
from orchestrator.rollouts.replay import fold_session
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.new_threads import NewThreads
from orchestrator.wiring.open_deployment import Opened, opened
from orchestrator.wiring.repositories import Repositories
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


async def create(makes: NewThreads, who: Principal, **wish: Any) -> Born:
    client = makes.found.client(who.name, who.namespace)
    return await makes.create(client, who, NewThread(workspace=WorkspaceSource(**wish)))


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


async def test_client_is_told_why_a_repository_is_not_cloned(makes: NewThreads) -> None:
    with pytest.raises(BadSetting, match=r"workspace\.git_protocols"):
        await create(makes, ANN, git="file:///srv/secret.git")


def test_first_line_leaves_nothing_of_the_folder_to_be_configured_again() -> None:
    line = b'{"id":"1","op":{"type":"configure_session","cwd":"/work","workspace":{"empty":true}}}'
    first = parse_first_line(line)
    assert not first.changes_settings
    assert first.op.workspace == WorkspaceSource(empty=True)
    left = first.op.model_copy(update=_done_with(first.op))
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
    client = makes.found.client(ANN.name, ANN.namespace)
    with pytest.raises(BadSetting, match=said):
        await makes.create(client, ANN, NewThread(cwd=cwd))
