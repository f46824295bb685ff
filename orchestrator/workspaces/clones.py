"""Clones of repositories that a session's first content comes from.

The URL is a client's and the repository a stranger's: git is asked for one commit, without hooks, submodules
or filters, by protocols that the machine's owner permits, with the worker's own credentials, for a limited
time.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import signal
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO
from urllib.parse import unquote, urlsplit, urlunsplit

from orchestrator.sandbox.git import git_environment
from orchestrator.sandbox.trusted_files import find_program, named_folders

URL_BYTES = 2048
REF = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_./@+-]{0,254}")
_SCP = re.compile(r"[A-Za-z0-9_.-]+@[A-Za-z0-9.-]+:[^:]")
WORDS_BYTES = 2000


class CloneFailed(Exception):
    """The repository could not be cloned; the text says why, without what a URL may hold of secrets."""


def check_source(url: str, ref: str, protocols: tuple[str, ...]) -> None:
    """Raises `ValueError` for what is no address of a repository, or of a protocol that is not permitted."""
    if len(url) > URL_BYTES or not url.isprintable() or url.startswith("-"):
        raise ValueError(f"git: a URL has at most {URL_BYTES:,} printable characters, and begins with no `-`")
    scheme, separator, _ = url.partition("://")
    named = scheme if separator else ("ssh" if _SCP.match(url) else "")
    if named not in protocols:
        allowed = ", ".join(f"{each}://" for each in protocols) or "none"
        raise ValueError(
            f"git: a repository is cloned by {allowed} here, and {without_secrets(url)} is of another kind. "
            "`workspace.git_protocols` of the workers permits others"
        )
    if ref and (not REF.fullmatch(ref) or ".." in ref or "@{" in ref):
        raise ValueError(f"ref: {ref[:80]!r} is no branch, tag or commit")


def without_secrets(url: str) -> str:
    """A URL without the name and password in it."""
    return re.sub(r"://[^/@]*@", "://", url)[:200]


async def clone(url: str, ref: str, target: Path, environ: Mapping[str, str], seconds: float) -> str:
    """Clones the commit of a ref (of `HEAD` if it is empty) into a bare repository; returns its id.

    Raises `CloneFailed`. Cancelling it kills git.
    """
    protocol = url.partition("://")[0] if "://" in url else "ssh"
    env = _environment(environ, protocol)
    address = _signed_in(url, env)
    options = ("core.hooksPath=/dev/null", "gc.auto=0", "maintenance.auto=false", "transfer.fsckObjects=true")
    git = (_program(), "--no-pager", *(part for option in options for part in ("-c", option)))
    try:
        async with asyncio.timeout(seconds):
            await _run((*git, "init", "--quiet", "--bare", str(target)), env, url)
            fetch = (*git, "-C", str(target), "fetch", "--quiet", "--no-tags", "--depth=1", "--", address)
            await _run((*fetch, ref or "HEAD"), env, url)
            words = (*git, "-C", str(target), "rev-parse", "--verify", "FETCH_HEAD^{commit}")
            return (await _run(words, env, url)).strip()
    except TimeoutError:
        raise CloneFailed(
            f"{without_secrets(url)} was not cloned within {seconds:g} s (`workspace.clone_s`)"
        ) from None


def _signed_in(url: str, env: dict[str, str]) -> str:
    """The address without a name and password, which git gets by its variables.

    Every user of the machine reads the words of a command line, and nobody else's variables.
    """
    parts = urlsplit(url)
    named, at, host = parts.netloc.rpartition("@")
    if parts.scheme not in ("http", "https") or not at:
        return url
    name, _, password = map(unquote, named.partition(":"))
    signed = base64.b64encode(f"{name}:{password}".encode()).decode()
    given = int(env.get("GIT_CONFIG_COUNT") or 0)
    env[f"GIT_CONFIG_KEY_{given}"] = f"http.{parts.scheme}://{host}/.extraHeader"
    env[f"GIT_CONFIG_VALUE_{given}"] = f"Authorization: Basic {signed}"
    env["GIT_CONFIG_COUNT"] = str(given + 1)
    return urlunsplit(parts._replace(netloc=host))


def _program() -> str:
    if (program := find_program("git")) is None:
        raise CloneFailed("git is not installed on this machine, or only where sessions may write")
    return program


def _environment(environ: Mapping[str, str], protocol: str) -> dict[str, str]:
    """The worker's own, with its configuration and credentials of git, without the keys of providers.

    Programs that this configuration names (`ssh`, a helper of credentials) are found where no project is.
    """
    kept = {name: value for name, value in environ.items() if not _is_others(name)}
    folders = named_folders(environ.get("PATH", os.defpath))
    ours = git_environment(person=environ, allow=protocol)
    # Credentials may be named in the machine's configuration; the new repository has none of its own.
    del ours["GIT_CONFIG_NOSYSTEM"]
    return {**kept, **ours, "PATH": ":".join(folders)}


def _is_others(name: str) -> bool:
    """Whether a variable leads git to another repository, or is a key of the worker's and none of git's."""
    if name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR"):
        return True
    return name.startswith("DENDRO_") or name.endswith("_API_KEY")


async def _run(words: tuple[str, ...], env: Mapping[str, str], url: str) -> str:
    # Files, and no pipes: a helper that git leaves behind would keep a pipe open.
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as complained:
        code = await _ended(words, env, said, complained)
        if code:
            complained.seek(0)
            text = complained.read(WORDS_BYTES).decode("utf-8", "replace")
            why = " ".join(text.replace(url, without_secrets(url)).split())
            raise CloneFailed(
                f"{without_secrets(url)} could not be cloned: {why or f'git ended with {code}'}"
            )
        said.seek(0)
        return said.read(WORDS_BYTES).decode("utf-8", "replace")


async def _ended(words: tuple[str, ...], env: Mapping[str, str], out: IO[bytes], err: IO[bytes]) -> int:
    """The exit code of a git that ran to its end; cancelled, it is killed with its helpers."""
    try:
        git = await asyncio.create_subprocess_exec(
            *words,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=dict(env),
            cwd="/",
            start_new_session=True,
        )
    except OSError as error:
        raise CloneFailed(f"git cannot be started: {error.strerror}") from None
    try:
        return await git.wait()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(git.pid, signal.SIGKILL)
        await git.wait()
        raise
