"""Files and folders for their owner alone: how they are made, and that nothing is made otherwise."""

from __future__ import annotations

import ast
import grp
import os
import pwd
import re
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.gateways.wires.listeners import _bound_unix
from orchestrator.private_files import (
    NotPrivate,
    close_below,
    make_folder,
    new_file,
    open_file,
    own_folder,
    replacing,
    write_file,
    write_new_file,
)
from orchestrator.settings import Settings, SettingsError, SettingsSources, load_settings
from orchestrator.settings.private_home import COPIES, SHOWN, open_folders, require_private

ROOT = Path(__file__).parents[1]
NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def settings_of(home: Path, **environ: str) -> Settings:
    return load_settings(SettingsSources(home.parent, {"DENDRO_HOME": str(home), **environ}))


# ── making ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("mask", [0, 0o022, 0o077, 0o177])
def test_modes_are_the_owners_alone_under_every_umask(tmp_path: Path, mask: int) -> None:
    with umask(mask):
        make_folder(tmp_path / "a" / "b")
        write_file(tmp_path / "a" / "b" / "written", b"x")
        os.close(new_file(tmp_path / "a" / "new"))
        os.close(open_file(tmp_path / "a" / "log", os.O_WRONLY | os.O_APPEND))
        _bound_unix(tmp_path / "c" / "socket").close()
    assert {mode(tmp_path / "a"), mode(tmp_path / "a" / "b"), mode(tmp_path / "c")} == {0o700}
    files = ("a/b/written", "a/new", "a/log", "c/socket")
    assert {name: mode(tmp_path / name) & 0o177 for name in files} == dict.fromkeys(files, 0)
    assert (tmp_path / "a" / "b" / "written").read_bytes() == b"x"


def test_open_file_of_an_earlier_version_is_closed_and_keeps_its_content(tmp_path: Path) -> None:
    file = tmp_path / "log"
    file.write_bytes(b"one\n")
    file.chmod(0o644)
    with os.fdopen(open_file(file, os.O_WRONLY | os.O_APPEND), "ab") as log:
        log.write(b"two\n")
    assert (file.read_bytes(), mode(file)) == (b"one\ntwo\n", 0o600)


@pytest.mark.parametrize("target", ["there", "nowhere"])
def test_file_is_not_made_or_written_through_a_link(tmp_path: Path, target: str) -> None:
    (tmp_path / "there").write_bytes(b"a person's own")
    link = tmp_path / "log"
    link.symlink_to(tmp_path / target)
    with pytest.raises(NotPrivate, match=r"log is a link, or no file: remove it"):
        open_file(link, os.O_WRONLY | os.O_TRUNC)
    with pytest.raises(FileExistsError):
        new_file(link)
    write_file(link, b"ours")
    assert (link.is_symlink(), link.read_bytes()) == (False, b"ours")
    assert (tmp_path / "there").read_bytes() == b"a person's own"
    assert not (tmp_path / "nowhere").exists()


def test_fifo_in_the_place_of_a_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "log")
    for flags in (os.O_WRONLY, os.O_RDWR):
        with pytest.raises(NotPrivate, match="no file"):
            open_file(tmp_path / "log", flags)


def test_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir(0o755)
    (tmp_path / "theirs").chmod(0o755)
    (tmp_path / "link").symlink_to(tmp_path / "theirs")
    with pytest.raises(NotPrivate, match="is a link"):
        own_folder(tmp_path / "link")
    assert mode(tmp_path / "theirs") == 0o755


