"""Recorded runs of a program that starts one process a turn, held again with `dendro exec`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conversation import scene
from tests.doors.exec_runs import exec_run
from tests.servers import own_database

RECORDINGS = Path(__file__).parent / "recordings" / "exec-json"
Line = dict[str, Any]


def runs(folder: Path) -> Iterator[tuple[Line, list[Line], int]]:
    """Each process of a recording: how it was started, what it wrote, how it ended."""
    lines = [json.loads(line) for line in (folder / "runs.ndjson").read_text().splitlines()]
    begin = 0
    for place, line in enumerate(lines):
        if "exit" in line:
            yield lines[begin], [one["event"] for one in lines[begin + 1 : place]], line["exit"]
            begin = place + 1


def comparable(events: Sequence[Line]) -> list[Line]:
    """The events without what is free: texts of errors, notices of retries, and where bash is."""
    kept = [event for event in events if event["type"] != "error"]
    text = json.dumps(kept).replace('"/bin/bash ', '"bash ')
    plain: list[Line] = json.loads(text)
    for event in plain:
        if event["type"] == "turn.failed":
            event["error"] = "free"
    return plain


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(folder.name for folder in RECORDINGS.iterdir()))
async def test_program_reads_of_a_run_what_the_peer_wrote(name: str, tmp_path: Path) -> None:
    folder = RECORDINGS / name
    model = json.loads((folder / "model.json").read_text())
    config = (folder / "config.toml").read_text()
    async with scene(tmp_path, config, model, redis_url=own_database()) as place:
        ids: dict[str, str] = {}
        for process, recorded, code in runs(folder):
            words = [ids.get(word, word) for word in process["process"]]
            done = await exec_run(place, *words[2:], stdin=process["stdin"])
            assert done.code == code, done.stderr
            ids.setdefault(recorded[0]["thread_id"], done.events[0]["thread_id"])
            expected = json.loads(_filled(json.dumps(recorded), ids))
            assert comparable(done.events) == comparable(expected), done.stderr


def _filled(text: str, ids: dict[str, str]) -> str:
    for name, id in ids.items():
        text = text.replace(name, id)
    return text


def test_unknown_option_is_a_line_on_stderr_and_nothing_on_stdout(tmp_path: Path) -> None:
    from tests.cli.machine import dendro

    done = subprocess.run(
        dendro("exec", "--experimental-json", "--no-such"), capture_output=True, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"No such option" in done.stderr
