"""The person's sign-in at a model provider, in the system's keyring or in a file that is the person's alone.

It is on no command line, in no log and in no answer of a door. Blocking: a keyring may ask the person first.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import orjson

from orchestrator.config_keys import Secret
from orchestrator.core.frozen import record
from orchestrator.private_files import make_folder, write_file

if TYPE_CHECKING:
    from keyring.backend import KeyringBackend

SERVICE = "dendro"
FILE = "credentials.json"
MOST_BYTES = 64 << 10
PATIENCE_S = 10.0
"""The wait for a keyring, which may ask its owner to unlock it."""
T = TypeVar("T")
Place: TypeAlias = Literal["auto", "keyring", "file"]


class CredentialError(Exception):
    """A sign-in cannot be kept or read; the message says why and what to do, and no secret."""


@record
class ApiKey:
    """A key that a provider gave the person."""

    key: Secret = field(repr=False)


@record
class Tokens:
    """Tokens of a sign-in at an OpenID issuer."""

    access: Secret = field(repr=False)
    issuer: str
    client_id: str
    refresh: Secret | None = field(default=None, repr=False)
    expires_at: float | None = None
    """Seconds of the epoch; None: the issuer did not say."""
    email: str | None = None


Credential: TypeAlias = ApiKey | Tokens


class CredentialStore:
    """The place of one person's sign-in: the keyring in `auto` if the system has one, else the file."""

    def __init__(self, home: Path, place: Place = "auto", keyring: KeyringBackend | None = None) -> None:
        """`keyring`: the one to use; None asks the system for its own."""
        self._file = home / FILE
        self._home = home
        self._place = place
        self._given = keyring

    def read(self) -> Credential | None:
        """The sign-in; None if nobody has signed in. Raises `CredentialError`."""
        keyring = self._keyring()
        text = None if keyring is None else _asked(lambda: keyring.get_password(SERVICE, str(self._home)))
        if text is None and self._place != "keyring":
            text = self._read_file()
        return None if text is None else _decoded(text, self._file)

    def write(self, credential: Credential) -> None:
        """Keeps a sign-in in the place of the one before. Raises `CredentialError`."""
        text = _encoded(credential)
        keyring = self._keyring()
        if keyring is None:
            self._write_file(text)
            return
        _asked(lambda: keyring.set_password(SERVICE, str(self._home), text))
        self._file.unlink(missing_ok=True)

    def forget(self) -> None:
        """Removes the sign-in, wherever it is kept. Raises `CredentialError`."""
        keyring = self._keyring()
        if keyring is not None and _asked(lambda: keyring.get_password(SERVICE, str(self._home))) is not None:
            _asked(lambda: keyring.delete_password(SERVICE, str(self._home)))
        self._file.unlink(missing_ok=True)

    def _keyring(self) -> KeyringBackend | None:
        if self._place == "file":
            return None
        if self._given is not None:
            return self._given
        import keyring

        found = keyring.get_keyring()
        if found.priority > 0:
            return found
        if self._place == "keyring":
            raise CredentialError(
                "auth.store is `keyring`, and this system has none that can be used: set it to `file`, and "
                f"the sign-in is kept in {self._file}, readable for its owner alone"
            )
        return None

    # ── the file ──────────────────────────────────────────────────────────────────────────────

    def _read_file(self) -> str | None:
        try:
            file = os.open(self._file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CredentialError(f"{self._file} cannot be read: {error.strerror}") from error
        with os.fdopen(file, "rb") as opened:
            facts = os.fstat(opened.fileno())
            if stat.S_IMODE(facts.st_mode) & 0o077 or facts.st_uid != os.getuid():
                raise CredentialError(
                    f"{self._file} may be read by others than its owner, so what it holds is not used: "
                    f"sign in again, or chmod 600 {self._file}"
                )
            return opened.read(MOST_BYTES).decode("utf-8", "replace")

    def _write_file(self, text: str) -> None:
        try:
            make_folder(self._home)
            write_file(self._file, text.encode())
        except OSError as error:
            raise CredentialError(f"the sign-in cannot be kept in {self._file}: {error.strerror}") from error


async def patiently(ask: Callable[[], T]) -> T:
    """The answer of a store in a thread of its own; raises `CredentialError`, too where none comes."""
    try:
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.to_thread(ask)
    except TimeoutError:
        raise CredentialError(
            f"the system's keyring did not answer within {PATIENCE_S:g} s: unlock it, or set auth.store to "
            "`file`"
        ) from None


def _asked(ask: Any) -> Any:
    """The keyring's answer; raises `CredentialError` for one that refuses."""
    from keyring.errors import KeyringError

    try:
        return ask()
    except KeyringError as error:
        # Its words may quote what it was given.
        raise CredentialError(
            f"the system's keyring refused ({type(error).__name__}): unlock it, or set auth.store to `file`"
        ) from error


def _encoded(credential: Credential) -> str:
    match credential:
        case ApiKey(key):
            value: dict[str, Any] = {"type": "api_key", "key": key}
        case Tokens():
            value = {
                "type": "tokens",
                "access": credential.access,
                "issuer": credential.issuer,
                "client_id": credential.client_id,
                "refresh": credential.refresh,
                "expires_at": credential.expires_at,
                "email": credential.email,
            }
    return orjson.dumps(value).decode()


def _decoded(text: str, file: Path) -> Credential:
    try:
        value = orjson.loads(text)
        if value["type"] == "api_key":
            return ApiKey(Secret(str(value["key"])))
        refresh = value.get("refresh")
        return Tokens(
            access=Secret(str(value["access"])),
            issuer=str(value["issuer"]),
            client_id=str(value["client_id"]),
            refresh=None if refresh is None else Secret(str(refresh)),
            expires_at=value.get("expires_at"),
            email=value.get("email"),
        )
    except (KeyError, TypeError, orjson.JSONDecodeError):
        # Not chained: the error would quote the text.
        raise CredentialError(f"the sign-in that is kept cannot be read ({file}): sign in again") from None
