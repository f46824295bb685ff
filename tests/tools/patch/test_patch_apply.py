"""All files of a plan or none, on a real disk, with real attackers and real deaths."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.tools.apply_patch import PatchApplyError, judge, record_of, tidy_job
from orchestrator.tools.patch import writer
from orchestrator.tools.patch.grammar import parse_patch
from orchestrator.tools.patch.plan import DiskFiles, PatchCheckError, PatchPlan, WritableRoots, plan_patch
from tests.tools.patch.in_process import apply_plan, remove_leftovers

Plan = Callable[..., PatchPlan]
Below = Callable[[Path], dict[str, bytes | str]]

EVERY_KIND = (
    "*** Add File: new/deep/n.txt", "+n", "*** Update File: a.txt", "-one", "+1",
    "*** Delete File: README.md",
    "*** Update File: m.txt", "*** Move to: moved/m.txt", "-m", "+M", "*** Add File: over.txt", "+over",
    "*** Delete File: link",
)  # fmt: skip


@pytest.fixture
def many(tree: Path, plan_on_disk: Plan) -> PatchPlan:
    (tree / "m.txt").write_text("m\n")
    (tree / "over.txt").write_text("under\n")
    (tree / "link").symlink_to("a.txt")
    return plan_on_disk(*EVERY_KIND)


def test_every_kind_of_change_is_written_and_nothing_is_left_over(
    tree: Path, many: PatchPlan, everything_below: Below
) -> None:
    assert apply_plan(many, WritableRoots((tree,))) == many.summary
    files = {name: content for name, content in everything_below(tree).items() if not name.startswith(".git")}
    assert files == {
        "a.txt": b"1\ntwo\nthree\n",
        "moved": "folder",
        "moved/m.txt": b"M\n",
        "new": "folder",
        "new/deep": "folder",
        "new/deep/n.txt": b"n\n",
        "over.txt": b"over\n",
    }


def test_modes_are_kept_and_new_files_follow_the_umask(tree: Path, plan_on_disk: Plan) -> None:
    (tree / "a.txt").chmod(0o750)
    (tree / "README.md").chmod(0o4701)
    lines = ("*** Update File: a.txt", "-one", "*** Update File: README.md", "*** Move to: r", "-hello", "+x")
    umask = os.umask(0o027)
    try:
        apply_plan(plan_on_disk(*lines, "*** Add File: sub/n", "+x"), None)
    finally:
        os.umask(umask)
    modes = {name: (tree / name).stat().st_mode & 0o7777 for name in ("a.txt", "r", "sub/n", "sub")}
    assert modes == {"a.txt": 0o750, "r": 0o701, "sub/n": 0o640, "sub": 0o750}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_owner_is_kept_where_permitted(tree: Path, plan_on_disk: Plan) -> None:
    os.chown(tree / "a.txt", 1234, 2345)
    apply_plan(plan_on_disk("*** Update File: a.txt", "-one"), None)
    assert ((tree / "a.txt").stat().st_uid, (tree / "a.txt").stat().st_gid) == (1234, 2345)


def test_update_through_a_symlink_changes_its_target_and_keeps_the_link(
    tree: Path, plan_on_disk: Plan
) -> None:
    (tree / "link").symlink_to("a.txt")
    apply_plan(plan_on_disk("*** Update File: link", "-one", "+1"), WritableRoots((tree,)))
    assert (tree / "link").is_symlink()
    assert (tree / "a.txt").read_text() == "1\ntwo\nthree\n"


def test_plan_outside_of_the_roots_is_refused_again_at_the_write(
    tree: Path, plan_on_disk: Plan, everything_below: Below
) -> None:
    plan = plan_on_disk("*** Update File: a.txt", "-one", "*** Add File: ../other/x", "+x")
    before = everything_below(tree.parent)
    with pytest.raises(PatchApplyError, match=r"outside of the writable roots: .*/other/x"):
        apply_plan(plan, WritableRoots((tree,)))
    assert everything_below(tree.parent) == before


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
@pytest.mark.parametrize("failing", range(7))
def test_failure_at_any_switch_puts_everything_back(
    tree: Path,
    many: PatchPlan,
    everything_below: Below,
    monkeypatch: pytest.MonkeyPatch,
    failing: int,
    links: bool,
) -> None:
    assert len(many.files) == 7
    before = everything_below(tree)
    switched = 0
    switch = writer._switch

    def fail_in_turn(step: writer._Step) -> None:
        nonlocal switched
        if switched == failing:
            raise OSError(errno.EIO, "the disk failed")
        switched += 1
        switch(step)

    monkeypatch.setattr(writer, "_switch", fail_in_turn)
    if not links:
        refuse_hard_links(monkeypatch)
    with pytest.raises(PatchApplyError) as error:
        apply_plan(many, WritableRoots((tree,)))
    assert (error.value.message, error.value.changed) == (
        "Failed to apply the patch: the disk failed. Nothing was written.",
        (),
    )
    assert switched == failing
    assert everything_below(tree) == before


@pytest.mark.parametrize("links", [True, False], ids=["hard links", "no hard links"])
def test_files_that_are_put_back_have_the_modes_and_owners_that_they_had(
    tree: Path, plan_on_disk: Plan, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    (tree / "gone").write_text("gone\n")
    names = ("a.txt", "README.md", "gone")
    for number, (name, mode) in enumerate(zip(names, (0o750, 0o604, 0o2640), strict=True)):
        if os.geteuid() == 0:
            os.chown(tree / name, 1000 + number, 2000 + number)
        (tree / name).chmod(mode)
    plan = plan_on_disk(
        *("*** Update File: a.txt", "-one", "*** Delete File: gone"),
        *("*** Update File: README.md", "*** Move to: moved", "-hello", "+bye", "*** Add File: last", "+x"),
    )

    def facts() -> list[tuple[int, int, int]]:
        found = ((tree / name).stat() for name in names)
        return [(it.st_mode, it.st_uid, it.st_gid) for it in found]

    before = facts()
    switch = writer._switch

    def fail_last(step: writer._Step) -> None:
        if step.name == b"last":
            raise OSError(errno.EIO, "the disk failed")
        switch(step)

    monkeypatch.setattr(writer, "_switch", fail_last)
    if not links:
        refuse_hard_links(monkeypatch)
    with pytest.raises(PatchApplyError, match="Nothing was written"):
        apply_plan(plan, None)
    assert facts() == before


def refuse_hard_links(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", no_links)


def test_file_system_without_hard_links_is_written_too(
    tree: Path, many: PatchPlan, monkeypatch: pytest.MonkeyPatch, everything_below: Below
) -> None:
    refuse_hard_links(monkeypatch)
    apply_plan(many, None)
    assert (tree / "moved/m.txt").read_text() == "M\n"
    assert not [name for name in everything_below(tree) if "dendro" in name]


def test_file_that_cannot_be_put_back_is_named_and_its_content_kept(
    tree: Path, plan_on_disk: Plan, monkeypatch: pytest.MonkeyPatch, everything_below: Below
) -> None:
    plan = plan_on_disk("*** Update File: a.txt", "-one", "*** Delete File: README.md")
    rename, unlink, calls = os.rename, os.unlink, 0

    def only_once(*args: object, **kwargs: object) -> None:
        nonlocal calls
        calls += 1
        if calls > 1:
            raise OSError(errno.EIO, "the disk failed")
        rename(*args, **kwargs)  # type: ignore[arg-type]

    def all_but_one(path: bytes, *, dir_fd: int) -> None:
        if path == b"README.md":
            raise OSError(errno.EACCES, "Permission denied")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rename", only_once)
    monkeypatch.setattr(os, "unlink", all_but_one)
    with pytest.raises(PatchApplyError) as error:
        apply_plan(plan, None)
    assert error.value.changed == (tree / "a.txt",)
    assert "could not be put back" in error.value.message
    kept = [content for name, content in everything_below(tree).items() if name.startswith(".dendro")]
    assert kept == [b"one\ntwo\nthree\n"]


def test_each_file_that_cannot_be_put_back_is_named_and_the_others_are_put_back(
    tree: Path, plan_on_disk: Plan, monkeypatch: pytest.MonkeyPatch, everything_below: Below
) -> None:
    for name in ("one", "two", "three"):
        (tree / name).write_text(f"{name} as it was\n")
    plan = plan_on_disk(
        *(line for name in ("one", "two", "three") for line in (f"*** Add File: {name}", "+new")),
        *("*** Add File: stays", "+new", "*** Delete File: a.txt"),
    )
    rename, unlink, over = os.rename, os.unlink, set[bytes]()

    def not_back(source: bytes, dest: bytes, **folders: int) -> None:
        if over and dest in (b"one", b"three"):
            raise OSError(errno.EIO, "the disk failed")
        rename(source, dest, **folders)

    def not_away(path: bytes, **folder: int) -> None:
        over.update({path} & {b"a.txt"})
        if path in (b"a.txt", b"stays"):
            raise OSError(errno.EACCES, "Permission denied")
        unlink(path, **folder)

    monkeypatch.setattr(os, "rename", not_back)
    monkeypatch.setattr(os, "unlink", not_away)
    with pytest.raises(PatchApplyError) as error:
        apply_plan(plan, None)
    monkeypatch.undo()
    assert error.value.changed == (tree / "one", tree / "three", tree / "stays")
    assert error.value.message.endswith(f"put back: {tree}/one, {tree}/three, {tree}/stays")
    assert (tree / "two").read_text() == "two as it was\n"
    assert (tree / "a.txt").read_text() == "one\ntwo\nthree\n"
    kept = [content for name, content in everything_below(tree).items() if name.startswith(".dendro")]
    assert sorted(map(str, kept)) == [str(b"one as it was\n"), str(b"three as it was\n")]


@pytest.mark.parametrize("failing", ["stage", "switch", "verify"])
def test_error_names_the_file_that_people_know_and_no_temporary_one(
    tree: Path, plan_on_disk: Plan, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    (tree / "sub").symlink_to(".")
    plan = plan_on_disk("*** Update File: sub/a.txt", "-one", "+1", "*** Add File: sub/new", "+x")
    if failing == "stage":
        monkeypatch.setattr(writer, "_CREATE", writer._CREATE | os.O_DIRECTORY)
    elif failing == "switch":

        def refuse(source: bytes, dest: bytes, **_: int) -> None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), source, None, dest)

        monkeypatch.setattr(os, "rename", refuse)
    else:
        (tree / "a.txt").unlink()
        (tree / "a.txt").mkdir()
    with pytest.raises(PatchApplyError) as error:
        apply_plan(plan, None)
    assert f" ({tree}/sub/a.txt). Nothing was written" in error.value.message
    assert ".dendro-patch" not in error.value.message


@pytest.mark.parametrize(
    "meddle",
    [
        lambda tree: (tree / "a.txt").write_text("changed\n"),
        lambda tree: (tree / "a.txt").unlink(),
        lambda tree: (tree / "new.txt").write_text("came up\n"),
        lambda tree: ((tree / "a.txt").unlink(), (tree / "a.txt").mkdir()),
        lambda tree: ((tree / "a.txt").unlink(), (tree / "a.txt").symlink_to("../other/secret.txt")),
        lambda tree: (tree / "new.txt").symlink_to("../other/new.txt"),
        lambda tree: (tree / "new.txt").mkdir(),
        lambda tree: ((tree / "link").unlink(), (tree / "link").write_text("README.md")),
        lambda tree: ((tree / "link").unlink(), (tree / "link").symlink_to("a.txt")),
    ],
)
def test_file_changed_since_the_check_stops_the_whole_patch(
    tree: Path, plan_on_disk: Plan, everything_below: Below, meddle: Callable[[Path], object]
) -> None:
    (tree / "link").symlink_to("README.md")
    plan = plan_on_disk(
        "*** Delete File: README.md", "*** Update File: a.txt", "-one", "*** Add File: new.txt", "+x",
        "*** Delete File: link",
    )  # fmt: skip
    meddle(tree)
    before = everything_below(tree.parent)
    with pytest.raises(PatchApplyError, match="Nothing was written"):
        apply_plan(plan, WritableRoots((tree,)))
    assert everything_below(tree.parent) == before


def test_new_file_never_replaces_one_that_came_up_at_the_last_moment(
    tree: Path, plan_on_disk: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_on_disk("*** Update File: a.txt", "-one", "*** Add File: new.txt", "+ours")
    switch = writer._switch

    def come_first(step: writer._Step) -> None:
        (tree / "new.txt").write_text("theirs\n")
        switch(step)

    monkeypatch.setattr(writer, "_switch", come_first)
    with pytest.raises(PatchApplyError, match="File exists"):
        apply_plan(plan, None)
    assert (tree / "new.txt").read_text() == "theirs\n"
    assert (tree / "a.txt").read_text() == "one\ntwo\nthree\n"


@pytest.mark.parametrize("name", ["sub/secret.txt", "sub/new.txt", "sub/deeper/new.txt"])
def test_folder_swapped_for_a_symlink_after_the_check_leads_nowhere(
    tree: Path, plan_on_disk: Plan, everything_below: Below, name: str
) -> None:
    (tree / "sub").mkdir()
    (tree / "sub" / "secret.txt").write_text("secret\n")
    plan = plan_on_disk("*** Update File: a.txt", "-one", f"*** Add File: {name}", "+evil")
    (tree / "sub").rename(tree / "moved")
    (tree / "sub").symlink_to("../other")
    before = everything_below(tree.parent)
    with pytest.raises(PatchApplyError, match="a symbolic link was put in its place"):
        apply_plan(plan, WritableRoots((tree,)))
    assert everything_below(tree.parent) == before


def test_folder_swapped_for_a_symlink_during_the_write_leads_nowhere(
    tree: Path, plan_on_disk: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tree / "sub").mkdir()
    (tree / "sub" / "secret.txt").write_text("secret\n")
    plan = plan_on_disk("*** Update File: sub/secret.txt", "-secret", "+evil", "*** Add File: sub/n", "+evil")
    switch = writer._switch

    def swap_first(step: writer._Step) -> None:
        if not (tree / "sub").is_symlink():
            (tree / "sub").rename(tree / "moved")
            (tree / "sub").symlink_to("../other")
        switch(step)

    monkeypatch.setattr(writer, "_switch", swap_first)
    apply_plan(plan, WritableRoots((tree,)))
    assert [path.name for path in (tree.parent / "other").iterdir()] == ["secret.txt"]
    assert (tree.parent / "other" / "secret.txt").read_text() == "secret\n"
    assert (tree / "moved" / "secret.txt").read_text() == "evil\n"


ATTACKER = """
import contextlib, itertools, os, sys
os.chdir(sys.argv[1])
print("ready", flush=True)
for number in itertools.count():
    for swap in (
        lambda: os.rename("sub", f"kept{number}"),
        lambda: os.symlink("../other", "sub"),
        lambda: os.unlink("sub"),
        lambda: os.mkdir("sub"),
    ):
        with contextlib.suppress(OSError):
            swap()
