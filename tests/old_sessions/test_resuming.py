"""Sessions of an older version go on: as users resume them, with real processes."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.invocation import opened
from orchestrator.rollouts.archive import Storage
from orchestrator.rollouts.replay import fold_session
from orchestrator.settings import SettingsSources, load_settings
from tests.cli.machine import Machine
from tests.cli.parked_tree import worker
from tests.old_sessions.kept import NAMES, ROOT, Kept
from tests.servers import RedisServer, start_redis
from workers.upkeep_checks import verify_session

pytestmark = [pytest.mark.realredis, pytest.mark.slow, pytest.mark.timeout(300)]
AT_ONCE = 4
"""Commands that run at once; a machine has two cores at least."""
CONFIG = 'pool = "old"\n[worker]\npools = ["old"]\n'


@pytest.fixture
def redis_server(tmp_path: Path) -> Iterator[RedisServer]:
    with start_redis(tmp_path / "redis") as server:
        yield server


@pytest.fixture(params=NAMES)
def kept(request: pytest.FixtureRequest, redis_server: RedisServer) -> Iterator[Kept]:
    """An old deployment, with its folders where they were."""
    found = Kept.of(request.param)
    with redis_server.client() as redis:
        found.put_into(redis)
    (found.at_home() / "dendro.toml").write_text(CONFIG)
    yield found
    shutil.rmtree(ROOT / found.name, ignore_errors=True)


@pytest.fixture
def machine(kept: Kept, redis_server: RedisServer, tmp_path: Path) -> Machine:
    home = ROOT / kept.name / "home"
    return Machine.at(tmp_path, redis_server.url).under(DENDRO_HOME=str(home), **kept.environ)


def test_old_sessions_go_on(kept: Kept, machine: Machine, tmp_path: Path) -> None:
    with machine.behaving("tree") as trees, worker(trees) as process:
        _tree_is_finished(trees, kept)
        process.terminate()
        process.wait()
    # A single worker serves all commands: to start one for each takes most of the time.
    with machine.behaving("echo") as user, worker(user):
        talk, made = kept.made("talk"), ("talk", "closed", "compacted", "interrupted", "lost", "asking")
        # Each command spends its time on its own start, and none waits for another's session.
        with ThreadPoolExecutor(AT_ONCE) as people:
            done = [people.submit(_goes_on, user, kept, how) for how in made if how in kept.index["made"]]
            files = [kept.file(name, tmp_path) for name in (f"{talk}.jsonl", f"{talk}.full.jsonl")]
            done += [people.submit(_is_imported, user, kept, file) for file in files]
        for each in done:
            each.result()
        asyncio.run(_all_fold_and_verify(user, kept))


def _tree_is_finished(user: Machine, kept: Kept) -> None:
    """The question is answered, so the agent goes on, and the root merges what was found."""
    root = kept.made("tree")
    assert user.run("approvals", root, "--allow", "*").returncode == 0
    for _ in range(100):
        standing = json.loads(user.run("tree", root, "--json").stdout)["agents"][0]
        if standing["session_status"] == "idle":
            break
    assert standing["session_status"] == "idle", "each look takes a process's start"
    assert (ROOT / kept.name / "workspace" / "REPORT.md").exists(), "the root merges what it was told"


def _goes_on(user: Machine, kept: Kept, how: str) -> None:
    session = kept.made(how)
    if how == "asking":
        assert user.run("approvals", session, "--deny", "*").returncode == 0
    done = user.run("run", "--resume", session, "--no-worker", "--json", f"a word to {how}")
    seen: list[dict[str, Any]] = [json.loads(line)["msg"] for line in done.stdout.splitlines()]
    assert done.returncode == 0, f"{how}: {done.stdout}{done.stderr}"
    texts = [msg["message"] for msg in seen if msg["type"] == "agent_message"]
    assert any(f"a word to {how}" in text for text in texts), f"{how}: {texts}"


async def _all_fold_and_verify(user: Machine, kept: Kept) -> None:
    settings = load_settings(SettingsSources(user.folder, user.environ))
    async with opened(settings) as found:
        storage = Storage(found.broker, found.deployment.blobs, found.archive(), found.secret)
        for session, then in kept.sessions.items():
            head = await found.find(session)
            folded = await fold_session(found, head, None)
            assert (folded.broken, folded.matches) == (None, True), session
            assert await verify_session(storage, head.session) is None
            assert head.seq >= then["seq"]


def _is_imported(user: Machine, kept: Kept, file: Path) -> None:
    """Each kind of file becomes a session; a full one has the state that it had."""
    # Full files of a keyed chain have a code in their first line today, and these were written before.
    old = ("--accept-old-header",) if kept.key is not None and file.name.endswith(".full.jsonl") else ()
    for command in ("verify", "import"):
        done = user.run(command, str(file), *old)
        assert done.returncode == 0, f"{command} {file.name}: {done.stdout}{done.stderr}"
        if old:
            refused = user.run(command, str(file))
            assert refused.returncode == 1, f"{command} {file.name}: {refused.stdout}"
            assert "--accept-old-header" in refused.stdout + refused.stderr
