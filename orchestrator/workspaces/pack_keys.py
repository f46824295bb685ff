"""Keys of packs: a file of a person's that its owner alone may read, a key in each line.

The first key writes, all of them read, so that one can be exchanged for another: a new one is added behind,
on every machine, and then put first. A line that begins with `#` is a remark. A running process notices that
the file was changed.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path

from orchestrator.core.frozen import record
from orchestrator.private_files import make_folder, write_file
from orchestrator.private_files import new_file as new_private_file
from orchestrator.rollouts.object_store import ArchiveUnavailable

SETTING = "workspace.key_file"
MOST_KEYS = 64
_MOST_BYTES = 64 << 10
_PREFIX = "dendro-pack-key-1:"
_LINE = re.compile(f"{_PREFIX}([0-9a-f]{{64}})")
_INFO = b"dendro pack key id 1"


class KeyUnavailable(ArchiveUnavailable):
    """This process has not the key that a pack needs: the store may be well, and another process have it."""


@record
class Key:
    """A key, and the id that packs name it by, which tells nothing of it."""

    secret: bytes = field(repr=False)
    id: str


class PackKeys:
    """The keys of a file, read again when it changes. Every method raises `KeyUnavailable`."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read: tuple[tuple[int, ...], Sequence[Key]] | None = None

    def all(self) -> Sequence[Key]:
        """The keys in the order of the file; the first one writes."""
        try:
            known = _version(self._file.stat())
        except OSError as error:
            raise _unreadable(self._file, error) from None
        if self._read is None or self._read[0] != known:
            self._read = known, read_keys(self._file)
        return self._read[1]

    def first(self) -> Key:
        """The key that packs are sealed with."""
        return self.all()[0]

    def of(self, key_id: str, pack: str) -> Key:
        """The key that a pack was sealed with."""
        keys = self.all()
        for key in keys:
            if key.id == key_id:
                return key
        raise KeyUnavailable(
            f"{pack} is encrypted with key {key_id}, which `{SETTING}` ({self._file}) lacks (it has "
            f"{', '.join(key.id for key in keys[:4])}{', …' if len(keys) > 4 else ''}): add that key's line "
            "behind the others"
        )


def read_keys(file: Path) -> Sequence[Key]:
    """The keys of a file that nobody but its owner can read; raises `KeyUnavailable`, which shows no key."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise _unreadable(file, error) from None
    try:
        _require_own(file, os.fstat(descriptor))
        content = os.read(descriptor, _MOST_BYTES + 1)
    finally:
        os.close(descriptor)
    if len(content) > _MOST_BYTES:
        raise KeyUnavailable(f"`{SETTING}`: {file} has more than {_MOST_BYTES:,} bytes: it holds no keys")
    return _parsed(file, content.decode("utf-8", "replace"))


def _require_own(file: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise KeyUnavailable(f"`{SETTING}`: {file} is no file")
    mode = stat.S_IMODE(facts.st_mode)
    mounted = facts.st_uid == 0 != os.geteuid()
    # A secret that a container's platform mounts is root's, and its group is the container's.
    if (facts.st_uid != os.geteuid() and not mounted) or mode & (0o037 if mounted else 0o077):
        raise KeyUnavailable(
            f"`{SETTING}`: {file} may be read or written by others than its owner, so it is not used: "
            f"chmod 600 {file}, and add a new key if somebody may have read it"
        )


def _parsed(file: Path, text: str) -> Sequence[Key]:
    keys: list[Key] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        found = _LINE.fullmatch(line.strip())
        if found is None:
            raise KeyUnavailable(
                f"`{SETTING}`: line {number} of {file} is no key: `dendro keys new` shows the form"
            )
        key = key_of(bytes.fromhex(found[1]))
        if key in keys:
            raise KeyUnavailable(f"`{SETTING}`: line {number} of {file} holds key {key.id} again: remove it")
        keys.append(key)
    if not 1 <= len(keys) <= MOST_KEYS:
        raise KeyUnavailable(
            f"`{SETTING}`: {file} holds {len(keys)} keys, and 1 to {MOST_KEYS} are possible: "
            "`dendro keys new FILE` makes a file with one"
        )
    return tuple(keys)


def key_of(secret: bytes) -> Key:
    """A key of 32 random bytes."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return Key(secret, HKDF(SHA256(), 8, None, _INFO).derive(secret).hex())


def new_file(file: Path) -> Key:
    """Makes a file with one new key, and its folder; raises `OSError`, also where there is a file already."""
    key = key_of(os.urandom(32))
    # The home is made by the first command that needs it, and keys may be made before.
    make_folder(file.absolute().parent)
    with os.fdopen(new_private_file(file), "w") as opened:
        opened.write(f"# Keys of packs: the first one writes, all of them read.\n{_lines(key)}")
        opened.flush()
        os.fsync(opened.fileno())
    return key


def add_key(file: Path) -> Key:
    """Adds a new key behind the others, which reads until it is put first.

    Raises `KeyUnavailable`, `OSError`.
    """
    found = read_keys(file)
    if len(found) == MOST_KEYS:
        raise KeyUnavailable(f"`{SETTING}`: {file} holds {MOST_KEYS} keys, the most that it may: remove one")
    key = key_of(os.urandom(32))
    real = file.resolve()
    write_file(real, f"{real.read_text().rstrip()}\n{_lines(key)}".encode())
    return key


def _lines(key: Key) -> str:
    return f"# {key.id}\n{_PREFIX}{key.secret.hex()}\n"


def _version(facts: os.stat_result) -> tuple[int, ...]:
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns


def _unreadable(file: Path, error: OSError) -> KeyUnavailable:
    if isinstance(error, FileNotFoundError):
        return KeyUnavailable(
            f"`{SETTING}`: there is no file {file}: copy the deployment's to it, or make a first one by "
            f"`dendro keys new {file}`"
        )
    return KeyUnavailable(f"`{SETTING}`: {file} cannot be read: {error.strerror}")
