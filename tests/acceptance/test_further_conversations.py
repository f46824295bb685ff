"""Conversations of the recorded kind that nobody recorded: `further/*.json`, written from the documents.

A file holds `about`, `source` (where the expectation comes from: Codex, or a decision of this
project's, as in `docs/protocol/sources.md`), `config`, `model` (the scripted answers), `processes` (each
with its `arguments`, its `lines` as recorded ones, where `asked` waits until the model has had so many
requests, and the `exit` code), and where they matter `requests`,
`rollout`, `before` (files of the folder that holds `workspace`, `outside` and `home/data`, as texts, or as
base64 behind `base64:`) and `files` (contents of the workspace; null is a file that must not be there).
Fields and events left out are free, as in the recordings. `@PYTHON@` and `@TESTS@` in `config` are the
interpreter and the folder of the tests, for programs that a conversation starts.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.comparator import compare_events, compare_requests, compare_rollout
from tests.acceptance.conversation import Setup, hold, scene
from tests.acceptance.placeholders import ABSENT, Difference
from tests.acceptance.wires import expected, over
from tests.servers import own_database

FOLDER = Path(__file__).parent / "further"
FILES = sorted(FOLDER.glob("*.json"))
OPEN_DOORS = 'model = "gpt-5"\napproval_policy = "never"\nsandbox_mode = "danger-full-access"\n'


@pytest.mark.slow
@pytest.mark.parametrize(("wire", "name"), over([file.stem for file in FILES]))
async def test_client_is_served_as_the_protocol_says(wire: str, name: str, tmp_path: Path) -> None:
    told = json.loads((FOLDER / f"{name}.json").read_text())
    async with scene(tmp_path, config_of(told), told["model"], wire, own_database()) as place:
        bindings = place.setup.bindings()
        furnish(place.setup, told.get("before", {}))
        found: list[Difference] = []
        for number, process in enumerate(told["processes"]):
            arguments = [bindings.fill(argument) for argument in process.get("arguments", [])]
            async with place.proto(*arguments) as proto:
                exit_code = await hold(proto, process["lines"], bindings, place.asked)
            events = [line["eq"] for line in process["lines"] if "eq" in line]
            found += compare_events(events, proto.events, bindings)
            if exit_code != process.get("exit", 0):
                found.append(Difference(f"exit code {number}", process.get("exit", 0), exit_code))
    if "requests" in told:
        asked = expected(told["requests"], wire, told["model"])
        found += compare_requests(asked, place.held.requests, bindings)
    if "rollout" in told:
        found += compare_rollout(told["rollout"], place.held.rollout, bindings)
    found += _files(place.setup, told.get("files", {}))
    assert not found, "\n".join([told["about"], *map(str, found), place.held.told()])


def config_of(told: dict[str, Any]) -> str:
    """The configuration, with what it starts filled in."""
    config: str = told.get("config", OPEN_DOORS)
    return config.replace("@PYTHON@", sys.executable).replace("@TESTS@", str(FOLDER.parents[1]))


def furnish(setup: Setup, files: dict[str, str]) -> None:
    """Writes the files that are there before the first process."""
    for name, content in files.items():
        path = setup.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        encoded = content.removeprefix("base64:")
        path.write_bytes(content.encode() if encoded == content else base64.b64decode(encoded))


def _files(setup: Setup, expected: dict[str, Any]) -> list[Difference]:
    found = []
    for name, content in expected.items():
        path = setup.workspace / name
        got: Any = path.read_text() if path.exists() else ABSENT
        if got != (ABSENT if content is None else content):
            found.append(Difference(f"file {name}", content, got))
    return found
