"""Sign-in at an OpenID issuer: authorization code with PKCE, and a redirect to loopback (RFC 8252, 7636).

One sign-in waits at a time; a new one ends that before it. The redirect is answered by a listener on this
machine's loopback, whose one page takes one code for one state.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final
from urllib.parse import parse_qs, urlencode, urlsplit

from orchestrator.core.frozen import record
from orchestrator.model.credentials import CredentialError, CredentialStore, patiently
from orchestrator.model.issuer import BadIssuerToken, Issuer, IssuerError, tokens_of

WAITS_S: Final = 600.0
"""A person has so long to sign in."""
HEAD_S, MOST_HEAD = 10.0, 16 << 10
MOST_REDIRECTS = 64
"""Requests to the listener during one sign-in."""
SCOPES = "openid profile email offline_access"
PATH = "/callback"
Told = Callable[[str, str | None], None]
"""Hears the end of a sign-in: its id, and the error if it failed."""


@record
class Begun:
    """A sign-in that waits for its person, and the page to open."""

    id: str
    url: str


@record
class _Secrets:
    """The values that only the two sides of one sign-in know."""

    state: str
    nonce: str
    verifier: str

    @property
    def challenge(self) -> str:
        return _text(hashlib.sha256(self.verifier.encode()).digest())


class SignIn:
    """The sign-in of the machine's user."""

    def __init__(
        self, issuer: Issuer, client_id: str, store: CredentialStore, random_bytes: Callable[[int], bytes]
    ) -> None:
        self._issuer = issuer
        self._client_id = client_id
        self._store = store
        self._random_bytes = random_bytes
        self._waiting: tuple[str, asyncio.Task[None]] | None = None
        self._beginning = asyncio.Lock()

    async def begin(self, told: Told) -> Begun:
        """Waits for the redirect from now on; raises `IssuerError` where the issuer does not answer."""
        page = await self._issuer.endpoint("authorization_endpoint")
        id = _text(self._random_bytes(12))
        secrets = _Secrets(*(_text(self._random_bytes(32)) for _ in range(3)))
        async with self._beginning:
            # Of two that begin at once the later one ends the other, which waits by then.
            await self.cancel()
            redirect = await self._waits(id, secrets, told)
        asked = {
            "response_type": "code",
            "client_id": self._client_id,
            "redirect_uri": redirect,
            "scope": SCOPES,
            "state": secrets.state,
            "nonce": secrets.nonce,
            "code_challenge": secrets.challenge,
            "code_challenge_method": "S256",
        }
        return Begun(id, f"{page}{'&' if urlsplit(page).query else '?'}{urlencode(asked)}")

    async def _waits(self, id: str, secrets: _Secrets, told: Told) -> str:
        """Listens for the browser of a sign-in; the address that it is to come back to."""
        code: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        server = await asyncio.start_server(_redirects(code, secrets.state), "127.0.0.1", 0, limit=MOST_HEAD)
        redirect = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}{PATH}"
        self._waiting = id, asyncio.create_task(self._finish(id, server, code, secrets, redirect, told))
        return redirect

    async def cancel(self, id: str | None = None) -> bool:
        """Ends the sign-in that waits, or the one of this id; False if there is none."""
        if self._waiting is None or (id is not None and self._waiting[0] != id):
            return False
        _, task = self._waiting
        self._waiting = None
        if task.done():
            return False
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return True

    async def _finish(
        self,
        id: str,
        server: asyncio.Server,
        code: asyncio.Future[str],
        secrets: _Secrets,
        redirect: str,
        told: Told,
    ) -> None:
        error: str | None = None
        try:
            async with asyncio.timeout(WAITS_S):
                await self._keep(await code, secrets, redirect)
        except TimeoutError:
            error = f"nobody signed in within {WAITS_S / 60:g} minutes: begin again"
        except asyncio.CancelledError:
            told(id, "the sign-in was canceled")
            raise
        except (IssuerError, BadIssuerToken, CredentialError, _Refused) as failure:
            error = str(failure)
        finally:
            server.close()
        told(id, error)

    async def _keep(self, code: str, secrets: _Secrets, redirect: str) -> None:
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": redirect,
            "client_id": self._client_id,
            "code_verifier": secrets.verifier,
        }
        answer = await self._issuer.tokens(form)
        claims = await self._issuer.claims(str(answer.get("id_token", "")), self._client_id)
        if not hmac.compare_digest(str(claims.get("nonce", "")), secrets.nonce):
            raise _Refused("the issuer answered another sign-in than this one")
        kept = tokens_of(answer, self._issuer.url, self._client_id, claims.get("email"))
        await patiently(lambda: self._store.write(kept))


class _Refused(Exception):
    """The issuer said no; the message says how."""


# ── the redirect ──────────────────────────────────────────────────────────────────────────────────

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Any]


def _redirects(code: asyncio.Future[str], state: str) -> Serve:
    """Answers browsers until one brings the code; all else that comes is refused."""
    served = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        served += 1
        with suppress(TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError):
            async with asyncio.timeout(HEAD_S):
                head = await reader.readuntil(b"\r\n\r\n")
                status, words = _answered(head, code, state) if served <= MOST_REDIRECTS else (429, "busy")
                writer.write(_page(status, words))
                await writer.drain()
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()

    return serve


def _answered(head: bytes, code: asyncio.Future[str], state: str) -> tuple[int, str]:
    line = head.split(b"\r\n", 1)[0].decode("ascii", "replace").split(" ")
    path, _, asked = line[1].partition("?") if len(line) == 3 and line[0] == "GET" else ("", "", "")
    if path != PATH:
        return 404, "There is nothing here."
    query = {name: values[0] for name, values in parse_qs(asked).items()}
    if not hmac.compare_digest(query.get("state", "").encode(), state.encode()) or code.done():
        return 400, "This is not the sign-in that waits."
    if query.get("code"):
        code.set_result(query["code"])
        return 200, "You may close this page: Dendro goes on by itself."
    why = "".join(letter for letter in query.get("error", "no code") if letter.isalnum() or letter in "_- ")
    code.set_exception(_Refused(f"the issuer refused: {why[:60]}"))
    return 200, "Nobody was signed in. You may close this page."


def _page(status: int, words: str) -> bytes:
    body = f"<!doctype html><title>Dendro</title><p>{words}</p>".encode()
    head = (
        f"HTTP/1.1 {status} Dendro\r\ncontent-type: text/html; charset=utf-8\r\n"
        f"content-length: {len(body)}\r\ncache-control: no-store\r\nreferrer-policy: no-referrer\r\n"
        "connection: close\r\n\r\n"
    )
    return head.encode() + body


def _text(raw: bytes) -> str:
    return urlsafe_b64encode(raw).rstrip(b"=").decode()
