"""Writes of the person's settings file over the app-server: checked as settings first, all or none."""

from __future__ import annotations

import asyncio
import stat
import tomllib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.gateways.app_server.door_ports import ConfigWrite
from orchestrator.gateways.app_server.messages import Code
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.principals import Principal, Scope
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.settings.layers import CannotEdit, with_edits
from orchestrator.wiring.new_threads import SavedSettings, _saved, offer
from tests.doors.peer import ANN, Peer, connected, served
from tests.doors.ports import ports
from tests.doors.schema import assert_valid

OWN = """# mine
model = "old" # and this is why

[sandbox_workspace_write]
network_access = false

[tui]
theme = "dark"
"""


OVERRIDES = (
    "approval_policy=never",
    "sandbox_mode=workspace-write",
    "sandbox_workspace_write.network_access=true",
)


@pytest.fixture
async def peers(tmp_path: Path) -> AsyncIterator[SimpleNamespace]:
    """The machine's user, holders of tokens, and the file."""
    file = tmp_path / "h" / "dendro.toml"
    file.parent.mkdir()
    file.write_text(OWN)
    environ = {"HOME": str(tmp_path), "DENDRO_HOME": str(file.parent), "PATH": "/usr/bin:/bin"}
    sources = SettingsSources(tmp_path, environ, overrides=OVERRIDES)
    settings = load_settings(sources)
    writes = SavedSettings(settings, sources).write
    reads = partial(asyncio.to_thread, _saved, offer(settings), sources)
    tenant = Principal("acme/eve", "acme")
    token = Principal("ci", scope=Scope.ADMIN, token="abc")
    async with (
        served(ports(offer(settings), write_settings=writes, read_settings=reads), notifications) as server,
        connected(server, ANN) as ann,
        connected(server, tenant) as eve,
        connected(server, token) as ci,
    ):
        for peer in (ann, eve, ci):
            await peer.greet(experimentalApi=True)
        yield SimpleNamespace(ann=ann, others=(eve, ci), file=file)


async def write(peer: Peer, key: str, value: Any, **more: Any) -> dict[str, Any]:
    params = {"keyPath": key, "value": value, "mergeStrategy": "replace", **more}
    answer = await peer.call("config/value/write", params)
    assert_valid("ConfigWriteResponse", answer)
    return answer


async def test_person_writes_keys_and_everything_else_of_the_file_stays(peers: SimpleNamespace) -> None:
    done = await write(peers.ann, "model", "new")
    assert (done["status"], done["filePath"]) == ("ok", str(peers.file))
    await write(peers.ann, "sandbox_workspace_write.network_access", True, expectedVersion=done["version"])
    await write(peers.ann, "worker.concurrency", 3)
    await write(peers.ann, "tui", {"theme": "light"}, mergeStrategy="upsert")
    text = peers.file.read_text()
    assert text.startswith('# mine\nmodel = "new"\n')
    found = tomllib.loads(text)
    assert found["sandbox_workspace_write"] == {"network_access": True}
    assert (found["worker"], found["tui"]) == ({"concurrency": 3}, {"theme": "light"})
    await write(peers.ann, "worker.concurrency", None)
    assert not tomllib.loads(peers.file.read_text())["worker"]


async def test_terminal_s_trust_is_told_again_and_warns_nobody(
    peers: SimpleNamespace, tmp_path: Path
) -> None:
    folder = "/home/ann/some.project"
    edits = [{"keyPath": f'projects."{folder}".trust_level', "value": "trusted", "mergeStrategy": "upsert"}]
    await peers.ann.call("config/batchWrite", {"edits": edits})
    told = await peers.ann.call("config/read", {})
    assert_valid("ConfigReadResponse", told)
    assert told["config"]["projects"] == {folder: {"trust_level": "trusted"}}
    for other in peers.others[:1]:
        assert (await other.call("config/read", {}))["config"]["projects"] == {}
    environ = {"HOME": str(tmp_path), "DENDRO_HOME": str(peers.file.parent), "PATH": "/usr/bin:/bin"}
    assert not [
        one for one in load_settings(SettingsSources(tmp_path, environ)).warnings if "projects" in one
    ]


