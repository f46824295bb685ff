"""`dendro diff`, `checkout`, `apply` and `push`, of sessions that no worker holds any more."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from orchestrator.cli.diff import _styled
from orchestrator.cli.main import app
from orchestrator.terminal.faults import ExitCode, Fault, report
from tests.cli.machine import Machine
from tests.cli.portable import UNSAVED, PortableLog
from tests.folders.workshop import Bench, Content, content_of, git

pytestmark = pytest.mark.realredis

LINES = b"".join(b"line %d\n" % number for number in range(20))
BEGAN: dict[str | bytes, Content] = {"README.md": b"first\n", "code/main.py": LINES, "gone.txt": b"gone\n"}


@pytest.fixture
def log(tmp_path: Path) -> PortableLog:
    """A session that began with three files, and changed them by two calls."""
    (tmp_path / "bench").mkdir()
    log = PortableLog(Bench(tmp_path / "bench"))
    log.born(BEGAN)
    log.saved({"code/main.py": LINES.replace(b"line 3\n", b"line three\n")})
    log.saved({"new.txt": b"new\n"}, "gone.txt")
    return log


def run(machine: Machine, *words: str, at: Path | None = None) -> Result:
    """Runs a command in this process, as a person in a folder of the machine does."""
    before = Path.cwd()
    os.chdir(at or machine.folder)
    try:
        result = CliRunner().invoke(app, words, env={**dict.fromkeys(os.environ), **machine.environ})
    finally:
        os.chdir(before)
    return result


def says(machine: Machine, *words: str, at: Path | None = None) -> str:
    done = run(machine, *words, at=at)
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    return done.stdout


def refused(machine: Machine, capsys: pytest.CaptureFixture[str], *words: str, at: Path | None = None) -> str:
    """The words of a command that fails, as its person reads them."""
    done = run(machine, *words, at=at)
    assert done.exit_code == 1
    if isinstance(done.exception, SystemExit):
        return done.stderr
    assert isinstance(done.exception, Exception)
    assert report(done.exception) == 1
    return capsys.readouterr().err


def test_person_sees_what_a_session_changed_as_a_patch_that_git_takes(
    machine: Machine, log: PortableLog, tmp_path: Path
) -> None:
    patch = says(machine, "diff", log.plant(machine))
    assert "-line 3\n+line three\n" in patch
    elsewhere = tmp_path / "elsewhere"
    log.bench.write(BEGAN, elsewhere)
    git(elsewhere, "init", "-q")
    git(elsewhere, "apply", "-", given=patch.encode())
    assert content_of(elsewhere) == content_of(log.bench.folder)


def test_person_sees_the_figures_between_two_entries(machine: Machine, log: PortableLog) -> None:
    session, born = log.plant(machine), log.first + 1
    whole = says(machine, "diff", session, "--stat")
    assert "+1 −1  code/main.py" in whole
    assert whole.endswith("+2 −2 in 3 files\n")
    first = says(machine, "diff", session, "--from", str(born), "--to", str(born + 1), "--stat")
    assert first.endswith("+1 −1 in 1 file\n")


def test_person_sees_which_entries_changed_the_folder(machine: Machine, log: PortableLog) -> None:
    lines = says(machine, "diff", log.plant(machine), "--entries").splitlines()
    assert [line.split(maxsplit=3)[0] for line in lines] == [str(log.first + at) for at in (1, 2, 3)]
    assert [line.split(maxsplit=3)[3] for line in lines] == [
        "it began so", "M code/main.py", "D gone.txt, A new.txt",
    ]  # fmt: skip


def test_terminal_is_not_steered_by_names_in_a_folder(machine: Machine, log: PortableLog) -> None:
    log.saved({b"\x1b[2J\xff": b"x\n"})
    told = says(machine, "diff", log.plant(machine), "--stat")
    assert "\x1b" not in told
    assert r"\033[2J\377" in told


def test_terminal_shows_a_patch_without_obeying_it() -> None:
    lines = list(_styled("+\x1b[2Jred\r\n-\u202eold"))
    assert [str(line) for line in lines] == ["+␛[2Jred␍", "-\\u202eold"]
    assert [line.style for line in lines] == ["green", "red"]


@pytest.mark.parametrize("back", [0, 1, 2])
def test_person_gets_the_folder_of_any_entry(
    machine: Machine, log: PortableLog, tmp_path: Path, back: int
) -> None:
    session, last = log.plant(machine), log.first + 3
    told = says(machine, "checkout", session, str(tmp_path / "mine"), "--at", str(last - back))
    found = {name.decode(): content for name, (_, content) in content_of(tmp_path / "mine").items()}
    assert (
        found
        == [
            {"README.md": b"first\n", "code/main.py": LINES.replace(b"3", b"three", 1), "new.txt": b"new\n"},
            {**BEGAN, "code/main.py": LINES.replace(b"3", b"three", 1)},
            BEGAN,
        ][back]
    )
    assert f"{len(found)} files, as of entry {last - back}" in told
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_checkout_writes_over_nothing(
    machine: Machine, log: PortableLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = log.plant(machine)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/file").write_text("mine")
    assert "nothing is written over" in refused(machine, capsys, "checkout", session, str(tmp_path / "mine"))
    (tmp_path / "mine/file").unlink()
    says(machine, "checkout", session, str(tmp_path / "mine"))


def test_person_gets_the_changes_into_a_folder_that_has_changed_too(
    machine: Machine, log: PortableLog, tmp_path: Path
) -> None:
    session, mine = log.plant(machine), tmp_path / "mine"
    mine_changed = {
        **BEGAN,
        "code/main.py": LINES.replace(b"line 15\n", b"line fifteen\n"),
        "my.txt": b"my\n",
    }
    log.bench.write(mine_changed, mine)
    told = says(machine, "apply", session, "--check", at=mine)
    assert "3 files would change" in told
    assert (mine / "code/main.py").read_bytes() == mine_changed["code/main.py"], "it only looked"
    git(mine, "init", "-q")
    (mine / "deep").mkdir()
    told = says(machine, "apply", session, at=mine / "deep")
    (mine / "deep").rmdir()
    assert "M code/main.py" in told
    found = {name.decode(): content for name, (_, content) in content_of(mine).items()}
    both = LINES.replace(b"line 15\n", b"line fifteen\n").replace(b"line 3\n", b"line three\n")
    assert found == {"README.md": b"first\n", "code/main.py": both, "my.txt": b"my\n", "new.txt": b"new\n"}
    assert f"--from {log.first + 3}" in told


@pytest.mark.parametrize("back", [0, 1, 2])
def test_person_who_follows_the_hint_gets_all_that_came_later(
    machine: Machine, log: PortableLog, tmp_path: Path, back: int
) -> None:
    session, mine, at = log.plant(machine), tmp_path / "mine", log.first + 3 - back
    log.bench.write(BEGAN, mine)
    told = says(machine, "apply", session, "--at", str(at), at=mine)
    hint = told.splitlines()[-1].partition("dendro ")[2].split()
    assert hint == ["apply", session, "--from", str(at)]
    says(machine, *hint, at=mine)
    assert content_of(mine) == content_of(log.bench.folder)


def test_a_conflict_is_named_and_the_folder_is_as_it_was(
    machine: Machine, log: PortableLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session, mine = log.plant(machine), tmp_path / "mine"
    log.bench.write({**BEGAN, "code/main.py": LINES.replace(b"line 3\n", b"line drei\n")}, mine)
    before = content_of(mine)
    told = refused(machine, capsys, "apply", session, "--to", str(mine))
    assert "nothing was written, 1 conflict" in told
    assert "code/main.py" in told
    assert content_of(mine) == before


def test_changes_between_an_entry_and_one_before_it_are_a_mistake(
    machine: Machine, log: PortableLog, tmp_path: Path
) -> None:
    session = log.plant(machine)
    done = run(machine, "apply", session, "--to", str(tmp_path), "--from", "9", "--at", "9")
    assert isinstance(done.exception, Fault)
    assert done.exception.code == ExitCode.USAGE
    assert "--from 9 is not before --at 9" in str(done.exception)


def test_person_gets_a_branch_on_the_commit_that_the_session_began_with(
    machine: Machine, tmp_path: Path
) -> None:
    person = tmp_path / "person"
    log = PortableLog(Bench(tmp_path / "bench"))
    log.bench.write(BEGAN, person)
    for words in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-q", "-m", "First"]):
        git(person, *words)
    log.born(BEGAN, person / ".git")
    log.saved({"new.txt": b"new\n"})
    names = {
        f"GIT_{who}_{what}": "p@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    told = says(machine.under(**names), "push", log.plant(machine), "--branch", "theirs", at=person)
    assert told.startswith("theirs: ")
    assert git(person, "diff", "--stat", "main", "theirs").split()[0] == b"new.txt"
    assert git(person, "log", "--format=%s", "theirs").splitlines()[1:] == [b"First"]
    assert git(person, "status", "--porcelain") == b""


@pytest.mark.parametrize("command", [["checkout", "DIR"], ["apply"], ["push"]])
def test_nothing_is_made_of_a_folder_whose_newest_changes_no_store_has(
    machine: Machine,
    log: PortableLog,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
) -> None:
    log.add(UNSAVED)
    session = log.plant(machine)
    subprocess.run(["git", "init", "-q"], cwd=machine.folder, check=True)
    looked = run(machine, "diff", session, "--stat")
    assert (looked.exit_code, "on machine build-3 only" in looked.stderr) == (0, True)
    rest = [str(tmp_path / "new") for _ in command[1:]]
    assert "on machine build-3 only" in refused(machine, capsys, command[0], session, *rest)


def test_verifier_reads_every_snapshot_again(machine: Machine, log: PortableLog, tmp_path: Path) -> None:
    session = log.plant(machine)
    told = says(machine, "verify", session, "--workspaces")
    assert "3 snapshots from 3 packs are in the store, and whole" in told
    for pack in (tmp_path / "home/archive").rglob(f"*{log.bench.packs[1].stem}.pack"):
        pack.unlink()
    broken = run(machine, "verify", session, "--workspaces")
    assert broken.exit_code == 1
    assert f"at entry {log.first + 2}: the store lacks" in broken.stdout
    assert f"at entry {log.first + 3}: " in broken.stdout, "it is made from that pack, too"


def test_an_imported_session_has_its_folder_in_packs_of_its_own(
    machine: Machine, log: PortableLog, tmp_path: Path
) -> None:
    session, file, archive = log.plant(machine), str(tmp_path / "whole.jsonl"), tmp_path / "home/archive"
    says(machine, "export", session, file, "--full")
    imported = says(machine, "import", file).strip()
    shutil.rmtree(archive / session)
    assert says(machine, "diff", imported, "--stat").endswith("+2 −2 in 3 files\n")
    assert "3 snapshots from 3 packs" in says(machine, "verify", imported, "--workspaces")
    shutil.rmtree(archive)
    assert "lacks 3 packs of its portable folder" in run(machine, "import", file).stderr


def test_a_pack_with_other_bytes_than_its_name_says_is_not_read(
    machine: Machine, log: PortableLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    session = log.plant(machine)
    (pack, *_) = sorted((tmp_path / "home/archive").rglob("*.pack"), key=lambda file: file.stat().st_size)
    pack.write_bytes(pack.read_bytes()[:-1] + b"\0")
    told = refused(machine, capsys, "checkout", session, str(tmp_path / "mine"))
    assert "other bytes than its name says" in told
    assert not (tmp_path / "mine").exists()


def test_changes_are_merged_into_no_folder_that_a_strangers_configuration_names(
    machine: Machine, log: PortableLog, tmp_path: Path
) -> None:
    """With `core.worktree` git itself says that the checkout is your home folder, say."""
    session, home, checkout = log.plant(machine), tmp_path / "anna", tmp_path / "anna/checkout"
    for folder in (home, checkout):
        log.bench.write(BEGAN, folder)
    git(checkout, "init", "--quiet")
    git(checkout, "config", "core.worktree", str(home))
    says(machine, "apply", session, at=checkout)
    assert not (home / "new.txt").exists()
    assert (checkout / "new.txt").read_bytes() == b"new\n"
