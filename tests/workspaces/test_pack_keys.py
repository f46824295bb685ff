"""The file of keys: who may read it, what it holds, and how a key is exchanged for another."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from orchestrator.workspaces.pack_keys import (
    MOST_KEYS,
    KeyUnavailable,
    PackKeys,
    add_key,
    new_file,
    read_keys,
)

HEX = "0f" * 32


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys"


def written(file: Path, text: str) -> Path:
    file.write_text(text)
    file.chmod(0o600)
    return file


def test_new_file_is_its_owners_alone_and_never_replaces_another(file: Path) -> None:
    key = new_file(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each.id for each in read_keys(file)] == [key.id]
    with pytest.raises(FileExistsError):
        new_file(file)
    assert read_keys(file) == (key,)


def test_id_of_a_key_tells_nothing_of_it_and_neither_does_its_picture(file: Path) -> None:
    key = new_file(file)
    assert key.id not in key.secret.hex()
    assert key.secret.hex() not in repr(key)
    assert repr(key.secret) not in repr(key)


def test_key_that_is_added_reads_and_the_first_one_goes_on_writing(file: Path) -> None:
    first = new_file(file)
    keys = PackKeys(file)
    assert keys.first() == first
    second = add_key(file)
    assert file.stat().st_mode & 0o777 == 0o600
    assert keys.first() == first
    assert keys.of(second.id, "a pack") == second, "a running process sees that the file changed"
    lines = file.read_text().splitlines()
    written(file, "\n".join([lines[-1], *lines[:-1], ""]))
    os.utime(file, ns=(1, 1))
    assert keys.first() == second, "the file is as long as it was, and of another time"
    assert keys.of(first.id, "a pack") == first
    assert list(file.parent.iterdir()) == [file]


def mounted(folder: Path, number: int, text: str) -> None:
    """Puts a file of keys where a container's platform does: the link to a folder is exchanged as a whole."""
    made = folder / f"..{number}"
    made.mkdir()
    written(made / "keys", text)
    os.utime(made / "keys", ns=(1, 1))
    (folder / "..new").symlink_to(made.name)
    (folder / "..new").rename(folder / "..data")


@pytest.mark.parametrize("kept", [False, True])
def test_keys_behind_a_link_are_read_again_each_time_that_it_leads_elsewhere(
    tmp_path: Path, kept: bool
) -> None:
    file = tmp_path / "keys"
    file.symlink_to("..data/keys")
    keys = PackKeys(file)
    for number in range(3):
        secret = f"{number:02x}" * 32
        mounted(tmp_path, number, f"dendro-pack-key-1:{secret}\n")
        if number and not kept:
            (tmp_path / f"..{number - 1}/keys").unlink()
        assert keys.first().secret.hex() == secret
    (tmp_path / "..data").unlink()
    with pytest.raises(KeyUnavailable, match="there is no file"):
        keys.first()
    mounted(tmp_path, 3, f"dendro-pack-key-1:{HEX}\n")
    assert keys.first().secret.hex() == HEX


@pytest.mark.parametrize("links", [1, 2])
def test_keys_behind_links_are_read_again_when_their_file_is_written(tmp_path: Path, links: int) -> None:
    file = tmp_path / "link0"
    for number in range(links):
        (tmp_path / f"link{number}").symlink_to(f"link{number + 1}" if number < links - 1 else "keys")
    first = new_file(tmp_path / "keys")
    keys = PackKeys(file)
    assert keys.all() == (first,)
    second = add_key(file)
    assert keys.all() == (first, second)
    written(tmp_path / "keys", f"dendro-pack-key-1:{second.secret.hex()}\n")
    assert keys.all() == (second,)
    (tmp_path / "keys").chmod(0o640)
    with pytest.raises(KeyUnavailable, match="chmod 600"):
        keys.all()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o601])
