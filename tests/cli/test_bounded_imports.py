"""Settings of a stranger's file, as far as an import takes them over: by its folder and by its policies."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.export import _bounded
from orchestrator.core.frozen import replace
from orchestrator.core.settings import PortableFolder, TurnSettings
from orchestrator.gateways.folder_facts import Workspace
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.new_sessions import new_birth

MODES = ["read-only", "workspace-write", "danger-full-access"]
SEALED = {"mode": "read-only"}
APPROVALS = ["untrusted", "on-request", "never"]


def own_of(folder: Path, mode: str, approval: str = "on-request") -> TurnSettings:
    overrides = [f"sandbox_mode={mode}", f"approval_policy={approval}"]
    settings = load_settings(SettingsSources(folder, {"HOME": str(folder)}, overrides=overrides))
    return new_birth(settings, Workspace(), 1, os.urandom).settings


def named(folder: Path) -> dict[str, tuple[str, bool]]:
    """Folders that a file may name, and whether they are the person's own."""
    (folder / "here/below").mkdir(parents=True)
    (folder / "here2").mkdir()
    (folder / "here/out").symlink_to(folder / "here2")
    (folder / "in").symlink_to(folder / "here/below")
    (folder / "circle").symlink_to(folder / "circle")
    here = folder / "here"
    return {
        "here": (f"{here}", True),
        "below": (f"{here}/below", True),
        "not there yet": (f"{here}/none/at all", True),
        "by a link": (f"{folder}/in", True),
        "above": (f"{folder}", False),
        "beside": (f"{folder}/here2", False),
        "back": (f"{here}/../here2", False),
        "by a link out": (f"{here}/out", False),
        "a circle of links": (f"{folder}/circle", False),
        "below a circle": (f"{folder}/circle/x", False),
        "longer than a path": ("/" + "x" * 9_000, False),
    }


@pytest.mark.parametrize("mode", MODES)
def test_file_writes_in_the_persons_own_folder_alone_and_only_as_far_as_the_person_does(
    tmp_path: Path, mode: str
) -> None:
    folders = named(tmp_path)
    own = own_of(tmp_path / "here", mode)
    for name, (cwd, is_own) in folders.items():
        for wanted in MODES:
            told = replace(own, cwd=cwd, sandbox_policy={"mode": wanted})
            most = "read-only" if mode == "workspace-write" and not is_own else mode
            taken = _bounded(own, told, None)
            allowed = MODES.index(wanted) <= MODES.index(most)
            assert taken.sandbox_policy["mode"] == (wanted if allowed else most), (name, wanted)
            assert taken.cwd == cwd


def test_copy_of_a_portable_folder_is_as_good_as_the_persons_own(tmp_path: Path) -> None:
    own = own_of(tmp_path, "workspace-write")
    make: Callable[..., Any] = PortableFolder
    portable = make("/srv/copies", "x")
    for cwd, mode in (("/srv/copies/t/x", "workspace-write"), ("/srv/copies2", "read-only")):
        told = replace(own, cwd=cwd, sandbox_policy={"mode": "workspace-write"})
        assert _bounded(own, told, portable).sandbox_policy["mode"] == mode
    assert _bounded(own, replace(own, cwd="/srv/copies"), None).sandbox_policy["mode"] == "read-only"


@pytest.mark.parametrize("approval", APPROVALS)
@pytest.mark.parametrize("wanted", [*APPROVALS, "sometimes"])
def test_approvals_of_a_file_ask_as_often_as_the_person_wants(
    tmp_path: Path, approval: str, wanted: str
) -> None:
    own = own_of(tmp_path, "read-only", approval)
    told = replace(own, approval_policy=wanted, sandbox_policy={"mode": "danger-full-access"})
    taken = _bounded(own, told, None)
    assert taken.sandbox_policy["mode"] == "read-only"
    stricter = _bounded(
        own_of(tmp_path, "workspace-write", approval), replace(told, sandbox_policy=SEALED), None
    )
    assert stricter.sandbox_policy == SEALED, "whatever becomes of the approvals"
    # One that nobody knows is served as the strictest.
    asks_less = wanted in APPROVALS and APPROVALS.index(wanted) > APPROVALS.index(approval)
    assert taken.approval_policy == stricter.approval_policy == (approval if asks_less else wanted)


@pytest.mark.parametrize("policy", [{}, {"mode": "workspace-write", "writable_roots": [1]}])
def test_policy_that_is_none_is_the_persons_own(tmp_path: Path, policy: dict[str, Any]) -> None:
    own = own_of(tmp_path, "workspace-write")
    assert _bounded(own, replace(own, sandbox_policy=policy), None).sandbox_policy == own.sandbox_policy
