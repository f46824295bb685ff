"""The example of the page about modes, as a reader would try it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.machine import Machine, says
from tests.cli.test_mcp import proto

pytestmark = pytest.mark.realredis

PAGE = Path(__file__).parents[2] / "docs/modes.md"


def test_reader_asks_for_a_plan(machine: Machine) -> None:
    (example,) = re.findall(r"```json\n(.*?)```", PAGE.read_text(), re.DOTALL)
    plan = "<proposed_plan>\n1. A form\n</proposed_plan>"
    with machine.model(says(plan)) as user, proto(user) as client:
        for line in example.splitlines():
            submission = json.loads(line)
            client.send(submission["id"], **submission["op"])
        client.until("task_complete")
    (done,) = client.all("item_completed")
    assert done["msg"]["item"] == {"type": "Plan", "id": "t1-plan", "text": "1. A form"}