async def test_settings_are_told_as_the_file_has_them_now(peers: SimpleNamespace) -> None:
    await peers.ann.call("setDefaultModel", {"model": "newest", "reasoningEffort": "high"})
    for key, value in (
        ("model_verbosity", "low"),
        ("model_reasoning_summary", "concise"),
        ("tools.web_search", True),
        ("profiles.fast.model", "m-fast"),
        ("profiles.fast.model_providers.own.base_url", "https://u:k-secret@example.com"),
        ("profile", "fast"),
    ):
        await write(peers.ann, key, value)
    config = (await peers.ann.call("config/read", {}))["config"]
    assert (config["model"], config["profile"], config["profiles"]) == (
        "m-fast",
        "fast",
        {"fast": {"model": "m-fast"}},
    )
    saved = (await peers.ann.call("getUserSavedConfig", {}))["config"]
    assert (saved["model"], saved["modelReasoningEffort"], saved["profile"]) == ("m-fast", "high", "fast")
    assert (saved["modelVerbosity"], saved["modelReasoningSummary"]) == ("low", "concise")
    assert saved["profiles"]["fast"]["model"] == "m-fast"
    assert saved["tools"] == {"webSearch": True, "viewImage": True}
    peers.file.write_text("model = [")
    assert (await peers.ann.call("config/read", {}))["config"]["model"] == "old"


async def test_edits_of_one_batch_are_written_all_or_none(peers: SimpleNamespace) -> None:
    edits = [
        {"keyPath": "model", "value": "new", "mergeStrategy": "replace"},
        {"keyPath": "worker.concurrency", "value": "many", "mergeStrategy": "replace"},
    ]
    code, text = await peers.ann.refused("config/batchWrite", {"edits": edits})
    assert (code, "worker.concurrency" in text) == (Code.REFUSED, True)
    assert peers.file.read_text() == OWN
    assert_valid("ConfigWriteResponse", await peers.ann.call("config/batchWrite", {"edits": edits[:1]}))


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"keyPath": "modle", "value": "x"}, "modle"),
        ({"keyPath": "model", "value": {"a": 1}}, "model"),
        ({"keyPath": "model", "value": "x", "expectedVersion": "sha256:0"}, "has changed since"),
        ({"keyPath": "model", "value": "x", "filePath": "/etc/passwd"}, "no other file is written"),
        ({"keyPath": "a b", "value": "x"}, "keyPath"),
        ({"keyPath": "model = 1\nx", "value": "x"}, "keyPath"),
        ({"keyPath": "model", "value": "x" * 70_000}, "at most 65,536 bytes"),
    ],
)
async def test_write_that_makes_no_settings_changes_nothing(
    peers: SimpleNamespace, params: dict[str, Any], said: str
) -> None:
    _, text = await peers.ann.refused("config/value/write", {"mergeStrategy": "replace", **params})
    assert said in text
    assert peers.file.read_text() == OWN
    assert [path.name for path in peers.file.parent.iterdir()] == ["dendro.toml"]


@pytest.mark.parametrize(
    ("key", "value", "counts"),
    [("approval_policy", "untrusted", "never"), ("sandbox_workspace_write.network_access", False, True)],
)
async def test_key_that_the_command_line_sets_is_written_and_said_to_be(
    peers: SimpleNamespace, key: str, value: Any, counts: Any
) -> None:
    done = await write(peers.ann, key, value)
    assert (done["status"], done["overriddenMetadata"]["effectiveValue"]) == ("okOverridden", counts)


