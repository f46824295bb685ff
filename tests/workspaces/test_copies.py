"""Copies of folders on a machine: when one is trusted, and what its removal leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.core.ids import new_session_id
from orchestrator.workspaces.copies import Copy, boot_id, copies_below, remove_tree

SESSION = new_session_id(1, 3, 7)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    made = Copy(tmp_path, SESSION, "boot 1")
    made.prepare()
    return made


def test_copy_that_was_never_marked_is_no_known_snapshot(copy: Copy) -> None:
    assert not copy.is_clean("", 3)
    assert not copy.is_clean("a" * 40, 3)


def test_copy_is_clean_of_the_snapshot_that_it_was_left_as(copy: Copy) -> None:
    copy.clean("a" * 40, 3)
    assert copy.is_clean("a" * 40, 3)
    assert not copy.is_clean("b" * 40, 3)


def test_copy_is_not_clean_once_a_call_may_write(copy: Copy) -> None:
    copy.clean("a" * 40, 3)
    copy.dirty("claim")
    assert not copy.is_clean("a" * 40, 3)


def test_copy_of_before_the_machines_last_start_is_not_trusted(copy: Copy, tmp_path: Path) -> None:
    copy.clean("a" * 40, 3)
    assert not Copy(tmp_path, SESSION, "boot 2").is_clean("a" * 40, 3)


def test_copy_that_another_claim_left_than_the_log_knows_is_not_trusted(copy: Copy) -> None:
    copy.clean("a" * 40, 3)
    assert not copy.is_clean("a" * 40, 4)
    copy.clean("a" * 40, 4)
    assert copy.is_clean("a" * 40, 4)


def test_damaged_state_is_no_evidence(copy: Copy, tmp_path: Path) -> None:
    for content in (b"", b"{", b'{"kind":"clean"', b'["clean"]', b'{"kind":"clean","other":1}'):
        (copy.path / "state").write_bytes(content)
        found = Copy(tmp_path, SESSION, "boot 1")
        assert not found.is_clean("", 3)
        assert found.state().unsaved == ""


def test_copy_remembers_its_unsaved_changes_across_other_marks(copy: Copy) -> None:
    copy.unsaved("c" * 40)
    copy.dirty("claim")
    copy.clean("c" * 40, 3)
    assert copy.state().unsaved == "c" * 40
    copy.unsaved("")
    assert copy.is_clean("c" * 40, 3)
    assert copy.state().unsaved == ""


def test_copy_has_one_holder_at_a_time(copy: Copy, tmp_path: Path) -> None:
    with copy.locked() as mine, Copy(tmp_path, SESSION, "boot 1").locked() as theirs:
        assert (mine, theirs) == (True, False)
    with Copy(tmp_path, SESSION, "boot 1").locked() as theirs:
        assert theirs


def test_removed_copy_is_gone_with_folders_that_nobody_may_read(copy: Copy, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    closed = copy.folder / "closed"
    (closed / "deep").mkdir(parents=True)
    (closed / "deep/file").touch()
    (copy.folder / "link").symlink_to(outside)
    (closed / "deep").chmod(0)
    closed.chmod(0)
    copy.remove()
    assert copies_below(tmp_path, "boot 1") == ()
    assert not copy.path.exists()
    assert (outside / "kept").exists()


def test_list_of_copies_leaves_out_what_has_no_sessions_name(copy: Copy, tmp_path: Path) -> None:
    (tmp_path / "copies/other").mkdir()
    assert [found.session for found in copies_below(tmp_path, "boot 1")] == [SESSION]
    assert copies_below(tmp_path / "absent", "boot 1") == ()


def test_removing_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove_tree(tmp_path / "absent")


def test_machine_has_one_boot_id_until_it_is_started_again() -> None:
    assert boot_id() == boot_id()