"""


def test_racing_attacker_never_gets_a_write_outside(tree: Path, patch: Callable[..., str]) -> None:
    text = patch("*** Add File: sub/deep/n.txt", "+x", "*** Add File: sub/secret.txt", "+evil")
    outcomes = set()
    with subprocess.Popen([sys.executable, "-c", ATTACKER, str(tree)], stdout=subprocess.PIPE) as attacker:
        assert attacker.stdout is not None
        assert attacker.stdout.readline() == b"ready\n"
        try:
            for _ in range(200):
                try:
                    plan = plan_patch(parse_patch(text), tree, DiskFiles())
                    apply_plan(plan, WritableRoots((tree,)))
                    outcomes.add("applied")
                except (PatchCheckError, PatchApplyError):
                    outcomes.add("refused")
        finally:
            attacker.kill()
    assert [path.name for path in (tree.parent / "other").iterdir()] == ["secret.txt"]
    assert (tree.parent / "other" / "secret.txt").read_text() == "secret\n"
    assert "refused" in outcomes


DYING_WORKER = """
import os, signal, sys
from pathlib import Path
from orchestrator.tools.patch import writer
from orchestrator.tools.patch.plan import DiskFiles
from orchestrator.tools.patch.grammar import parse_patch
from orchestrator.tools.patch.plan import plan_patch
from tests.tools.patch.in_process import apply_plan

