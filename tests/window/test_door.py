"""The window's door without a browser: pages, policy, who may ask, and statuses."""

from __future__ import annotations

import hashlib
import os
import re
import signal
from base64 import b64encode
from pathlib import Path

import pytest

from orchestrator.gateways.app_server.door_ports import BadSetting, Born
from orchestrator.gateways.principals import Scope
from orchestrator.gateways.window import door
from orchestrator.gateways.window.pages import read_pages
from orchestrator.gateways.wires.addresses import HttpRules
from tests.runtime.harness import Harness
from tests.servers import RedisServer
from tests.window.site import KEY, Site
from tests.window.site import site as site_of

pytestmark = pytest.mark.realredis
POLICY = (
    "default-src 'none'; script-src 'self' {}; style-src 'self'; font-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; manifest-src 'self'; form-action 'none'; base-uri 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)


@pytest.mark.parametrize("path", ["/", "/fleet", "/workers", "/spend", "/tree/a", "/tree/a/0/changes"])
async def test_page_is_served_at_each_of_its_addresses(site: Site, path: str) -> None:
    answer = await site.browser().client.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["cache-control"] == "no-cache"
    assert "<title>Dendro" in answer.text


async def test_policy_names_the_import_map_of_the_page_and_is_on_every_answer(site: Site) -> None:
    browser = site.browser()
    page = await browser.client.get("/")
    (map,) = re.findall(r'<script type="importmap">(.*?)</script>', page.text, re.S)
    wanted = POLICY.format(f"'sha256-{b64encode(hashlib.sha256(map.encode()).digest()).decode()}'")
    answers = [
        page,
        await browser.client.get("/nothing"),
        await browser.post("window/state"),
        await browser.client.get("/healthz"),
        await browser.client.get("/", headers={"Host": "evil.example"}),
    ]
    assert [answer.status_code for answer in answers] == [200, 404, 401, 200, 421]
    for answer in answers:
        assert answer.headers["content-security-policy"] == wanted
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in answer.headers


async def test_files_of_the_page_may_be_kept_for_a_year_and_come_packed(site: Site) -> None:
    browser = site.browser()
    page = await browser.client.get("/")
    (script,) = re.findall(r'<script type="module" src="([^"]+)"', page.text)
    answer = await browser.client.get(script)
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "text/javascript; charset=utf-8"
    assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
    assert answer.headers["content-encoding"] == "gzip"
    plain = await browser.client.get(script, headers={"Accept-Encoding": "identity"})
    assert plain.content == answer.content
    assert "content-encoding" not in plain.headers
    assert (await browser.client.get(script.replace("/main", "/../door"))).status_code == 404


def test_files_have_another_address_as_soon_as_one_of_them_is_another(tmp_path: Path) -> None:
    assets, vendor = tmp_path / "assets", tmp_path / "vendor"
    (vendor / "deep").mkdir(parents=True)
    assets.mkdir()
    (assets / "index.html").write_text('<script src="{{assets}}/main.js"></script>')
    (assets / "main.js").write_text("one")
    (vendor / "deep" / "x.js").write_text("x")
    before = read_pages(assets, vendor)
    again = read_pages(assets, vendor)
    (vendor / "deep" / "x.js").write_text("y")
    after = read_pages(assets, vendor)
    assert before.index == again.index
    assert before.index.content != after.index.content
    assert sorted(path.split("/", 3)[3] for path in after.files) == ["main.js", "vendor/deep/x.js"]


async def test_browser_that_has_not_signed_in_may_ask_nothing(site: Site) -> None:
    status, code, text = await site.browser().refused("window/state")
    assert (status, code) == (401, -32600)
    assert "dendro token code" in text


async def test_process_of_the_machine_is_nobody_here_without_a_token(site: Site) -> None:
    # The kernel would name its user, as it does for the other doors.
    answer = await site.browser().client.post("/api/window/state", json={})
    assert answer.status_code == 401


async def test_program_with_a_token_needs_neither_cookie_nor_origin(site: Site) -> None:
    program = site.program(await site.token(Scope.READ))
    state = await program.call("window/state")
    assert (state["who"], state["scope"], state["namespace"]) == ("ana", "read", "")
    assert (await site.program("dendro_aaaaaaaa_" + "x" * 43).refused("window/state"))[0] == 401
    assert (await site.browser().refused("window/state", Authorization="Basic eDp5"))[0] == 401


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1"])
async def test_page_of_another_origin_is_refused_with_its_cookie(site: Site, origin: str) -> None:
    browser = await site.signed_in()
    status, _, text = await browser.refused("window/state", Origin=origin)
    assert status == 403
    assert "may not connect" in text


async def test_browsers_request_without_an_origin_is_refused(site: Site) -> None:
    browser = await site.signed_in()
    del browser.headers["Origin"]
    assert (await browser.refused("window/state"))[0] == 403
    assert (await site.browser().refused("window/state", **{"Sec-Fetch-Site": "cross-site"}))[0] == 403
    assert (await browser.refused("login", {"code": await site.code()}))[0] == 403


async def test_origin_that_a_person_allowed_counts_behind_a_proxy(harness: Harness) -> None:
    rules = HttpRules(frozenset({"dendro.example"}), frozenset({"https://dendro.example"}))
    async with site_of(harness, rules=rules) as site:
        browser = site.browser()
        answer = await browser.post(
            "login",
            {"code": await site.code()},
            Origin="https://dendro.example",
            Host="dendro.example",
        )
        assert answer.status_code == 200
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-dendro=")
        assert "Secure" in cookie
        assert "Path=/" in cookie


@pytest.mark.parametrize("type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_body_of_another_type_than_json_is_refused(site: Site, type: str) -> None:
    browser = await site.signed_in()
    assert (await browser.refused("window/state", **{"Content-Type": type}))[0] == 415


async def test_each_kind_of_refusal_has_its_status_and_code(site: Site) -> None:
    browser = await site.signed_in(Scope.READ)
    assert (await browser.refused("thread/nothing"))[:2] == (404, -32601)
    assert (await browser.refused("initialize"))[:2] == (404, -32601)
    assert (await browser.refused("newConversation"))[:2] == (404, -32601)
    assert (await browser.refused("thread/resume", {"threadId": "x"}))[:2] == (404, -32601)
    assert (await browser.refused("thread/read"))[:2] == (400, -32602)
    assert (await browser.refused("thread/read", {"threadId": 7}))[:2] == (400, -32602)
    assert (await browser.refused("thread/read", [1]))[:2] == (400, -32602)
    session = await site.harness.session()
    status, code, text = await browser.refused(
        "turn/start", {"threadId": session, "input": [{"type": "text", "text": "x"}]}
    )
    assert (status, code) == (403, -32600)
    assert "needs the scope submit" in text
    writer = await site.signed_in(Scope.SUBMIT)
    asked = {"threadId": session, "turnId": "t"}
    assert (await writer.refused("turn/interrupt", asked))[:2] == (409, -32600)
    assert (await writer.refused("thread/start", {"ephemeral": True}))[:2] == (400, -32602)
    assert (await browser.client.get("/api/window/state")).status_code == 405
    assert (await browser.client.post("/fleet")).status_code == 405


async def test_body_that_is_no_json_or_too_long_is_refused(site: Site) -> None:
    browser = await site.signed_in()
    sent = {"Content-Type": "application/json", **browser.headers}
    bad = await browser.client.post("/api/window/state", content=b"{", headers=sent)
    assert bad.status_code == 400
    long = await browser.client.post("/api/window/state", content=b" " * (1 << 20) + b"{}", headers=sent)
    assert long.status_code == 413
    assert (await browser.call("window/state"))["who"] == "ana"


async def test_thread_of_another_namespace_is_as_one_that_is_not_there(site: Site) -> None:
    theirs = await site.harness.session()
    tenant = await site.signed_in(Scope.ADMIN, "acme")
    nowhere = theirs[:-1] + ("0" if theirs[-1] != "0" else "1")
    for name in ("thread/read", "thread/turns/list", "thread/archive", "thread/delete"):
        status, code, text = await tenant.refused(name, {"threadId": theirs})
        other = await tenant.refused(name, {"threadId": nowhere})
        assert (status, code, text.replace(theirs, nowhere)) == other
        assert status == 404
    assert (await tenant.call("thread/list"))["data"] == []
    assert (await tenant.call("window/state"))["namespace"] == "acme"
    assert (await tenant.refused("fs/readFile", {"path": "/etc/hostname"}))[0] == 403


async def test_tenant_reads_no_path_of_the_machine_in_what_a_method_refuses(harness: Harness) -> None:
    async def create(*_: object) -> Born:
        raise BadSetting("cwd: /srv/data/work cannot be looked at: Permission denied")

    async with site_of(harness, create=create) as site:
        person, tenant = await site.signed_in(), await site.signed_in(namespace="acme")
        refused = [await browser.refused("thread/start") for browser in (person, tenant)]
    why = "Invalid params: cwd: {} cannot be looked at: Permission denied"
    assert refused == [(400, -32602, why.format(where)) for where in ("/srv/data/work", "…/work")]


async def test_request_is_answered_by_503_while_redis_is_away(
    site: Site, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "AWAY_S", 0.5)
    browser = await site.signed_in()
    os.kill(redis_server.pid, signal.SIGSTOP)
    try:
        site.is_ready[0] = False
        status, code, text = await browser.refused("window/state")
    finally:
        os.kill(redis_server.pid, signal.SIGCONT)
    assert (status, code) == (503, -32603)
    assert "Redis does not answer" in text
    assert (await browser.call("window/state"))["who"] == "ana"


async def test_key_beside_the_cookie_is_needed_where_the_page_brought_one(site: Site) -> None:
    browser = await site.signed_in()
    assert (await browser.call("window/state"))["who"] == "ana"
    del browser.headers["Dendro-Key"]
    assert (await browser.refused("window/state"))[0] == 401
    assert (await browser.refused("window/state", **{"Dendro-Key": KEY + "x"}))[0] == 401


async def test_cookie_of_a_browser_counts_at_no_other_door(site: Site) -> None:
    browser = await site.signed_in()
    cookie = browser.client.cookies["dendro"]
    assert (await site.program(cookie).refused("window/state"))[0] == 401
    assert (await site.browser().refused("login", {"token": cookie}))[0] == 401