async def test_nobody_but_the_machine_s_user_writes_the_file(peers: SimpleNamespace) -> None:
    for other in peers.others:
        params = {"keyPath": "model", "value": "x", "mergeStrategy": "replace"}
        _, text = await other.refused("config/value/write", params)
        assert "the machine's user's" in text
    assert peers.file.read_text() == OWN


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("model = '''\na\n'''\n", "model", "x"),
        ("agents = { max_depth = 1 }\n", "agents.max_depth", 2),
        ("[[x]]\na = 1\n", "x.a", 2),
    ],
)
def test_form_that_no_line_changes_is_left_to_a_person(text: str, key: str, value: object) -> None:
    with pytest.raises(CannotEdit, match=key):
        with_edits(text, [(tuple(key.split(".")), cast(Any, value))])


@pytest.mark.parametrize(
    ("text", "key", "value", "after"),
    [
        ("", "a.b", 1, "[a]\nb = 1\n"),
        ("x = 1", "a.b", True, "x = 1\n\n[a]\nb = true\n"),
        ("[a]\n\n[c]\n", "a.b", 'q"t', '[a]\nb = "q\\"t"\n\n[c]\n'),
        ('[a."d.e"]\n', "a.d\x00e", 1, '[a."d.e"]\nx = 1\n'),
        ("[ a.b ] # c\nx = 1", "a.b.x", [1, "2"], '[ a.b ] # c\nx = [1, "2"]\n'),
        ("a = 1\n", "a", None, ""),
    ],
)
def test_line_is_written_where_its_table_is(text: str, key: str, value: object, after: str) -> None:
    path = ("a", "d.e", "x") if "\x00" in key else tuple(key.split("."))
    assert with_edits(text, [(path, value)]) == after


async def test_every_edit_of_a_batch_and_every_member_of_its_tables_is_written(
    peers: SimpleNamespace,
) -> None:
    edits = [
        ("model", "new", "replace"),
        ("tui", {"theme": "light", "notifications": True}, "upsert"),
        ("sandbox_workspace_write", {"network_access": True, "exclude_slash_tmp": True}, "upsert"),
        ("agents", {"max_depth": 2, "max_spawned": 9}, "replace"),
    ]
    given = [{"keyPath": key, "value": value, "mergeStrategy": how} for key, value, how in edits]
    await peers.ann.call("config/batchWrite", {"edits": given})
    written = tomllib.loads(peers.file.read_text())
    assert {key: written[key] for key, _, _ in edits} == {key: value for key, value, _ in edits}


async def test_writes_of_several_clients_at_the_same_time_are_all_in_the_file(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "DENDRO_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    sources = SettingsSources(tmp_path, environ)
    saved = SavedSettings(load_settings(sources), sources)
    keys = [f"key{number}" for number in range(12)]
    await asyncio.gather(*(saved.write(ConfigWrite([(("tui", key), key)])) for key in keys))
    assert tomllib.loads((tmp_path / "dendro.toml").read_text()) == {"tui": {key: key for key in keys}}


async def test_file_that_a_link_leads_to_is_written_and_the_link_stays(tmp_path: Path) -> None:
    """People keep such files elsewhere; paths in it count from where the link stands."""
    link, file = tmp_path / "h" / "dendro.toml", tmp_path / "kept" / "of dendro.toml"
    for each in (link, file):
        each.parent.mkdir()
    file.write_text(OWN)
    file.chmod(0o640)
    link.symlink_to(file)
    (link.parent / "words.md").write_text("be kind")
    environ = {"HOME": str(tmp_path), "DENDRO_HOME": str(link.parent), "PATH": "/usr/bin:/bin"}
    sources = SettingsSources(tmp_path, environ)
    saved = SavedSettings(load_settings(sources), sources)
    done = await saved.write(
        ConfigWrite([(("model",), "new"), (("model_instructions_file",), "words.md")], str(link))
    )
    assert (done.file, link.readlink()) == (link, file)
    assert tomllib.loads(file.read_text())["model"] == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640
    assert {each.name for each in (*link.parent.iterdir(), *file.parent.iterdir())} == {
        "dendro.toml", "words.md", "of dendro.toml",
    }  # fmt: skip
