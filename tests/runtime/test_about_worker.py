"""The first entry of an epoch: which worker writes, on what machine, by what settings and rules."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from orchestrator.core.commands import Command, Moment
from orchestrator.core.decide import decide
from orchestrator.core.decide.draft import Decision
from orchestrator.core.entries import DENDRO, decode_entry
from orchestrator.core.facts import Claimed
from orchestrator.core.settings import TurnSettings
from orchestrator.core.state import State
from orchestrator.protocol import ops
from orchestrator.runtime import step
from orchestrator.runtime.ports import AboutWorker
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.settings import SettingsSources, TrustList, load_settings
from orchestrator.tools.toolbox import Toolbox
from orchestrator.wiring.worker_parts import About, tool_config
from tests.runtime.harness import Harness

TEXTS = {hashlib.sha256(text.encode()).hexdigest(): text for text in ("some settings", "-" * 5_000)}
FIRST, SECOND = TEXTS


def told(harness: Harness, rules: str = SECOND) -> None:
    def about(state: State, worker: str) -> AboutWorker:
        return AboutWorker(Claimed(worker, "build-2", "uid:7", "1", settings=FIRST, rules=rules), TEXTS)

    harness.ports = dataclasses.replace(harness.ports, about=about)


async def kinds(harness: Harness, session: Any) -> list[tuple[int, str]]:
    found = [(stored.epoch, decode_entry(stored.payload)) for stored in await harness.log(session)]
    return [(epoch, entry.payload["kind"]) for epoch, entry in found if entry.type == DENDRO]


async def test_log_says_with_the_first_entry_of_each_epoch_which_worker_writes(harness: Harness) -> None:
    told(harness)
    session = await harness.session()
    for number in (1, 2):
        await harness.say(session)
        await harness.runner(await harness.claimed(session, f"w{number}")).run()
    written = await kinds(harness, session)
    for epoch in (1, 2):
        assert next(kind for at, kind in written if at == epoch) == "claimed"
    assert [kind for _, kind in written if kind in ("claimed", "text")] == [
        "claimed",
        "text",
        "text",
        "claimed",
    ]
    assert [fact["worker"] for fact in await harness.facts(session, "claimed")] == ["w1", "w2"]
    kept = await harness.facts(session, "text")
    assert kept[0] == {"kind": "text", "sha256": FIRST, "content": "some settings"}
    assert kept[1]["content"] == {"$blob": SECOND, "bytes": 5_000}
    assert await harness.digest(session) == await harness.live_digest(session)


async def test_claim_that_writes_nothing_leaves_no_word(harness: Harness) -> None:
    told(harness)
    session = await harness.session()
    await harness.submit(session, ops.Interrupt())
    await harness.run(session)
    assert await harness.broker.logs.read_sq(session) == ()
    assert [epoch for epoch, _ in await kinds(harness, session) if epoch] == []


async def test_worker_decides_each_command_of_a_claim_once(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    told(harness)
    decided = list[Command]()

    def counted(state: State, command: Command, moment: Moment) -> Decision:
        decided.append(command)
        return decide(state, command, moment)

    monkeypatch.setattr(step, "decide", counted)
    session = await harness.session()
    for _ in range(2):
        await harness.say(session)
        await harness.run(session)
    assert len(await harness.facts(session, "claimed")) == 2
    assert len(decided) == len(set(map(id, decided)))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / "rules").mkdir(parents=True, mode=0o700)
    folder.chmod(0o700)
    return folder


def about(home: Path, **environ: str) -> About:
    found = {"HOME": str(home), "DENDRO_HOME": str(home), **environ}
    settings = load_settings(SettingsSources(home.parent, found))
    tools = tool_config(settings, "unix:///nowhere", SandboxSupport(None, 4, ()))
    return About(settings, tools, Toolbox([]))


IDLE = State(settings=TurnSettings("/tmp", "never", {"mode": "read-only"}, "gpt-5"))


def test_worker_tells_its_settings_and_no_secret(home: Path) -> None:
    (home / "dendro.toml").write_text(
        'model_provider = "own"\n[model_providers.own]\nname = "own"\n'
        'base_url = "https://me:pass1@models.example/v1"\nhttp_headers = { X-Key = "secret-2" }\n'
        '[mcp_servers.files]\ncommand = "/bin/true"\nenv = { TOKEN = "secret-3" }\n'
    )
    made = about(home, DENDRO_CHAIN_SECRET="secret-4", DENDRO_CHAIN_KEY_ID="k1").of(IDLE, "w1")
    text = made.texts[made.told.settings]
    assert hashlib.sha256(text.encode()).hexdigest() == made.told.settings
    for secret in ("secret-2", "secret-3", "secret-4", "pass1"):
        assert secret not in text
    settings = json.loads(text)
    assert settings["chain"]["key"] == "(hidden)"
    assert settings["mcp_servers"]["files"]["env"] == {"TOKEN": "(hidden)"}
    assert (made.told.worker, made.told.sandbox) == ("w1", {"kind": "landlock", "version": "4"})
    assert made.told.user == f"uid:{os.getuid()}"


def test_worker_tells_the_rules_and_the_trust_of_this_moment(home: Path) -> None:
    worker = about(home)
    before = worker.of(IDLE, "w1").told
    assert (before.rules, before.trust) == ("", "")
    (home / "rules" / "own.rules").write_text('prefix_rule(pattern=["make"])\n')
    TrustList(home).add(home / "x" / "dendro.toml", b"", 1)
    after = worker.of(IDLE, "w1")
    assert json.loads(after.texts[after.told.rules])["rules"][0]["pattern"] == [["make"]]
    assert json.loads(after.texts[after.told.trust])[0]["path"] == str(home / "x" / "dendro.toml")
    (home / "rules" / "own.rules").write_text('prefix_rule(pattern=["cargo"])\n')
    assert worker.of(IDLE, "w1").told.rules not in ("", after.told.rules)