def test_folder_that_everybody_writes_to_is_never_made_ones_own(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    with pytest.raises(NotPrivate, match="other users write to, too"):
        own_folder(tmp_path / "shared")
    assert mode(tmp_path / "shared") == 0o1777


@as_root
def test_what_another_user_has_put_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_bytes(b"")
    for name in ("folder", "file"):
        os.chown(tmp_path / name, NOBODY, NOBODY)
    with pytest.raises(NotPrivate, match=rf"folder belongs to another user \(uid {NOBODY}\)"):
        own_folder(tmp_path / "folder")
    with pytest.raises(NotPrivate, match=rf"file belongs to another user \(uid {NOBODY}\)"):
        open_file(tmp_path / "file", os.O_WRONLY)


@pytest.mark.parametrize("name", ["missing/file", "folder"])
def test_file_that_cannot_be_written_is_named_as_it_was_given(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError) as refused, replacing(tmp_path / name):
        pytest.fail("it was opened")
    assert refused.value.filename == str(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_replaced_file_is_whole_or_as_it_was(tmp_path: Path) -> None:
    write_file(tmp_path / "list", b"before")
    with pytest.raises(ZeroDivisionError), replacing(tmp_path / "list") as file:
        file.write(b"half")
        1 / 0  # noqa: B018
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("list", b"before")]


@pytest.mark.parametrize("make", [write_file, write_new_file, "folder", "log"])
def test_place_that_keeps_no_modes_is_refused_by_its_name_and_nothing_is_left_there(
    make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a disk of a camera: whatever is made there can be read by all."""
    closed, opened = os.fstat, 0o077

    def open_to_all(descriptor: int) -> os.stat_result:
        found = closed(descriptor)
        return os.stat_result((found.st_mode | opened, *found[1:]))

    place = tmp_path / "place"
    monkeypatch.setattr(os, "fstat", open_to_all)
    with pytest.raises(
        NotPrivate, match=r"place can be read by other users, and its file system keeps no modes"
    ):
        if make == "folder":
            own_folder(place)
        elif make == "log":
            open_file(place, os.O_WRONLY)
        else:
            make(place, b"x")
    if callable(make):
        assert list(tmp_path.iterdir()) == []


def test_new_file_takes_no_name_that_another_has_and_is_private_and_whole(tmp_path: Path) -> None:
    place = tmp_path / "state"
    with umask(0):
        assert write_new_file(place, b"first")
    assert (place.read_bytes(), mode(place)) == (b"first", 0o600)
    assert not write_new_file(place, b"second")
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    assert not write_new_file(link, b"third")
    assert place.read_bytes() == b"first"
    assert {path.name for path in tmp_path.iterdir()} == {"state", "link"}, "no draft is left"


@pytest.mark.parametrize("made", [(), ("a",), ("a", "a/b")])
def test_folders_that_are_made_are_private_and_those_that_are_there_stay_as_they_are(
    tmp_path: Path, made: tuple[str, ...]
) -> None:
    for name in made:
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(0o755)
    make_folder(tmp_path / "a/b/c/d")
    modes = {name: mode(tmp_path / name) for name in ("a", "a/b", "a/b/c", "a/b/c/d")}
    assert modes == {name: 0o755 if name in made else 0o700 for name in modes}
    assert [own_folder(tmp_path / "a"), own_folder(tmp_path / "a")] == ["a" in made, False]
    assert mode(tmp_path / "a") == 0o700


def test_closing_passes_over_links_and_changes_no_right_of_the_owner(tmp_path: Path) -> None:
    (tmp_path / "outside").write_bytes(b"")
    (tmp_path / "outside").chmod(0o644)
    folder = tmp_path / "data"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "log").write_bytes(b"")
    (folder / "deep" / "log").chmod(0o464)
    (folder / "deep" / "link").symlink_to(tmp_path / "outside")
    close_below(folder)
    assert [mode(folder), mode(folder / "deep"), mode(folder / "deep" / "log")] == [0o700, 0o700, 0o400]
    assert mode(tmp_path / "outside") == 0o644


# ── the home of an earlier version, and of others ─────────────────────────────────────────────


def _old_home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    with umask(0o022):
        for name in ("sessions/2026/a.jsonl", "archive/tree/0-1.zst", "redis/redis.conf", "dendro.toml"):
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text("")
    return home


def test_home_that_an_earlier_version_left_open_is_closed_and_said_once(tmp_path: Path) -> None:
    home = _old_home(tmp_path)
    settings = settings_of(home)
    [line] = require_private(settings)
    assert f"{home} could be read by other users of this machine (mode 755): it is closed now" in line
    opened = [path for path in (home, *home.rglob("*")) if mode(path) & 0o077]
    assert (opened, require_private(settings)) == ([], [])


def test_open_archive_elsewhere_is_closed_too(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    archive.chmod(0o755)
    settings = settings_of(tmp_path / "home", DENDRO_UPKEEP_ARCHIVE_URL=archive.as_uri())
    assert [folder.path for folder in open_folders(settings)] == [archive]
    assert len(require_private(settings)) == 1
    assert mode(archive) == 0o700


@as_root
def test_home_of_another_user_is_refused_with_the_remedy(tmp_path: Path) -> None:
    home = _old_home(tmp_path)
    os.chown(home, NOBODY, NOBODY)
    with pytest.raises(SettingsError, match=r"belongs to another user.*set DENDRO_HOME"):
        require_private(settings_of(home))
    assert mode(home) == 0o755


@pytest.mark.parametrize("shared", ["user's home", "sticky"])
def test_folder_that_others_need_is_refused_as_a_home_and_stays_as_it_is(tmp_path: Path, shared: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o755 if shared == "user's home" else 0o1777)
    before = mode(home)
    user_home = home if shared == "user's home" else tmp_path
    settings = load_settings(SettingsSources(tmp_path, {"DENDRO_HOME": str(home), "HOME": str(user_home)}))
    with pytest.raises(SettingsError, match="others use, too"):
        require_private(settings)
    assert mode(home) == before


def _home_below(tmp_path: Path) -> tuple[Path, Path]:
    around, home = tmp_path / "around", tmp_path / "around" / "home"
    home.mkdir(parents=True)
    home.chmod(0o700)
    return around, home


@as_root
def test_home_that_is_reached_over_another_users_link_is_refused(tmp_path: Path) -> None:
    around, home = _home_below(tmp_path)
    for name, target in (("whole", home), ("part", around)):
        link = tmp_path / name
        link.symlink_to(target)
        named = link if name == "whole" else link / "home"
        assert require_private(settings_of(named)) == [], "a link of one's own leads where one wants"
        os.lchown(link, NOBODY, NOBODY)
        tmp_path.chmod(0o777)  # where others can make it
        [folder] = open_folders(settings_of(named))
        assert (folder.path, folder.refused) == (link, True)
        with pytest.raises(SettingsError, match=rf"{name} is on the way .* another user's \(uid {NOBODY}\)"):
            require_private(settings_of(named))
        tmp_path.chmod(0o700)


@pytest.mark.parametrize("mode", [0o777, 0o772, 0o2777])
def test_folder_around_the_home_that_others_write_to_is_told_of(tmp_path: Path, mode: int) -> None:
    around, home = _home_below(tmp_path)
    around.chmod(mode)
    [line] = require_private(settings_of(home))
    assert f"{around} can be written to by other users of this machine" in line
    assert f"in the place of {home}" in line
    around.chmod(mode | 0o1000)
    assert require_private(settings_of(home)) == [], "the sticky bit keeps what is this user's"


@as_root
def test_folder_around_the_home_that_is_another_users_is_told_of(tmp_path: Path) -> None:
    around, home = _home_below(tmp_path)
    for mode in (0o755, 0o1777):
        os.chown(around, NOBODY, NOBODY)
        around.chmod(mode)
        [line] = require_private(settings_of(home))
        assert f"{around} belongs to another user of this machine (uid {NOBODY})" in line


@as_root
def test_folder_that_ones_own_group_alone_writes_to_is_nobody_elses(tmp_path: Path) -> None:
    around, home = _home_below(tmp_path)
    around.chmod(0o775)
    assert require_private(settings_of(home)) == []
    os.chown(around, 0, NOBODY)
    around.chmod(0o775)
    assert len(require_private(settings_of(home))) == 1


OF_THE_HOME = ("archive", "procfile", "prompts", "redis", "rules", "sessions", "skills")


def test_each_folder_of_an_open_home_is_closed_to_its_last_file_but_for_copies(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with umask(0o022):
        for name in (*OF_THE_HOME, COPIES):
            (home / name / "deep").mkdir(parents=True)
            for file in (home / name / "first", home / name / "deep" / "second"):
                file.write_text("")
        for name in ("dendro.toml", "trusted.json"):
            (home / name).write_text("")
    (home / "trusted.json").chmod(0o750)
    require_private(settings_of(home))
    left = [path for path in home.rglob("*") if mode(path) & 0o077]
    assert {*left} == {home / COPIES, *(home / COPIES).rglob("*")}
    assert mode(home / "trusted.json") == 0o700, "rights of its owner stay"


def test_home_and_archive_that_are_open_are_closed_and_each_is_told_of(tmp_path: Path) -> None:
    home, archive = _old_home(tmp_path), tmp_path / "archive"
    archive.mkdir()
    for folder, bits in ((home, 0o755), (archive, 0o757)):
        folder.chmod(bits)
    settings = settings_of(home, DENDRO_UPKEEP_ARCHIVE_URL=archive.as_uri())
    of_home, of_archive = require_private(settings)
    assert f"{home} could be read by other users" in of_home
    assert f"{archive} could be read and changed by other users" in of_archive
    assert (mode(home), mode(archive), require_private(settings)) == (0o700, 0o700, [])


@as_root
def test_archive_of_another_user_is_told_of_and_stays_as_it_is(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    archive.chmod(0o755)
    os.chown(archive, NOBODY, NOBODY)
    settings = settings_of(tmp_path / "home", DENDRO_UPKEEP_ARCHIVE_URL=archive.as_uri())
    [folder] = open_folders(settings)
    assert "belongs to another user" in folder.why
    assert (folder.path, folder.closable, folder.refused) == (archive, False, False)
    assert require_private(settings) == []
    assert mode(archive) == 0o755


@as_root
@pytest.mark.parametrize("count", [1, SHOWN, SHOWN + 1])
@pytest.mark.parametrize("where", ["", "rules", "a/b", f"a/{COPIES}"])
def test_each_thing_of_others_in_a_home_that_they_can_write_to_is_named(
    tmp_path: Path, count: int, where: str
) -> None:
    home = _old_home(tmp_path)
    home.chmod(0o777)
    (home / COPIES / "session").mkdir(parents=True)
    os.chown(home / COPIES / "session", NOBODY, NOBODY)  # a command's own
    folder = home / where
    folder.mkdir(parents=True, exist_ok=True)
    theirs = [folder / f"theirs-{number}" for number in range(count)]
    for number, path in enumerate(theirs):
        path.symlink_to("/tmp") if number == 1 else path.write_text("")
        os.lchown(path, NOBODY, NOBODY)
    with pytest.raises(SettingsError) as refused:
        require_private(settings_of(home))
    assert str(refused.value).count("theirs-") == min(count, SHOWN)
    assert ("and more" in str(refused.value)) is (count > SHOWN)
    assert mode(home) == 0o777, "nothing is closed before a person has looked at it"
    for path in theirs:
        os.lchown(path, 0, 0)
    assert len(require_private(settings_of(home))) == 1


@as_root
def test_link_of_another_user_is_refused_wherever_it_stands_on_the_way(tmp_path: Path) -> None:
    around, home = _home_below(tmp_path)
    (tmp_path / "own").symlink_to("theirs")  # from where it lies
    (tmp_path / "theirs").symlink_to(Path("..") / tmp_path.name / "around")
    assert require_private(settings_of(tmp_path / "own" / "home")) == []
    os.lchown(tmp_path / "theirs", NOBODY, NOBODY)
    around.chmod(0o777)
    tmp_path.chmod(0o777)  # a fault before the link, and one behind it
    with pytest.raises(SettingsError, match="theirs is on the way to"):
        require_private(settings_of(tmp_path / "own" / "home"))
    tmp_path.chmod(0o700)
    lines = require_private(settings_of(home))
    assert [f"{around} can be written to" in line for line in lines] == [True], "another way has no such link"


@as_root
def test_sticky_bit_keeps_no_entry_of_another_user(tmp_path: Path) -> None:
    around, home = _home_below(tmp_path)
    inner = around / "theirs"
    inner.mkdir()
    home.rename(inner / "home")
    around.chmod(0o1777)
    assert require_private(settings_of(inner / "home")) == []
    os.chown(inner, NOBODY, NOBODY)
    [line] = require_private(settings_of(inner / "home"))
    assert f"{around} can be written to by other users" in line


@pytest.mark.parametrize(
    ("name", "members", "alone"),
    [("me", [], True), ("me", ["me"], True), ("me", ["me", "other"], False), ("staff", [], False)],
)
def test_group_is_ones_own_if_it_has_ones_name_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, members: list[str], alone: bool
) -> None:
    around, home = _home_below(tmp_path)
    around.chmod(0o775)
    gid = around.stat().st_gid
    user = SimpleNamespace(pw_name="me", pw_gid=gid, pw_dir="/root")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: user)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: SimpleNamespace(gr_name=name, gr_mem=members))
    assert (require_private(settings_of(home)) == []) is alone
    user.pw_gid = gid + 1
    assert len(require_private(settings_of(home))) == 1, "a group that is not the one of this user"


@pytest.mark.parametrize("named", ["user's home", "temporary", "system"])
def test_link_to_a_folder_that_others_need_is_refused_as_a_home(tmp_path: Path, named: str) -> None:
    needed, home = tmp_path / "needed", tmp_path / "home"
    needed.mkdir(0o700)
    home.symlink_to("/var/lib" if named == "system" else needed)
    environ = {"DENDRO_HOME": str(home), "HOME": str(needed if named == "user's home" else tmp_path)}
    if named == "temporary":
        environ["TMPDIR"] = str(needed)
    with pytest.raises(SettingsError, match="others use, too"):
        require_private(load_settings(SettingsSources(tmp_path, environ)))


def test_home_that_is_still_to_be_made_is_no_fault(tmp_path: Path) -> None:
    assert require_private(settings_of(tmp_path / "none" / "home")) == []


# ── nothing is made otherwise ─────────────────────────────────────────────────────────────────

THE_PERSONS = "in a folder of the person's, by the person's umask"
IN_A_COPY = "by a keeper: below a copy of mode 700, or in the person's folder"
KERNEL = "a file of the kernel's"
TRIED = "in a folder of mode 700 that is made for the attempt"

OTHERWISE = {
    "orchestrator/cli/audit.py": (1, "a folder of mode 700 for tables, where the person names it"),
    "orchestrator/demo.py": (3, "the demo's project, in a folder of mode 700"),
    "orchestrator/folders/build.py": (4, IN_A_COPY),
    "orchestrator/folders/copy.py": (15, IN_A_COPY),
    "orchestrator/folders/keeper_process.py": (1, IN_A_COPY),
    "orchestrator/folders/merge.py": (6, IN_A_COPY),
    "orchestrator/folders/packs.py": (1, IN_A_COPY),
    "orchestrator/folders/store.py": (1, IN_A_COPY),
    "orchestrator/folders/stat_cache.py": (1, IN_A_COPY),
    "orchestrator/gateways/folder_facts.py": (3, f"the mark of a folder, {THE_PERSONS}"),
    "orchestrator/model/canonical.py": (1, "the state of a hash, and no file"),
    "orchestrator/private_files.py": (3, "here it is done"),
    "orchestrator/rollouts/bundle_writer.py": (5, "members of a ZIP, whose own file is private"),
    "orchestrator/rollouts/object_store.py": (8, "in an object store: the local folder has a way of its own"),
    "orchestrator/sandbox/limits.py": (4, KERNEL),
    "orchestrator/tools/exec/held_objects.py": (3, KERNEL),
    "orchestrator/tools/patch/writer.py": (3, f"a patch, {THE_PERSONS}"),
    "orchestrator/views/audit_tables.py": (1, "rows on their way, in a new folder of mode 700"),
    "workers/companion.py": (1, KERNEL),
}
"""Files of code that make files or folders otherwise: how often, and why they may."""

MAKERS = frozenset(
    (
        *("write_text", "write_bytes", "pipe_file", "put_file", "copyfile", "copy", "copy2", "copytree"),
        *("mkdir", "makedirs", "touch", "mkfifo", "mknod", "hardlink_to", "FileHandler", "FileHistory"),
    )
)
OWN = frozenset({"touch", "copy", "put_file", "write_text"})
"""Names that methods of Dendro's have, too: there they make no file."""
OWN_OBJECTS = ("copy", "held", "self._objects", "self.folder", "self._folders", "self._hosts")


_MAY_MAKE = re.compile(rf"\b(open|{'|'.join(MAKERS)})\(")


def _makes(call: ast.Call) -> bool:
    """Whether a call can make a file or a folder, by its words."""
    function = call.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name == "open" and ast.unparse(function) == "os.open":
        return _may_create(call.args[1])
    if name == "open":
        wraps = any(given.arg == "closefd" for given in call.keywords)
        return not wraps and any(
            _is_for_writing(each) for each in [*call.args, *(given.value for given in call.keywords)]
        )
    if name in OWN:
        if not isinstance(function, ast.Attribute):
            return False
        owner = ast.unparse(function.value)
        return not owner.startswith(OWN_OBJECTS) and not owner.endswith((".copy", "environ"))
    return name in MAKERS


def _may_create(flags: ast.expr) -> bool:
    """Whether flags of `os.open` create; a variable that is no constant may hold any."""
    names = [node.id for node in ast.walk(flags) if isinstance(node, ast.Name) and node.id != "os"]
    return _creates(flags) or any(_constants().get(name, True) for name in names)


def _creates(flags: ast.AST) -> bool:
    found = (node.attr for node in ast.walk(flags) if isinstance(node, ast.Attribute))
    return not {"O_CREAT", "O_TMPFILE"}.isdisjoint(found)


@cache
def _constants() -> dict[str, bool]:
    """The constants of all modules, and whether they hold a flag that creates."""
    found: dict[str, bool] = {}
    for file in _code():
        for node in ast.parse(file.read_text()).body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                name = node.targets[0].id
                found[name] = found.get(name, False) or _creates(node.value)
    return found


def _code() -> list[Path]:
    return [*ROOT.glob("orchestrator/**/*.py"), *ROOT.glob("workers/**/*.py")]


def _is_for_writing(argument: ast.expr) -> bool:
    text = argument.value if isinstance(argument, ast.Constant) else None
    return (
        isinstance(text, str)
        and re.fullmatch(r"[rwaxbt+]{1,3}", text) is not None
        and text.strip("rbt") != ""
    )


def _made_otherwise() -> Counter[str]:
    found: Counter[str] = Counter()
    for file in _code():
        if not _MAY_MAKE.search(text := file.read_text()):
            continue
        calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
        found.update({str(file.relative_to(ROOT)): sum(map(_makes, calls))})
    return +found


def test_no_code_makes_a_file_or_folder_past_the_private_way_without_a_reason() -> None:
    assert _made_otherwise() == Counter({file: times for file, (times, _) in OTHERWISE.items()})


@pytest.mark.parametrize(
    "line",
    [
        'open("f", "w")',
        'path.open("xb")',
        'path.open(mode="a+")',
        'path.write_text("x")',
        "path.mkdir(parents=True)",
        "os.makedirs(folder)",
        "os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)",
        "shutil.copyfile(a, b)",
        "logging.FileHandler(path)",
    ],
)
def test_ways_to_make_a_file_are_seen(line: str) -> None:
    [call] = [node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Call)]
    assert _makes(call)


def test_reading_is_no_making() -> None:
    for line in ('open("f")', 'path.open("rb")', "os.open(path, os.O_RDONLY)", 'fs.open(path, "r")'):
        [call] = [node for node in ast.walk(ast.parse(line)) if isinstance(node, ast.Call)]
        assert not _makes(call)
