"""The window as a person starts it: `dendro serve` and `dendro window`, with the commands around them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.machine import PATIENCE_S, Machine, dendro
from tests.started import Started
from tests.window.conftest import Served, serving
from tests.window.site import KEY

pytestmark = [pytest.mark.realredis, pytest.mark.slow]


@contextmanager
def signed_in(url: str, **given: str) -> Iterator[httpx.Client]:
    """A browser that has signed in."""
    headers = {"Origin": url, "Dendro-Key": KEY, "Sec-Fetch-Site": "same-origin"}
    with httpx.Client(base_url=url, timeout=PATIENCE_S, headers=headers) as client:
        answer = client.post("/api/login", json={**given, "key": KEY})
        assert answer.status_code == 200, answer.text
        yield client


@contextmanager
def lines_of(client: httpx.Client, topic: str) -> Iterator[Iterator[str]]:
    """The lines of a stream behind its first one."""
    with client.stream("GET", "/api/stream", params={"topic": topic}) as stream:
        lines = stream.iter_lines()
        assert next(lines) == f"event: {topic}"
        yield lines


def called(client: httpx.Client, name: str, **params: Any) -> Any:
    answer = client.post(f"/api/{name}", json=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_line_of_serve_signs_the_machines_user_in_and_its_revocation_ends_the_stream(
    machine: Machine,
) -> None:
    with serving(machine) as window, signed_in(window.url, code=window.code) as browser:
        assert called(browser, "window/state")["scope"] == "admin"
        with signed_in(window.url, code=window.new_code("--scope", "read")) as reader:
            assert called(reader, "window/state")["scope"] == "read"
        token = machine.run("token", "new", "ana", "--scope", "approve").stdout.split()[0]
        with signed_in(window.url, token=token) as ana:
            assert called(ana, "window/state")["who"] == "ana"
            listed = machine.run("token", "list").stdout
            assert len(re.findall(r"window of ana  approve", listed)) == 1
            assert re.search(r"window of \S+@\S+  read", listed)
            with lines_of(ana, "needs") as lines:
                machine.run("token", "revoke", token.split("_")[1])
                assert "" in list(lines)
            assert ana.post("/api/window/state", json={}).status_code == 401
        assert "window of ana" not in machine.run("token", "list").stdout
        window.gateway.send_signal(signal.SIGTERM)
        assert window.gateway.wait(10) == 0


def test_serve_leaves_at_once_while_windows_listen(machine: Machine) -> None:
    with serving(machine) as window, signed_in(window.url, code=window.code) as browser:
        with lines_of(browser, "needs") as lines:
            window.gateway.send_signal(signal.SIGTERM)
            list(lines)
        assert window.gateway.wait(5) == 0


def test_window_opens_the_browser_at_a_private_page_and_brings_a_worker(
    machine: Machine, tmp_path: Path
) -> None:
    seen, pipe = tmp_path / "browser", tmp_path / "opened"
    os.mkfifo(pipe)
    seen.write_text(f'#!/bin/sh\nprintf "%s\\n" "$1" >{pipe}\n')
    seen.chmod(0o755)
    with machine.behaving("echo") as user:
        desktop = user.under(DISPLAY=":7", BROWSER=f"{seen} %s")
        with Started(
            dendro("window", "--listen", "http://127.0.0.1:0"),
            stderr=subprocess.PIPE,
            text=True,
            cwd=desktop.folder,
            env=desktop.environ,
        ) as process:
            try:
                opened = Path(pipe.read_text().strip().removeprefix("file://"))
                assert opened == Path(desktop.environ["DENDRO_HOME"]) / "window.html"
                assert opened.stat().st_mode & 0o777 == 0o600
                found = re.search(r"url=(http://\S+)/#c=([\w-]+)", opened.read_text())
                assert found is not None
                with signed_in(found[1], code=found[2]) as browser:
                    thread = called(browser, "thread/start", approvalPolicy="never")["thread"]["id"]
                    with lines_of(browser, f"thread:{thread}") as lines:
                        words = [{"type": "text", "text": "hello"}]
                        called(browser, "turn/start", threadId=thread, input=words)
                        told = (json.loads(line[6:]) for line in lines if line.startswith("data: "))
                        done = next(one for one in told if one.get("method") == "turn/completed")
                assert done["params"]["turn"]["status"] == "completed"
                process.send_signal(signal.SIGINT)
                process.wait(PATIENCE_S)
                assert not opened.exists()
            finally:
                process.kill()


@pytest.mark.parametrize("listen", ["ws://127.0.0.1:0", "unix:///tmp/x.sock", "http://10.0.0.1:80"])
def test_window_listens_for_browsers_of_this_machine_alone(machine: Machine, listen: str) -> None:
    refused = machine.run("window", "--no-open", "--no-worker", "--listen", listen)
    assert refused.returncode == 2
    assert "http" in refused.stderr


def test_app_server_serves_no_pages(machine: Machine) -> None:
    refused = machine.run("app-server", "--no-worker", "--listen", "http://127.0.0.1:0")
    assert refused.returncode == 2
    assert "dendro window" in refused.stderr


def test_window_that_a_test_starts_has_a_worker(served: Any) -> None:
    found: Served = served("echo")
    with signed_in(found.url, code=found.code) as browser:
        assert called(browser, "approval/list") == {"data": []}


def test_code_is_printed_as_a_link_and_drawn_for_a_phone(machine: Machine) -> None:
    linked = machine.run("token", "code", "--scope", "read", "--at", "https://dendro.example/", "--qr")
    link, *drawn = linked.stdout.splitlines()
    assert re.fullmatch(r"https://dendro\.example/#c=[\w-]{22}", link)
    assert len(drawn) > 15
    assert set("".join(drawn)) <= set("█▀▄ \x1b[0123456789;m")
    for words in (("--qr",), ("--at", "dendro.example"), ("--scope", "all"), ("--at", "https://x/tree/1")):
        refused = machine.run("token", "code", *words)
        assert refused.returncode == 2, words
        assert refused.stderr
