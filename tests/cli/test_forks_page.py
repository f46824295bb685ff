"""The examples of the page about going back and forks, as a reader would try them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.machine import Machine, says
from tests.cli.test_mcp import proto, requests

pytestmark = pytest.mark.realredis

PAGE = Path(__file__).parents[2] / "docs/forks.md"


def test_reader_goes_back_over_a_compaction(machine: Machine) -> None:
    example = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    answers = (says("Redis."), says("a summary"), says("For its streams."))
    with machine.model(*answers) as user:
        marks: list[str] = []
        with proto(user) as client:
            for line in example.splitlines():
                submission = json.loads(line.replace("RESPONSE_ID", marks[0] if marks else ""))
                client.send(submission["id"], **submission["op"])
                marks.append(client.until("task_complete")["msg"].get("response_id"))
            first, _, third = (request["body"]["input"] for request in requests(user))
    assert third[: len(first)] == first
    said = ["".join(part["text"] for part in item["content"]) for item in third[len(first) :]]
    assert said == ["Redis.", "Explain why."]
