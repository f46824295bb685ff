"""The resolution of a wire policy to the paths of one command."""

import threading
from pathlib import Path

import pytest

from orchestrator.sandbox.policy_paths import InvalidPolicy, git_link, resolve
from orchestrator.wiring.worker_parts import own_code


def workspace(**fields: object) -> dict[str, object]:
    return {"mode": "workspace-write", "exclude_slash_tmp": True, **fields}


def test_workspace_write_opens_the_folder_the_roots_and_the_temporary_folders(tmp_path: Path) -> None:
    cwd, extra, temporary = (tmp_path / name for name in ("cwd", "extra", "t"))
    for folder in (cwd, extra, temporary):
        folder.mkdir()
    policy = {"mode": "workspace-write", "writable_roots": [str(extra), str(tmp_path / "absent")]}
    confinement = resolve(policy, cwd, str(temporary))
    assert confinement.writable_roots == (cwd, extra, Path("/tmp").resolve(), temporary)


def test_exclude_flags_close_the_temporary_folders(tmp_path: Path) -> None:
    confinement = resolve(workspace(exclude_tmpdir_env_var=True), tmp_path, "/var/tmp")
    assert confinement.writable_roots == (tmp_path,)


def test_read_only_opens_nothing_and_danger_everything(tmp_path: Path) -> None:
    read_only = resolve({"type": "read-only"}, tmp_path, "/tmp")
    danger = resolve({"mode": "danger-full-access"}, tmp_path, "/tmp")
    assert (read_only.writable_roots, read_only.network) == ((), False)
    assert (danger.writable_roots, danger.network, danger.hidden) == ((), True, ())


def test_network_is_off_unless_the_policy_turns_it_on(tmp_path: Path) -> None:
    assert not resolve(workspace(), tmp_path, None).network
    assert resolve(workspace(network_access=True), tmp_path, None).network


def test_link_of_this_user_in_the_place_of_the_folder_opens_nothing(tmp_path: Path) -> None:
    real, extra = tmp_path / "real", tmp_path / "extra"
    (real / "below").mkdir(parents=True)
    extra.mkdir()
    (tmp_path / "link").symlink_to("real")
    for cwd in (tmp_path / "link", tmp_path / "link/below", tmp_path / "absent/../link"):
        assert resolve(workspace(writable_roots=[str(extra)]), cwd, None).writable_roots == (extra,)


def test_folder_reached_through_a_link_of_the_machine_is_named_by_its_real_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (tmp_path / "link").symlink_to(real)
    monkeypatch.setattr("orchestrator.sandbox.trusted_files._may_write", lambda path: False)
    assert resolve(workspace(), tmp_path / "link", None).writable_roots == (real,)


def test_the_repository_of_a_root_is_read_only(tmp_path: Path) -> None:
    (tmp_path / ".git/refs").mkdir(parents=True)
    confinement = resolve(workspace(), tmp_path, None)
    assert confinement.read_only_subpaths == (tmp_path / ".git",)
    assert confinement.missing == ()


def test_a_worktree_protects_its_git_file_its_gitdir_and_the_shared_repository(tmp_path: Path) -> None:
    shared = tmp_path / "main/.git"
    gitdir = shared / "worktrees/w"
    gitdir.mkdir(parents=True)
    (gitdir / "commondir").write_text("../..\n")
    worktree = tmp_path / "w"
    worktree.mkdir()
    (worktree / ".git").write_text(f"gitdir: {gitdir}\n")
    confinement = resolve(workspace(), worktree, None)
    assert confinement.read_only_subpaths == (worktree / ".git", gitdir, shared)


def test_a_missing_or_empty_git_folder_is_guarded(tmp_path: Path) -> None:
    bare, empty = tmp_path / "bare", tmp_path / "empty"
    bare.mkdir()
    (empty / ".git").mkdir(parents=True)
    confinement = resolve(workspace(writable_roots=[str(empty)]), bare, None)
    assert confinement.missing == (bare / ".git", empty / ".git")
    assert confinement.read_only_subpaths == ()


