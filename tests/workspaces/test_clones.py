"""Clones of repositories: which addresses are taken, and what git is asked for."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from orchestrator.workspaces.service import CloneFailed, check_source, clone, without_secrets

BOTH = ("https", "ssh")
ENVIRON = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def git(folder: Path, *words: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    done = subprocess.run(
        ["git", "-C", str(folder), *who, *words], env=ENVIRON, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "origin"
    folder.mkdir()
    git(folder, "init", "--quiet")
    for content in ("1", "2"):
        (folder / "file").write_text(content)
        git(folder, "add", ".")
        git(folder, "commit", "--quiet", "-m", content)
    git(folder, "branch", "old", "HEAD~1")
    return folder


@pytest.mark.parametrize(
    ("url", "ref"),
    [
        ("https://git.example/a.git", ""),
        ("https://git.example/a.git", "v1.0"),
        ("ssh://git@git.example/a.git", "feature/x"),
        ("git@git.example:team/a.git", "main"),
    ],
)
def test_address_of_a_permitted_protocol_is_taken(url: str, ref: str) -> None:
    check_source(url, ref, BOTH)


@pytest.mark.parametrize(
    ("url", "ref", "why"),
    [
        ("file:///srv/a.git", "", "is cloned by https://, ssh://"),
        ("/srv/a.git", "", "is cloned by"),
        ("ext::sh -c touch% /tmp/x", "", "is cloned by"),
        ("git@host::x", "", "is cloned by"),
        ("--upload-pack=touch /tmp/x", "", "begins with no"),
        ("https://a/b\nc", "", "printable"),
        ("https://" + "a" * 2048, "", "2,048"),
        ("https://ann:hush@[::1/a.git", "", r"^git: https://\[::1/a.git names no host that can be read$"),
        ("https://ann:hush＠a/b", "", "names no host"),
        ("https://a/b", "--output=x", "ref"),
        ("https://a/b", "a..b", "ref"),
        ("https://a/b", "a@{1}", "ref"),
        ("https://a/b", "a b", "ref"),
        ("https://a/b", "+main", "ref"),
        ("https://a/b", ":main", "ref"),
    ],
)
def test_address_that_could_mean_more_than_a_repository_is_refused(url: str, ref: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        check_source(url, ref, BOTH)


@pytest.mark.parametrize("given", ["", "ann:hush@", "ann:hu@sh@", "ann:@@"])
def test_words_about_a_url_leave_its_password_out(given: str) -> None:
    assert without_secrets(f"https://{given}git.example/a@b.git") == "https://git.example/a@b.git"


@pytest.mark.parametrize("ref", ["", "main", "old"])
async def test_clone_has_the_commit_that_was_asked_for(repository: Path, tmp_path: Path, ref: str) -> None:
    target = tmp_path / "bare"
    commit = await clone(repository.as_uri(), ref, target, ENVIRON, 30)
    assert commit == git(repository, "rev-parse", ref or "HEAD")
    assert git(target, "cat-file", "-t", commit) == "commit"
    assert git(target, "rev-list", "--count", commit) == "1"


async def test_clone_of_what_is_no_repository_fails_in_words(tmp_path: Path) -> None:
    url = f"file://ann:hush@{tmp_path}/absent.git"
    with pytest.raises(CloneFailed, match="could not be cloned") as failed:
        await clone(url, "main", tmp_path / "bare", ENVIRON, 30)
    assert "hush" not in str(failed.value)


async def test_password_of_an_address_is_sent_and_stands_in_no_command_line(tmp_path: Path) -> None:
    asked, words = bytearray(), list[bytes]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.extend(await reader.readuntil(b"\r\n\r\n"))
        for process in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):
                words.append(process.read_bytes())
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        place = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(CloneFailed) as failed:
            await clone(f"http://ann:h%75sh@{place}/a.git", "main", tmp_path / "bare", ENVIRON, 30)
    assert base64.b64encode(b"ann:hush") in asked
    seen = [each for each in words if place.encode() in each]
    assert seen, "git was looked at while it ran"
    for text in (
        *seen,
        str(failed.value).encode(),
        *(f.read_bytes() for f in (tmp_path / "bare").glob("config")),
    ):
        assert b"sh@" not in text


async def test_repository_that_does_not_answer_is_given_up(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\nexec sleep 600\n")
    ssh.chmod(0o755)
    environ = {**ENVIRON, "GIT_SSH": str(ssh)}
    with pytest.raises(CloneFailed, match=r"not cloned within 0\.3 s"):
        await clone("git@git.example:a.git", "main", tmp_path / "bare", environ, 0.3)
