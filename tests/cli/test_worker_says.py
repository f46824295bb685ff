"""A worker that somebody started by hand tells them what it does."""

from __future__ import annotations

import subprocess

from tests.cli.machine import PATIENCE_S, Machine, dendro


def test_person_who_starts_a_worker_is_told_what_it_serves_and_that_it_drains(machine: Machine) -> None:
    words = dendro("worker", "--pool", "gpu", "--concurrency", "3")
    with subprocess.Popen(
        words, cwd=machine.folder, env=machine.environ, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert process.stderr.readline() == "dendro worker: serving gpu: 3 sessions at once; Ctrl-C drains\n"
        process.terminate()
        assert "dendro worker: draining" in process.stderr.read()
        assert process.wait(PATIENCE_S) == 0
