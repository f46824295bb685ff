"""An OpenID issuer over real HTTP on loopback: its document, its keys, and its token endpoint."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

CLIENT = "dendro-of-a-test"


@dataclass
class TestIssuer:
    """The issuer: what it was asked, and what it is to answer."""

    __test__ = False
    url: str = ""
    keys: dict[str, ec.EllipticCurvePrivateKey] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """The paths that were asked for."""
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    """The parameters under which each code was given out."""
    refresh: str = "refresh-1"
    rotates: bool = True
    """Whether a refresh gives a new refresh token; else the old one stays, and the answer has none."""
    down: bool = False
    lies: dict[str, Any] = field(default_factory=dict)
    """Members of its document that are others."""

    def rotate(self, kid: str) -> None:
        """Has one new key and no other."""
        self.keys = {kid: ec.generate_private_key(ec.SECP256R1())}

    def token(self, kid: str | None = None, **claims: Any) -> str:
        """A signed token; claims of None are left out."""
        kid = kid or next(iter(self.keys))
        usual = {"iss": self.url, "aud": "dendro", "sub": "ann", "exp": int(time.time()) + 300}
        whole = {name: value for name, value in (usual | claims).items() if value is not None}
        return jwt.encode(whole, self.keys[kid], "ES256", headers={"kid": kid})

    def authorize(self, url: str) -> dict[str, str]:
        """The query that a browser brings to the redirect when its person says yes."""
        asked = dict(parse_qsl(urlsplit(url).query))
        code = f"code-{len(self.codes)}"
        self.codes[code] = asked
        return {"code": code, "state": asked["state"]}

    def answer(self, method: str, path: str, body: str) -> tuple[int, Any]:
        self.asked.append(path)
        if self.down:
            return 503, {}
        match path:
            case "/.well-known/openid-configuration":
                names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
                document = {name: f"{self.url}/{end}" for name, end in names.items()}
                return 200, {"issuer": self.url, **document, **self.lies}
            case "/keys":
                return 200, {"keys": [self._public(kid) for kid in self.keys]}
            case "/token":
                return self._granted({name: value[0] for name, value in parse_qs(body).items()})
            case _:
                return 404, {}

    def _public(self, kid: str) -> dict[str, Any]:
        key: dict[str, Any] = json.loads(ECAlgorithm.to_jwk(self.keys[kid].public_key()))
        return {**key, "kid": kid, "use": "sig"}

    def _granted(self, form: dict[str, str]) -> tuple[int, Any]:
        if form["grant_type"] == "refresh_token" and form["refresh_token"] == self.refresh:
            fresh = {"access_token": "fresh", "expires_in": 3600}
            if not self.rotates:
                return 200, fresh
            self.refresh += "+"
            return 200, {**fresh, "refresh_token": self.refresh}
        asked = self.codes.pop(form.get("code", ""), None)
        if asked is None or form["client_id"] != CLIENT or form["redirect_uri"] != asked["redirect_uri"]:
            return 400, {"error": "invalid_grant"}
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        id_token = self.token(aud=CLIENT, nonce=asked["nonce"], email="ann@example.org")
        answer = {"access_token": "access", "id_token": id_token, "refresh_token": self.refresh}
        return 200, {**answer, "expires_in": 60, "token_type": "Bearer"}


@asynccontextmanager
async def issuer() -> AsyncIterator[TestIssuer]:
    """A running issuer with one key."""
    found = TestIssuer()
    found.rotate("k1")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        fields = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
        body = (await reader.readexactly(int(fields.get("content-length", 0)))).decode()
        status, value = found.answer(method, path, body)
        content = json.dumps(value).encode()
        line = f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\nconnection: close\r\n"
        writer.write(line.encode() + b"content-length: %d\r\n\r\n" % len(content) + content)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    found.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield found
    finally:
        server.close()
        await server.wait_closed()
