"""An S3 server of the tests' own, which can be told to fail: `moto` behind a door that a test holds."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

BUCKET = "dendro"
Answer = Iterable[bytes]
Application = Callable[[dict[str, Any], Any], Answer]


@dataclass
class S3:
    """The server, and what goes wrong with it."""

    inner: Application
    url: str = ""
    fault: str = ""
    """`broken` answers 500, `half` ends the connection amid an upload, `held` waits for the test."""
    methods: tuple[str, ...] = ("PUT", "POST")
    """The requests that meet the fault."""
    met: threading.Event = field(default_factory=threading.Event)
    """Set when a request has met the fault."""
    let_go: threading.Event = field(default_factory=threading.Event)

    def environ(self) -> dict[str, str]:
        """The variables by which every S3 client finds the server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "testing",
            "AWS_SECRET_ACCESS_KEY": "testing",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }

    @contextmanager
    def failing(self, fault: str, *methods: str) -> Iterator[None]:
        """The fault, for as long as the block lasts."""
        self.fault, self.methods = fault, methods or ("PUT", "POST")
        self.met.clear()
        self.let_go.clear()
        try:
            yield
        finally:
            self.fault = ""
            self.let_go.set()

    def __call__(self, environ: dict[str, Any], start: Any) -> Answer:
        if not self.fault or environ["REQUEST_METHOD"] not in self.methods:
            return self.inner(environ, start)
        self.met.set()
        if self.fault == "held":
            self.let_go.wait(30)
            return self.inner(environ, start)
        if self.fault == "half":
            size = int(environ.get("CONTENT_LENGTH") or 0)
            environ["wsgi.input"].read(size // 2)
            environ["werkzeug.socket"].close()
            raise ConnectionError("the test ended this connection")
        start("500 Internal Server Error", [("Content-Length", "0")])
        return [b""]


@contextmanager
def running_s3() -> Iterator[S3]:
    """A server on a port of loopback, with one empty bucket."""
    served = S3(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, served, threaded=True)
    served.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield served
    finally:
        served.let_go.set()
        server.shutdown()
        thread.join()
        server.server_close()
