"""A tree on two machines that share a folder, a Redis and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.machines.conftest import Fleet, fleet_model

pytestmark = pytest.mark.realredis

MAY_WRITE = ("-c", "sandbox_mode=workspace-write", "-c", "approval_policy=never")


def test_machines_have_names_and_folders_of_their_own(fleet: Fleet) -> None:
    ids = {one.shell("cat /etc/machine-id") for one in (fleet.one, fleet.two)}
    assert len(ids) == 2
    assert [one.shell("hostname").strip() for one in (fleet.one, fleet.two)] == ["one", "two"]
    fleet.one.shell("echo here > /srv/work/file")
    assert fleet.one.srv("work/file").read_text() == "here\n"
    assert fleet.two.shell("ls /srv/work") == ""


def test_a_machine_that_is_lost_keeps_its_folders_and_nothing_that_ran(fleet: Fleet) -> None:
    with fleet.one.worker() as worker:
        fleet.one.shell("echo kept > /srv/work/file")
        fleet.one.lose()
        assert worker.wait(20) == -9
    assert fleet.one.processes() == []
    assert fleet.one.shell("cat /srv/work/file") == "kept\n"


def test_agents_of_a_tree_run_on_both_machines_at_once(fleet: Fleet, tmp_path: Path) -> None:
    with fleet_model(tmp_path) as stub:
        fleet = fleet.under(OPENAI_BASE_URL=stub.environ["OPENAI_BASE_URL"])
        with fleet.one.worker("worker.concurrency=1"), fleet.two.worker("worker.concurrency=1"):
            said = fleet.one.says(*MAY_WRITE, "run", "--no-worker", "-C", "/mnt", "Meet.")
    assert "both have met" in said
    assert {(fleet.common / label).read_text().strip() for label in ("left", "right")} == {"one", "two"}