def test_file_that_others_may_read_or_write_is_not_used(file: Path, mode: int) -> None:
    new_file(file)
    file.chmod(mode)
    with pytest.raises(KeyUnavailable, match=f"chmod 600 {file}"):
        read_keys(file)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_file_of_another_user_is_not_used(file: Path) -> None:
    new_file(file)
    os.chown(file, 12_345, 12_345)
    with pytest.raises(KeyUnavailable, match="others than its owner"):
        read_keys(file)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "holds 0 keys"),
        ("# a remark\n\n", "holds 0 keys"),
        (f"dendro-pack-key-1:{HEX}\nhush-hush\n", "line 2"),
        (f"dendro-pack-key-1:{HEX[:-2]}\n", "line 1"),
        (f"dendro-pack-key-2:{HEX}\n", "line 1"),
        (f"dendro-pack-key-1:{HEX}\n" * 2, "line 2 .* again"),
        ("".join(f"dendro-pack-key-1:{n:064x}\n" for n in range(MOST_KEYS + 1)), "1 to 64"),
        ("#" * 70_000, "more than"),
    ],
)
def test_file_that_holds_no_keys_is_refused_without_showing_what_it_holds(
    file: Path, text: str, why: str
) -> None:
    with pytest.raises(KeyUnavailable, match=why) as refused:
        read_keys(written(file, text))
    assert "hush" not in str(refused.value)
    assert HEX[:20] not in str(refused.value)


def test_file_that_is_missing_or_no_file_is_named_with_the_remedy(file: Path) -> None:
    with pytest.raises(KeyUnavailable, match=f"dendro keys new {file}"):
        PackKeys(file).first()
    os.mkfifo(file)
    with pytest.raises(KeyUnavailable, match="is no file"):
        PackKeys(file).first()
    with pytest.raises(KeyUnavailable, match="is no file"):
        read_keys(file.parent)


def test_file_holds_no_more_keys_than_are_read(file: Path) -> None:
    written(file, "".join(f"dendro-pack-key-1:{n:064x}\n" for n in range(MOST_KEYS)))
    with pytest.raises(KeyUnavailable, match="remove one"):
        add_key(file)
    assert len(read_keys(file)) == MOST_KEYS


@pytest.mark.parametrize("mode", [0o400, 0o600, 0o440, 0o640])
@pytest.mark.parametrize("extra", [0, 0o001, 0o002, 0o004, 0o010, 0o020])
def test_file_that_a_platform_mounts_as_roots_may_be_read_by_a_group_and_by_nobody_else(
    file: Path, monkeypatch: pytest.MonkeyPatch, mode: int, extra: int
) -> None:
    key = new_file(file)
    facts = os.stat_result((stat.S_IFREG | mode | extra, *file.stat()[1:4], 0, *file.stat()[5:]))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(os, "fstat", lambda descriptor: facts)
    if extra:
        with pytest.raises(KeyUnavailable, match="others than its owner"):
            read_keys(file)
    else:
        assert read_keys(file) == (key,)


@pytest.mark.parametrize("others", [4, 5])
def test_key_that_is_lacking_is_named_with_some_of_those_that_are_there(file: Path, others: int) -> None:
    written(file, "".join(f"dendro-pack-key-1:{n:064x}\n" for n in range(others)))
    ids = [key.id for key in read_keys(file)]
    with pytest.raises(KeyUnavailable) as lacking:
        PackKeys(file).of("00ff", "a pack")
    more = ", …" if others > 4 else ""
    assert f"a pack is encrypted with key 00ff, which `workspace.key_file` ({file}) lacks" in str(
        lacking.value
    )
    assert f"(it has {', '.join(ids[:4])}{more})" in str(lacking.value)
    for key_id in ids:
        assert PackKeys(file).of(key_id, "a pack").id == key_id


@pytest.mark.parametrize("more", [0, 1])
def test_file_of_keys_has_as_many_bytes_as_it_may(file: Path, more: int) -> None:
    line = f"dendro-pack-key-1:{HEX}\n"
    written(file, line + "#" * ((64 << 10) - len(line) + more))
    if more:
        with pytest.raises(KeyUnavailable, match="more than 65,536 bytes"):
            read_keys(file)
    else:
        assert len(read_keys(file)) == 1
