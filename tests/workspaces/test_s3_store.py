"""The store of packs on a real S3 interface: what is stored is whole, whatever fails in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
import s3fs

from orchestrator.rollouts.object_store import ArchiveUnavailable, Objects
from orchestrator.workspaces.pack_keys import PackKeys, new_file
from orchestrator.workspaces.stored_packs import Packs
from tests.workspaces.s3_server import BUCKET, S3, running_s3
from tests.workspaces.test_packs import MOST, SESSION, TREE, file_with, name_of

CONTENT = b"PACK" * 200_000


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with running_s3() as running:
        yield running


@pytest.fixture
def s3(server: S3, monkeypatch: pytest.MonkeyPatch) -> S3:
    for name, value in server.environ().items():
        monkeypatch.setenv(name, value)
    s3fs.S3FileSystem.clear_instance_cache()
    s3fs.S3FileSystem().mkdirs(BUCKET, exist_ok=True)
    return server


@pytest.fixture
def objects(s3: S3, tmp_path: Path) -> Objects:
    return Objects(f"s3://{BUCKET}{tmp_path}")


async def test_pack_is_read_by_another_worker_and_goes_with_its_tree(
    objects: Objects, tmp_path: Path
) -> None:
    packs, name = Packs(objects), name_of(CONTENT)
    assert await packs.names(TREE, SESSION) == ()
    await packs.put(name, file_with(tmp_path, CONTENT))
    await packs.put(name, file_with(tmp_path, CONTENT))
    assert await packs.has(name)
    assert await packs.names(TREE, SESSION) == (name,), "a listing of before is not remembered"
    await packs.fetch(name, tmp_path / "here.pack", 4 * MOST)
    assert (tmp_path / "here.pack").read_bytes() == CONTENT
    assert objects.changed_s(str(name)) is not None
    objects.remove(str(TREE))
    assert not await packs.has(name)
    objects.remove(str(TREE))


def test_object_is_made_once_where_there_was_none(objects: Objects) -> None:
    assert objects.put_new("home/next/0", b"one")
    assert not objects.put_new("home/next/0", b"another")
    assert objects.get("home/next/0") == b"one"


@pytest.mark.parametrize("fault", ["broken", "half"])
async def test_pack_that_the_store_did_not_take_is_not_there_until_it_is_put_again(
    fault: str, s3: S3, objects: Objects, tmp_path: Path
) -> None:
    packs, name, file = Packs(objects), name_of(CONTENT), file_with(tmp_path, CONTENT)
    with s3.failing(fault), pytest.raises(ArchiveUnavailable, match="does not take"):
        await packs.put(name, file)
    assert s3.met.is_set()
    assert not await packs.has(name)
    assert await packs.names(TREE, SESSION) == (), "half an upload is no pack"
    await packs.put(name, file)
    await packs.fetch(name, tmp_path / "here.pack", 4 * MOST)


async def test_sealed_pack_is_there_whole_or_not_at_all(s3: S3, objects: Objects, tmp_path: Path) -> None:
    new_file(tmp_path / "keys")
    packs, name = Packs(objects, PackKeys(tmp_path / "keys")), name_of(CONTENT)
    file = file_with(tmp_path, CONTENT)
    with s3.failing("half"), pytest.raises(ArchiveUnavailable, match="does not take"):
        await packs.put(name, file)
    assert not await packs.has(name)
    await packs.put(name, file)
    assert await packs.is_sealed(name)
    await packs.fetch(name, tmp_path / "here.pack", 4 * MOST)
    assert (tmp_path / "here.pack").read_bytes() == CONTENT


async def test_store_that_breaks_while_it_is_read_leaves_no_half_pack(
    s3: S3, objects: Objects, tmp_path: Path
) -> None:
    packs, name = Packs(objects), name_of(CONTENT)
    await packs.put(name, file_with(tmp_path, CONTENT))
    with s3.failing("broken", "GET", "HEAD"), pytest.raises(ArchiveUnavailable, match="does not give"):
        await packs.fetch(name, tmp_path / "here.pack", 4 * MOST)
    assert [file.name for file in tmp_path.iterdir()] == ["made.pack"]


async def test_slow_store_holds_up_nobody_else(s3: S3, objects: Objects, tmp_path: Path) -> None:
    packs, name = Packs(objects), name_of(CONTENT)
    with s3.failing("held", "PUT"):
        putting = asyncio.create_task(packs.put(name, file_with(tmp_path, CONTENT)))
        await asyncio.to_thread(s3.met.wait, 30)
        assert not await packs.has(name), "other requests are answered meanwhile"
        assert not putting.done()
    await putting
    assert await packs.has(name)
