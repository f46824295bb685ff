"""The window without its line, its gateway, or the right to look."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.cli.machine import Machine, dendro
from tests.servers import start_redis
from tests.started import Started
from tests.window.browser.conftest import Visitor
from tests.window.browser.test_accessibility import found
from tests.window.browser.test_needs_you import queue, row
from tests.window.conftest import serving

__all__ = ["queue"]


@pytest.mark.usefixtures("queue")
def test_a_revoked_token_brings_the_sign_in_over_an_emptied_page(visitor: Visitor) -> None:
    visitor.allowed.add("401")
    machine, thread = visitor.deployment.served.machine, visitor.deployment.asks("touch one")
    token = machine.run("token", "new", "guest", "--scope", "approve").stdout.split()[0]
    page = visitor.page()
    page.goto(visitor.deployment.url)
    page.get_by_test_id("token").fill(token)
    page.keyboard.press("Enter")
    expect(row(page, thread)).to_be_visible()
    revoked = machine.run("token", "revoke", token.split("_")[1])
    assert revoked.returncode == 0, revoked.stderr
    expect(page.get_by_test_id("sign-in")).to_be_visible()
    expect(page.get_by_test_id("request")).to_have_count(0)


@pytest.mark.usefixtures("queue")
def test_a_window_finds_its_gateway_again_without_a_reload(visitor: Visitor) -> None:
    visitor.allowed |= {"ERR_", "Failed to load resource"}
    machine = visitor.deployment.served.machine
    with serving(machine) as before:
        page = visitor.page()
        visitor.elsewhere.add(before.url)
        page.goto(f"{before.url}/#c={before.code}")
        expect(page.get_by_test_id("connection")).to_have_text("live")
        expect(page.get_by_test_id("needs-empty")).to_be_visible()
        page.evaluate("document.body.dataset.kept = 'yes'")
        before.gateway.kill()
        before.gateway.wait()
        expect(page.get_by_test_id("connection")).to_have_text("lost")
    thread = visitor.deployment.asks("touch one")
    with serving(machine, before.url):
        expect(row(page, thread)).to_be_visible()
        expect(page.get_by_test_id("connection")).to_have_text("live")
        expect(page.get_by_test_id("allow")).to_be_enabled()
    assert page.evaluate("document.body.dataset.kept") == "yes"


@pytest.mark.night
@pytest.mark.usefixtures("queue")
def test_a_lost_line_holds_what_would_be_sent_and_says_since_when(visitor: Visitor) -> None:
    visitor.allowed |= {"ERR_", "Failed to load resource"}
    thread = visitor.deployment.asks("touch one")
    with serving(visitor.deployment.served.machine) as lost:
        page = visitor.page()
        visitor.elsewhere.add(lost.url)
        page.goto(f"{lost.url}/#c={lost.code}")
        expect(row(page, thread)).to_be_visible()
        lost.gateway.kill()
        lost.gateway.wait()
        expect(page.get_by_test_id("connection")).to_have_text("lost")
        expect(page.get_by_test_id("allow")).to_be_disabled()
        page.keyboard.press("a")
        expect(page.get_by_test_id("notice")).to_contain_text("nothing was sent")
        expect(row(page, thread)).to_be_visible()
        expect(page.get_by_test_id("lost-connection")).to_contain_text(
            re.compile(r"No word from the server for 1\d s")
        )


@pytest.mark.usefixtures("queue")
def test_the_tab_that_is_left_hands_the_stream_to_the_other(visitor: Visitor) -> None:
    context = visitor.context()
    first = visitor.page(context)
    first.goto(f"{visitor.deployment.url}/#c={visitor.deployment.served.new_code()}")
    expect(first.get_by_test_id("needs-empty")).to_be_visible()
    second = visitor.page(context)
    second.goto(f"{visitor.deployment.url}/fleet")
    expect(second.get_by_test_id("fleet")).to_be_visible()
    one = visitor.deployment.asks("touch one")
    expect(second.get_by_test_id("needs-count")).to_have_text("1")
    expect(row(first, one)).to_be_visible()
    first.close()
    visitor.deployment.asks("patch")
    expect(second.get_by_test_id("needs-count")).to_have_text("2")
    expect(second).to_have_title(re.compile(r"^\(2\) Fleet"))


@pytest.mark.night
def test_a_store_that_does_not_answer_is_said_to_until_it_is_back(visitor: Visitor, tmp_path: Path) -> None:
    visitor.allowed |= {"503", "Failed to load resource"}
    folder = tmp_path / "redis"
    folder.mkdir()
    with start_redis(folder) as redis, serving(Machine.at(tmp_path, redis.url)) as served:
        visitor.elsewhere.add(served.url)
        page = visitor.page()
        page.goto(f"{served.url}/#c={served.code}")
        expect(page.get_by_test_id("needs-empty")).to_be_visible()
        os.kill(redis.pid, signal.SIGSTOP)
        try:
            page.keyboard.press("g")
            page.keyboard.press("s")
            expect(page.get_by_test_id("store-away")).to_contain_text("store does not answer")
            expect(page.get_by_role("alert")).to_contain_text("Redis does not answer")
            page.go_back()
            expect(page.get_by_test_id("needs-empty")).to_be_visible()
            expect(page.get_by_test_id("store-away")).to_be_visible()
        finally:
            os.kill(redis.pid, signal.SIGCONT)
        expect(page.get_by_test_id("store-away")).to_have_count(0)
        expect(page.get_by_test_id("connection")).to_have_text("live")


LOST_MS = 60_000
"""A worker counts as lost when it has not been heard from for a while."""


@pytest.mark.night
def test_a_tree_whose_worker_is_killed_is_due_until_another_takes_it_over(visitor: Visitor) -> None:
    machine = visitor.deployment.served.machine.buried

    def worker() -> Started[bytes]:
        return Started(dendro("worker", "--pool", "doomed"), cwd=machine.folder, env=machine.environ)

    with worker() as doomed:
        try:
            options = ("-c", "pool=doomed", "-c", "approval_policy=never")
            begun = machine.run(*options, "run", "--detach", "keeper of sleepers")
            tree = begun.stdout.strip()
            page = visitor.signed_in(f"/tree/{tree}/1")
            sleeper = page.locator("[data-testid=agent][data-label=sleeper]")
            expect(page.locator("[data-type=commandExecution]")).to_contain_text("runs")
        finally:
            doomed.kill()
            doomed.wait()
    expect(sleeper).to_have_attribute("data-state", "due", timeout=LOST_MS)
    expect(sleeper).to_contain_text("waits for a worker of pool doomed")
    page.goto(f"{visitor.deployment.url}/fleet?state=due")
    expect(page.locator(f"[data-tree='{tree}']")).to_be_visible()
    with worker() as next_one:
        try:
            page.goto(f"{visitor.deployment.url}/tree/{tree}/1")
            # The next one cannot know whether the command came to its end, and says so in its place.
            ran = page.locator("[data-type=commandExecution]")
            doubt = ran.get_by_test_id("doubt")
            expect(doubt).to_contain_text("in doubt: the worker was lost", timeout=LOST_MS)
            taken = page.locator("[data-testid=item][data-type=takeover]")
            expect(taken).to_contain_text("Its worker was lost, and another one took over at ")
            order = page.get_by_test_id("item").evaluate_all("all => all.map((one) => one.dataset.type)")
            assert order.index("takeover") == order.index("commandExecution") + 1
            assert found(page) == []
            expect(sleeper).not_to_have_attribute("data-state", "due")
            taken.get_by_role("link").click()
            expect(page.get_by_test_id("past-banner")).to_be_visible()
            expect(taken).to_be_visible()
            page.get_by_test_id("back-to-now").click()
            page.get_by_test_id("tab-log").click()
            expect(page.get_by_test_id("log")).to_contain_text("another took over")
        finally:
            next_one.terminate()
