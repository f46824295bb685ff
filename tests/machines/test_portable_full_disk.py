"""A machine whose disk is really full makes no folder: another one does, or the task fails by name."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.machines.conftest import Fleet
from tests.machines.test_portable import begun, portable, scripted, shell, until

__all__ = ["portable"]

pytestmark = [
    pytest.mark.realredis,
    pytest.mark.sandbox,
    pytest.mark.night,
]
STEPS = (shell("hostname; wc -c < large.bin"), {"items": [{"text": "done"}]})


@pytest.fixture
def full(portable: Fleet) -> Fleet:
    """The fleet, with a file that the disk of machine one has no room for."""
    portable.two.shell("head -c 2000000 /dev/urandom > /srv/work/large.bin")
    portable.one.shell("mkdir -p /srv/workspaces && mount -t tmpfs -o size=512k none /srv/workspaces")
    return portable.under(DENDRO_WORKSPACE_MIN_FREE="0")


def test_machine_without_room_leaves_the_session_to_another_one(full: Fleet, tmp_path: Path) -> None:
    with scripted(tmp_path, full, *STEPS) as fleet, ExitStack() as stack:
        stack.enter_context(fleet.one.worker("workspace.leave_s=60"))
        with begun(fleet.two, "Work.") as following:
            warned = until(following, "warning", "could not make the folder")
            assert "No space left" in warned["message"]
            stack.enter_context(fleet.two.worker("workspace.leave_s=60"))
            ended = until(following, "exec_command_end")
            until(following, "task_complete")
        assert ended["stdout"] == "two\n2000000\n"


def test_task_fails_by_name_where_no_machine_has_room(full: Fleet, tmp_path: Path) -> None:
    with scripted(tmp_path, full, *STEPS) as fleet, ExitStack() as stack:
        stack.enter_context(fleet.one.worker("workspace.leave_s=0.2"))
        with begun(fleet.two, "Work.") as following:
            for _ in range(2):
                until(following, "warning", "could not make the folder")
            failed = until(following, "error")
            assert failed["message"].startswith("the folder could not be made: ")
            assert "No space left" in failed["message"]
            until(following, "task_complete")
