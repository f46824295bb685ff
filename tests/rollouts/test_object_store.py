"""Named bytes in folders and other stores, and what a store leaves open, half written or unsaid."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from orchestrator.rollouts import object_store
from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects, TooLarge, UnknownStore

OPEN = Path("/proc/self/fd")


@pytest.fixture(params=["folder", "store"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    return Objects(tmp_path.as_uri() if request.param == "folder" else f"memory://{uuid4()}")


def test_object_is_read_as_it_was_put_and_put_again(objects: Objects) -> None:
    assert (objects.exists("a/b"), objects.get("a/b"), objects.names("a"), objects.names("")) == (
        False,
        None,
        [],
        [],
    )
    objects.put("a/b", b"one")
    objects.put("a/b", b"two")
    objects.put("a/c", b"")
    assert (objects.exists("a/b"), objects.get("a/b"), objects.get("a/c")) == (True, b"two", b"")
    assert (objects.names("a"), objects.names("")) == (["b", "c"], ["a"])


def test_removed_object_or_folder_is_gone_and_may_be_removed_again(objects: Objects) -> None:
    for name in ("a/b", "a/c", "d/e"):
        objects.put(name, b"x")
    objects.remove("a/b")
    assert objects.names("a") == ["c"]
    for _ in range(2):
        objects.remove("a")
        assert (objects.exists("a/c"), objects.exists("d/e")) == (False, True)


@pytest.mark.parametrize("most", [0, 1, 6, 7, 8])
@pytest.mark.parametrize("chunk", [1, 3, 7, 99])
def test_object_is_copied_into_a_file_if_it_has_no_byte_too_many(
    objects: Objects, most: int, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "CHUNK", chunk)
    for size in (0, 1, 7):
        objects.put(f"a/{size}", b"x" * size)
        with (tmp_path / f"copy {size}").open("wb") as target:
            if size > most:
                with pytest.raises(TooLarge, match=f"a/{size} has more than the {most} bytes"):
                    objects.get_file(f"a/{size}", target, most)
            else:
                assert objects.get_file(f"a/{size}", target, most) == size
        content = (tmp_path / f"copy {size}").read_bytes()
        assert content == b"x" * size if size <= most else len(content) <= most
    with (tmp_path / "none").open("wb") as target:
        assert objects.get_file("a/none", target, most) is None


def test_unfinished_object_is_not_listed(tmp_path: Path) -> None:
    Objects(tmp_path.as_uri()).put("a/b", b"x")
    (tmp_path / "a" / "c.0123.part").write_bytes(b"half")
    assert Objects(tmp_path.as_uri()).names("a") == ["b"]


def test_unfinished_object_has_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    replace = Path.replace

    def noted(path: Path, to: Path) -> Path:
        seen.append(path.name)
        return replace(path, to)

    monkeypatch.setattr(Path, "replace", noted)
    for _ in range(2):
        Objects(tmp_path.as_uri()).put("a/b", b"x")
    assert len(set(seen)) == 2
    assert all(name.endswith(".part") for name in seen)


def test_folder_and_file_are_synced_in_that_order_and_nothing_is_left_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    fsync = os.fsync

    def noted(descriptor: int) -> None:
        name = Path(f"/proc/self/fd/{descriptor}").readlink().name
        synced.append((name.strip(".").partition(".")[0], (tmp_path / "a" / "b").exists()))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noted)
    before = len(list(OPEN.iterdir()))
    Objects(tmp_path.as_uri()).put("a/b", b"x")
    assert len(list(OPEN.iterdir())) == before
    assert synced == [("b", False), ("a", True)]


def test_object_that_could_not_be_finished_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ArchiveUnavailable, match=r"does not take a/b: .*No space left on device"):
        Objects(tmp_path.as_uri()).put("a/b", b"x")
    assert list((tmp_path / "a").iterdir()) == []


class _Away:
    """A store that answers nothing."""

    def __getattr__(self, name: str) -> Any:
        def fails(*_: object, **__: object) -> None:
            raise TimeoutError

        return fails


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (lambda o: o.put("a/b", b""), "does not take a/b"),
        (lambda o: o.get("a/b"), "does not give a/b"),
        (lambda o: o.exists("a/b"), "does not tell of a/b"),
        (lambda o: o.names("a"), "does not list a"),
        (lambda o: o.remove("a"), "does not remove a"),
    ],
)
def test_store_that_is_away_is_named_with_what_was_asked(asked: Any, said: str) -> None:
    objects = Objects("memory://away")
    objects._fs = _Away()
    with pytest.raises(ArchiveUnavailable, match=f"the archive /away {said}: TimeoutError"):
        asked(objects)


def test_folder_is_the_one_that_its_url_names(tmp_path: Path) -> None:
    folder = tmp_path / "Jörgs Archiv 100%#?"
    Objects(folder.as_uri()).put("a", b"x")
    assert [file.name for file in tmp_path.iterdir()] == [folder.name]
    assert (folder / "a").read_bytes() == b"x"


@pytest.mark.parametrize(("url", "why"), [("foo://x", "Protocol not known"), ("gs://x/y", "gcsfs")])
def test_store_that_no_library_here_reaches_is_refused_by_the_name_of_the_setting(url: str, why: str) -> None:
    with pytest.raises(UnknownStore, match=rf"{why}.*correct upkeep\.archive_url"):
        Objects(url)
