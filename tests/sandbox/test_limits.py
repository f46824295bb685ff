"""Limits on the number of processes."""

import errno
import os
import resource
import shutil
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestrator.sandbox import limits
from orchestrator.sandbox.limits import Limits, ProcessAllowance, find_pids_cgroup, tasks_of


def test_allowance_is_what_the_user_runs_plus_what_the_command_may() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE):
        counted = tasks_of(os.getuid())
        assert counted >= 2
    allowance = ProcessAllowance(uid=65533, _counted=40, _counted_at=float("inf"))
    ceiling = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    assert allowance.rlimit(Limits(processes=10)) == (50 if ceiling < 0 else min(50, ceiling))


def test_allowance_sets_nothing_for_root_or_without_a_limit() -> None:
    assert ProcessAllowance(uid=0).rlimit(Limits(1024)) is None
    assert ProcessAllowance(uid=65533).rlimit(Limits(processes=None)) is None


def test_cgroup_is_of_use_though_the_kernel_counts_its_ended_process_for_a_moment_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = tmp_path / f"dendro-probe-{os.getpid()}-{threading.get_native_id()}"
    trial.mkdir()
    (trial / "pids.max").touch()
    (trial / "cgroup.procs").touch()
    refusals = [errno.EBUSY, errno.EBUSY]

    def rmdir(folder: str, real: Callable[[str], None] = os.rmdir) -> None:
        if refusals:
            raise OSError(refusals.pop(), "still counted")
        for file in Path(folder).iterdir():
            file.unlink()
        real(folder)

    monkeypatch.setattr(os, "rmdir", rmdir)
    limits._try_out(tmp_path, (("pids.max", "16"),))
    assert not trial.exists()


def test_pids_cgroup_is_found_or_the_reason_is_named() -> None:
    folder, why = find_pids_cgroup()
    if folder is None:
        assert "pids cgroup" in why
        pytest.skip(why)
    # Others may probe at the same time, or have been killed while they did.
    assert not list(folder.glob(f"dendro-probe-{os.getpid()}-*"))


def test_two_threads_probe_at_once_in_places_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, tried = threading.Barrier(2), list[str]()

    def moved(place: Path) -> None:
        tried.append(place.parent.name)
        both.wait(10)

    monkeypatch.setattr(limits, "_move_a_process", moved)
    monkeypatch.setattr(limits, "remove_cgroup", lambda path, patience_s: shutil.rmtree(path))
    real = Path.mkdir

    def made(path: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        real(path, mode, parents, exist_ok)
        (path / "pids.max").touch()

    monkeypatch.setattr(Path, "mkdir", made)
    with ThreadPoolExecutor(2) as pool:
        for trial in [pool.submit(limits._try_out, tmp_path, (("pids.max", "16"),)) for _ in range(2)]:
            trial.result(10)
    assert len(set(tried)) == 2


class Machine:
    """A machine whose `/proc` and cgroups are files of a test."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.files = {"/proc/self/cgroup": root / "cgroup", "/proc/self/mounts": root / "mounts"}
        self.asked: list[str] = []
        self.grants = ""
        """Folders that hand a controller down once they are asked for it."""
        monkeypatch.setattr(limits, "Path", lambda path: self.files.get(str(path), Path(path)))
        monkeypatch.setattr(Path, "write_text", lambda path, text: self._write(path, text))

    def _write(self, path: Path, text: str) -> None:
        if text.startswith("+"):
            self.asked.append(str(path.parent.relative_to(self.root)))
            if self.asked[-1] != self.grants:
                return
            text = f"{path.read_text()} {text[1:]}"
        path.write_bytes(text.encode())

    def has(self, cgroups: str, mounts: dict[str, str]) -> None:
        """The process's cgroups, and the kinds and options of mounts by their names."""
        self.files["/proc/self/cgroup"].write_text(cgroups)
        rows = (f"x {self.root}/{name} {kind} 0 0\n" for name, kind in mounts.items())
        self.files["/proc/self/mounts"].write_text("x / ext4 rw 0 0\n" + "".join(rows))

    def delegates(self, folder: str, controllers: str) -> None:
        place = self.root / folder
        place.mkdir(parents=True, exist_ok=True)
        (place / "cgroup.subtree_control").write_text(controllers)

    def found(self, controller: str) -> list[str]:
        return [str(place.relative_to(self.root)) for place in limits._own_cgroups(controller)]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def test_cgroup_of_version_1_is_that_of_the_hierarchy_that_has_the_controller(fake: Machine) -> None:
    fake.has(
        "9:pids:/p\n5:cpu,memory:/m/n\n3:memory_recursive:/no\n1:name=systemd:/s\n0::/u\n",
        {
            "systemd": "cgroup rw,name=systemd",
            "pids": "cgroup rw,nosuid,pids",
            "both": "cgroup rw,cpu,memory",
            "other": "cgroup rw,memory_recursive",
        },
    )
    assert fake.found("pids") == ["pids/p"]
    assert fake.found("memory") == ["both/m/n"]
    assert fake.found("hugetlb") == []


@pytest.mark.parametrize(
    ("own", "above", "grants", "found"),
    [
        ("cpu pids", "", "", ["all/top/a.service/inner"]),
        ("cpu", "pids memory", "", ["all/top/a.service"]),
        ("", "memory", "all/top/a.service", ["all/top/a.service"]),
        ("", "memory", "all/top/a.service/inner", []),
        ("pidsx", "xpids", "", []),
    ],
)
def test_cgroup_of_version_2_is_ones_own_or_that_around_a_part_of_ones_unit(
    fake: Machine, own: str, above: str, grants: str, found: list[str]
) -> None:
    fake.grants = grants
    fake.has("0::/top/a.service/inner\n", {"all": "cgroup2 rw"})
    fake.delegates("all/top/a.service/inner", own)
    fake.delegates("all/top/a.service", above)
    fake.delegates("all/top", "pids memory")
    assert fake.found("pids") == found


@pytest.mark.parametrize("unit", ["a.service", "a.scope", "a.slice"])
def test_cgroup_around_ones_unit_is_others(fake: Machine, unit: str) -> None:
    fake.has(f"0::/top/{unit}\n", {"all": "cgroup2 rw"})
    fake.delegates(f"all/top/{unit}", "")
    fake.delegates("all/top", "pids")
    assert fake.found("pids") == []
    assert fake.asked == []


def test_both_versions_of_one_machine_are_tried(fake: Machine) -> None:
    fake.has("4:pids:/p\n0::/u\n", {"pids": "cgroup rw,pids", "unified": "cgroup2 rw"})
    fake.delegates("unified/u", "memory pids")
    assert fake.found("pids") == ["pids/p", "unified/u"]
    assert fake.found("memory") == ["unified/u"]