left, switch = int(sys.argv[2]), writer._switch

def die_in_turn(step):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    switch(step)

writer._switch = die_in_turn
apply_plan(plan_patch(parse_patch(sys.stdin.read()), Path(sys.argv[1]), DiskFiles()), None)
"""


@pytest.mark.parametrize(("switches", "verdict"), [(0, "none"), (1, "in_doubt"), (2, "in_doubt"), (3, "all")])
def test_takeover_can_tell_what_a_killed_writer_had_done(
    tree: Path, patch: Callable[..., str], everything_below: Below, switches: int, verdict: str
) -> None:
    text = patch(
        "*** Update File: a.txt", "-one", "+1", "*** Delete File: README.md", "*** Add File: n", "+x"
    )
    record = record_of(plan_patch(parse_patch(text), tree, DiskFiles()))
    command = [sys.executable, "-c", DYING_WORKER, str(tree), str(switches)]
    worker = subprocess.run(command, input=text, text=True, check=False)
    assert worker.returncode == (0 if switches == 3 else -signal.SIGKILL)
    assert judge(record, DiskFiles()) == verdict
    removed = remove_leftovers(record)
    assert bool(removed) == (switches < 3)
    assert not [name for name in everything_below(tree) if "dendro" in name]
    assert judge(record, DiskFiles()) == verdict
    assert remove_leftovers(record) == 0


@pytest.mark.parametrize("lost", [None, "one", "two", "three"])
def test_takeover_removes_what_a_killed_writer_left_in_every_folder_that_is_still_there(
    tree: Path, plan_on_disk: Plan, lost: str | None
) -> None:
    folders = ("one", "two", "three")
    for name in folders:
        (tree / name).mkdir()
        (tree / name / "f").write_text("x\n")
    record = record_of(
        plan_on_disk(
            *("*** Update File: one/f", "*** Move to: two/moved", "-x", "+y"),
            *("*** Delete File: two/f", "*** Add File: three/n", "+x"),
        )
    )
    prefix = f"{writer.PREFIX}{record.token}-"
    for name in folders:
        for number in range(2):
            (tree / name / f"{prefix}{number}").write_text("left")
    job = tidy_job(record)
    assert job is not None
    if lost:
        (tree / lost).rename(tree / "elsewhere")
        (tree / lost).symlink_to("elsewhere")
    there = 3 - bool(lost)
    assert writer.carry_out(job) == ("tidied", 2 * there)
    assert len(list(tree.rglob(f"{prefix}*"))) == 6 - 2 * there


def test_takeover_leaves_the_temporary_files_of_other_patches_alone(tree: Path, plan_on_disk: Plan) -> None:
    record = record_of(plan_on_disk("*** Update File: a.txt", "-one"))
    (tree / ".dendro-patch-0123456789abcdef-00").write_text("of another plan")
    assert remove_leftovers(record) == 0
    assert (tree / ".dendro-patch-0123456789abcdef-00").exists()
