"""Links that lead in a circle, which an agent can leave in any folder: they are no folder, and no error."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.cli.exec import _as_run
from orchestrator.cli.serve import AskedSessions
from orchestrator.gateways.mcp_server import NotPermitted
from orchestrator.home import without_links
from orchestrator.sandbox.git import repository_above
from orchestrator.sandbox.policy_paths import resolve
from orchestrator.sandbox.trusted_files import LeadsOut, read_regular
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.settings.private_home import is_shared, open_folders
from orchestrator.settings.sources import in_work_tree
from orchestrator.terminal.origin import image_items
from orchestrator.wiring.new_sessions import guide
from orchestrator.wiring.new_threads import _lies_in, signs_of
from orchestrator.wiring.worker_parts import hidden_paths
from orchestrator.workspaces.host_folders import UnfitFolder, host_folder


@pytest.fixture(params=["itself", "another", "below it"])
def circle(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    first, second = tmp_path / "work/circle", tmp_path / "work/second"
    first.parent.mkdir()
    first.symlink_to(first if request.param == "itself" else second)
    second.symlink_to(first)
    return first / "x" if request.param == "below it" else first


def loaded(folder: Path, *overrides: str, **flags: object) -> Settings:
    return load_settings(SettingsSources(folder, {"HOME": str(folder)}, overrides=overrides, flags=flags))


def _is_unfit(folder: Path, home: Path) -> bool:
    settings = loaded(home)
    with pytest.raises(UnfitFolder, match="there is no folder"):
        host_folder(folder, settings.workspace, settings.home, {})
    return True


LOOKS: dict[str, Callable[[Path, Path], object]] = {
    "working folder": lambda at, _: loaded(at.parent, cwd=str(at)).session_defaults.cwd == at,
    "folders to write": lambda at, home: (
        _as_run(loaded(home), (at,)).session_defaults.sandbox.writable_roots == (at,)
    ),
    "first instructions": lambda at, home: guide(loaded(home)).first(at).text is None,
    "further instructions": lambda at, home: guide(loaded(home)).further(str(at), [str(home)]).text is None,
    "repository": lambda at, home: repository_above(at) is None and not in_work_tree(at, {}),
    "signs of git": lambda at, _: signs_of(at) is not None,
    "folder of tenants": lambda at, home: (
        not _lies_in(str(at), home / "elsewhere") and not _lies_in(str(home), at)
    ),
    "shared folder": lambda at, home: not is_shared(loaded(home), at),
    "archive": lambda at, home: open_folders(loaded(home, f"upkeep.archive_url='file://{at}'")) == [],
    "sandbox": lambda at, _: resolve({"mode": "workspace-write"}, at, None, hidden=[at]).cwd == at,
    "portable folder": lambda at, home: _is_unfit(at, home),
    "hidden key": lambda at, home: (
        at.parent in hidden_paths(loaded(home, f"workspace.key_file='{at}'"), "redis://h")
    ),
    "hidden socket": lambda at, home: at.parent in hidden_paths(loaded(home), f"unix://{at}"),
}


@pytest.mark.parametrize("look", LOOKS)
def test_circle_of_links_is_looked_at_as_what_is_not_there(look: str, circle: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert LOOKS[look](circle, home)


def test_file_is_read_whatever_hidden_folder_is_a_circle_and_none_lies_below_one(
    circle: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("words")
    assert read_regular(tmp_path / "file", 9, [circle]) == b"words"
    with pytest.raises(LeadsOut):
        read_regular(tmp_path / "file", 9, [], circle)


def test_program_is_told_that_a_circle_of_links_is_no_folder(circle: Path) -> None:
    asked = AskedSessions(cast(Any, None), cast(Any, None), cast(Any, None), circle.parent)
    with pytest.raises(NotPermitted, match="is no folder"):
        asked._in_folder(circle.name)


async def test_image_of_a_circle_of_links_is_the_sessions_to_refuse(circle: Path) -> None:
    async def head(_: object) -> Any:
        return SimpleNamespace(portable=False)

    [item] = await image_items(cast(Any, SimpleNamespace(head=head)), cast(Any, "s"), [circle])
    assert getattr(item, "path", None) == str(without_links(circle))


def test_path_without_links_is_what_the_system_says(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "l").symlink_to(tmp_path / "a")
    for path in (tmp_path / "l/b", tmp_path / "l/../x", tmp_path / "l/none/y", Path()):
        assert without_links(path) == path.resolve() == Path(os.path.realpath(path))