def test_the_place_of_a_trusted_configuration_is_guarded_whether_or_not_it_is_there(tmp_path: Path) -> None:
    root, sub, outside = tmp_path / "root", tmp_path / "root/sub", tmp_path / "outside"
    for folder in (root / ".git/refs", sub, outside):
        folder.mkdir(parents=True)
    (sub / "dendro.toml").write_text("")
    places = [folder / "dendro.toml" for folder in (root, sub, root / "gone", outside)]
    policy = workspace(exclude_slash_tmp=True)
    confinement = resolve(policy, root, None, trusted=places)
    assert confinement.missing == (places[0],)
    assert places[1] in confinement.read_only_subpaths
    assert not resolve(policy, root, None).missing


def test_a_repository_named_as_a_root_is_writable(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    (git / "refs").mkdir(parents=True)
    confinement = resolve(workspace(writable_roots=[str(git)]), tmp_path, None)
    assert git in confinement.writable_roots
    assert git not in confinement.read_only_subpaths


def test_folders_to_hide_are_kept_when_they_exist(tmp_path: Path) -> None:
    cwd, secret = tmp_path / "cwd", tmp_path / "secret"
    cwd.mkdir()
    secret.mkdir()
    confinement = resolve(workspace(), cwd, None, hidden=(tmp_path / "no", secret))
    assert secret in confinement.hidden
    assert tmp_path / "no" not in confinement.hidden


def test_dendros_own_folder_is_no_workspace(tmp_path: Path) -> None:
    home, cwd = tmp_path / "home", tmp_path / "cwd"
    home.mkdir()
    cwd.mkdir()
    for place, policy in ((home, workspace()), (cwd, workspace(writable_roots=[str(home)]))):
        confinement = resolve(policy, place, None, hidden=(home,))
        assert home not in confinement.writable_roots
        assert home in confinement.hidden
        assert home / ".git" not in confinement.missing


def test_unix_sockets_are_given_where_all_that_is_to_be_hidden_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    def given(*hidden: Path, mode: str = "workspace-write") -> bool:
        policy = {"mode": mode, "exclude_slash_tmp": True}
        return resolve(policy, tmp_path / "cwd", None, hidden=hidden, unix_sockets=True).unix_sockets

    (tmp_path / "cwd").mkdir()
    (tmp_path / "secret").mkdir()
    assert given(tmp_path / "secret")
    assert given(tmp_path / "secret", mode="read-only")
    assert given(tmp_path / "secret", Path("/run"))
    assert not given(tmp_path / "secret", tmp_path / "absent")
    assert not given(tmp_path / "file")
    assert not resolve(workspace(), tmp_path / "cwd", None).unix_sockets


def test_link_that_a_command_put_in_the_place_of_a_root_opens_nothing(tmp_path: Path) -> None:
    cwd, target = tmp_path / "cwd", tmp_path / "target"
    cwd.mkdir()
    target.mkdir()
    for name in ("build", "deep/x"):
        (cwd / name).parent.mkdir(exist_ok=True)
        (cwd / name).symlink_to(target)
        policy = workspace(writable_roots=[name, str(cwd / name / "below")])
        (target / "below").mkdir(exist_ok=True)
        assert resolve(policy, cwd, None).writable_roots == (cwd,)
    temporary = {"mode": "workspace-write", "exclude_slash_tmp": True}
    assert resolve(temporary, cwd, str(cwd / "build")).writable_roots == (cwd,)


def test_folder_whose_repository_is_a_link_is_not_written_and_a_git_file_opens_it(
    tmp_path: Path,
) -> None:
    """A mount holds no link: a command could put a repository of its own in its place."""
    cwd, store = tmp_path / "cwd", tmp_path / "store"
    cwd.mkdir()
    store.mkdir()
    (cwd / ".git").symlink_to(store)
    found = resolve(workspace(), cwd, None)
    assert found.writable_roots == ()
    assert "is a link, which a command could exchange" in git_link(cwd)
    below = resolve({"mode": "workspace-write", "exclude_slash_tmp": True}, cwd, str(tmp_path))
    assert below.writable_roots == (tmp_path,)
    assert cwd in below.read_only_subpaths
    (cwd / ".git").unlink()
    (cwd / ".git").write_text(f"gitdir: {store}\n")
    assert resolve(workspace(), cwd, None).writable_roots == (cwd,)
    assert git_link(cwd) == ""


def test_link_that_only_a_person_can_have_made_leads_to_a_root(tmp_path: Path) -> None:
    cwd, target = tmp_path / "cwd", tmp_path / "target"
    cwd.mkdir()
    target.mkdir()
    (tmp_path / "link").symlink_to(target)
    policy = workspace(writable_roots=[str(tmp_path / "link")])
    assert resolve(policy, cwd, None).writable_roots == (cwd, target)


@pytest.mark.parametrize(
    "policy",
    [
        {"mode": "write-everything"},
        {},
        {"mode": "workspace-write", "writable_roots": "/"},
        {"mode": "workspace-write", "network_access": "no"},
    ],
)
def test_a_policy_that_cannot_be_understood_is_refused(policy: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(InvalidPolicy):
        resolve(policy, tmp_path, None)


def test_dendros_own_code_is_read_only_in_a_workspace_that_holds_it(tmp_path: Path) -> None:
    code = own_code()
    package = next(path for path in code if path.name == "orchestrator")
    assert (package / "wiring").is_dir()
    confinement = resolve(workspace(), package.parent, None, read_only=code)
    assert package in confinement.read_only_subpaths
    assert all(path in confinement.read_only_subpaths for path in code if path.is_relative_to(package.parent))
    assert resolve(workspace(), tmp_path, None, read_only=code).read_only_subpaths == ()


def test_guard_that_another_command_takes_away_meanwhile_stops_no_command(tmp_path: Path) -> None:
    guard, over = tmp_path / ".git", threading.Event()

    def come_and_go() -> None:
        while not over.is_set():
            guard.mkdir()
            guard.rmdir()

    commands = threading.Thread(target=come_and_go)
    commands.start()
    try:
        found = [resolve({"mode": "workspace-write"}, tmp_path, None).missing for _ in range(1_000)]
    finally:
        over.set()
        commands.join()
    assert all(guard in missing for missing in found)


def test_folders_around_what_is_kept_in_a_root_are_mounted_so_that_none_is_moved(tmp_path: Path) -> None:
    cwd, home, config = tmp_path / "w", tmp_path / "w/.local/share/dendro", tmp_path / "w/conf/x/named.toml"
    root, trusted = cwd / "a/b/root", cwd / "t/u/dendro.toml"
    for folder in (home, config.parent, root / ".git/deep", trusted.parent):
        folder.mkdir(parents=True)
    config.touch()
    (root / ".git/config").touch()
    kept = resolve(
        workspace(writable_roots=[str(root)]),
        cwd,
        None,
        hidden=[home, root / ".git/deep"],
        read_only=[config],
        trusted=[trusted],
    )
    around = {"a", "a/b", ".local", ".local/share", "conf", "conf/x", "t", "t/u"}
    # Not what lies around a folder in `.git`: it would be open to writes.
    assert set(kept.passed) == {cwd / name for name in around}


def test_folders_around_what_no_command_may_write_are_not_opened(tmp_path: Path) -> None:
    home = tmp_path / "outside/of/roots"
    home.mkdir(parents=True)
    (tmp_path / "w").mkdir()
    assert resolve(workspace(), tmp_path / "w", None, hidden=[home]).passed == ()
    assert resolve({"mode": "read-only"}, tmp_path, None, hidden=[home]).passed == ()


GITS = ("none", "empty", "folder", "file", "link", "link to nowhere")


def with_git(root: Path, kind: str, store: Path) -> None:
    root.mkdir(parents=True)
    git = root / ".git"
    match kind:
        case "empty":
            git.mkdir()
        case "folder":
            (git / "hooks").mkdir(parents=True)
        case "file":
            git.write_text(f"gitdir: {store}\n")
        case "link":
            git.symlink_to(store)
        case "link to nowhere":
            git.symlink_to(root / "absent")


@pytest.mark.parametrize("second", GITS)
@pytest.mark.parametrize("first", GITS)
def test_repository_of_every_root_is_guarded_whatever_it_is_and_whatever_the_others_are(
    tmp_path: Path, first: str, second: str
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    roots = {tmp_path / "cwd": first, tmp_path / "extra": second, tmp_path / "cwd/deep/root": second}
    for root, kind in roots.items():
        with_git(root, kind, store)
    policy = workspace(writable_roots=[str(root) for root in [*roots][1:]])
    found = resolve(policy, tmp_path / "cwd", None)
    for root, kind in roots.items():
        closed = kind.startswith("link")
        assert (root in found.writable_roots) is not closed
        if closed:
            assert not found.may_write(root / "file"), root
            continue
        assert found.may_write(root / "file")
        for name in (".git", ".git/config", ".git/hooks/pre-commit"):
            assert not found.may_write(root / name), (root, name)
        assert (root / ".git" in found.missing) is (kind in ("none", "empty"))


def test_what_lies_in_a_hidden_folder_is_hidden_with_it_and_nothing_of_it_is_written(tmp_path: Path) -> None:
    cwd = tmp_path / "cwd"
    inner, beside = cwd / "secret/inner", cwd / "secrets"
    for folder in (inner, beside):
        folder.mkdir(parents=True)
    found = resolve(workspace(), cwd, None, hidden=[inner, cwd / "secret"])
    own = [path for path in found.hidden if path.is_relative_to(tmp_path)]
    assert own == [cwd / "secret"]
    assert not found.may_write(inner / "x")
    assert found.may_write(beside / "x")


def test_folders_around_what_is_kept_are_held_in_every_root(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in ("cwd", "one", "two")]
    secrets = [root / "a/b/secret" for root in roots]
    for folder in secrets:
        folder.mkdir(parents=True)
    policy = workspace(writable_roots=[str(root) for root in roots[1:]])
    found = resolve(policy, roots[0], None, hidden=secrets)
    assert set(found.passed) == {root / name for root in roots for name in ("a", "a/b")}


def test_temporary_folder_without_a_whole_path_opens_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cwd").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.chdir(tmp_path)
    assert resolve(workspace(), tmp_path / "cwd", "tmp").writable_roots == (tmp_path / "cwd",)


@pytest.mark.parametrize("there", [True, False])
def test_trusted_place_that_is_a_link_to_nowhere_is_guarded_where_something_could_be_put_there(
    tmp_path: Path, there: bool
) -> None:
    cwd = tmp_path / "cwd"
    (cwd / "conf").mkdir(parents=True)
    target = cwd / ("conf" if there else "absent") / "dendro.toml"
    (cwd / "dendro.toml").symlink_to(target)
    found = resolve(workspace(), cwd, None, trusted=[cwd / "dendro.toml"])
    assert (target in found.missing) is there


@pytest.mark.parametrize("shift", range(4))
def test_settings_of_every_root_are_not_written_where_they_are_there_or_were_trusted(
    tmp_path: Path, shift: int
) -> None:
    kinds = ("none", "there", "trusted", "trusted and there")
    roots = {tmp_path / name: kinds[(at + shift) % 4] for at, name in enumerate(("cwd", "extra", "more"))}
    for root, kind in roots.items():
        root.mkdir()
        if "there" in kind:
            (root / "dendro.toml").write_text("model = 'x'")
    policy = workspace(writable_roots=[str(root) for root in [*roots][1:]])
    trusted = [root / "dendro.toml" for root, kind in roots.items() if "trusted" in kind]
    found = resolve(policy, tmp_path / "cwd", None, trusted=trusted)
    for root, kind in roots.items():
        assert found.may_write(root / "file")
        assert found.may_write(root / "dendro.toml") is (kind == "none"), (root, kind)
        assert (root / "dendro.toml" in found.missing) is (kind == "trusted")
