"""Portable folders whose packs are encrypted: who goes on with them, and what is unsaved without the key."""

from __future__ import annotations

from pathlib import Path

from orchestrator.core.commands import FolderFailed, FolderUnsaved
from orchestrator.core.facts import WorkspaceSaved
from orchestrator.workspaces.pack_keys import PackKeys, add_key, new_file
from tests.workspaces.machines import NewMachine, Session


async def test_next_holder_with_the_key_goes_on_and_one_without_leaves_it_to_others(
    machine: NewMachine, tmp_path: Path
) -> None:
    new_file(tmp_path / "keys")
    new_file(tmp_path / "other keys")
    first = machine("m1", keys=PackKeys(tmp_path / "keys"))
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("a line of a file\n" * 100)
    await session.changed(first, claim)
    for stored in (tmp_path / "store").rglob("*.pack"):
        assert stored.read_bytes().startswith(b"DENDRPK")
    for name, keys in (("m2", PackKeys(tmp_path / "other keys")), ("m3", None)):
        without = machine(name, keys=keys)
        failed = await session.make(without, session.claim(without))
        assert isinstance(failed, FolderFailed)
        assert failed.elsewhere, "another worker may have the key"
        assert "is encrypted with key" in failed.reason
    second = machine("m4", keys=PackKeys(tmp_path / "keys"))
    await session.made(second)
    assert (second.folder / "a").read_text() == "a line of a file\n" * 100


async def test_folder_is_unsaved_while_its_key_is_gone_and_saved_when_it_is_back(
    machine: NewMachine, tmp_path: Path
) -> None:
    new_file(tmp_path / "keys")
    first = machine(keys=PackKeys(tmp_path / "keys"))
    session = Session()
    claim = await session.made(first)
    (first.folder / "a").write_text("1")
    (tmp_path / "keys").rename(tmp_path / "away")
    unsaved = await session.changed(first, claim)
    assert isinstance(unsaved, FolderUnsaved)
    assert "there is no file" in unsaved.reason
    (tmp_path / "away").rename(tmp_path / "keys")
    add_key(tmp_path / "keys")
    assert isinstance(await session.changed(first, claim), WorkspaceSaved)


async def test_process_that_reads_the_folder_is_given_no_key(machine: NewMachine, tmp_path: Path) -> None:
    key = new_file(tmp_path / "keys")
    first = machine(keys=PackKeys(tmp_path / "keys"))
    session = Session()
    await session.made(first)
    (held,) = first.folders._held.values()
    started_with = Path(f"/proc/{held.keeper.pid}/environ").read_bytes()
    started_with += Path(f"/proc/{held.keeper.pid}/cmdline").read_bytes()
    assert key.secret.hex().encode() not in started_with
    assert b"keys" not in started_with
    files = [str(file.readlink()) for file in Path(f"/proc/{held.keeper.pid}/fd").iterdir()]
    assert not any("keys" in file for file in files)
