"""Pictures of the window for its page of docs: `python -m tests.window.pictures`, or `make pictures`.

A deployment of real processes with made-up work; each picture is what a person sees at a moment of it.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, Page, expect, sync_playwright
from redis import Redis

from orchestrator.broker.records import BrokerConfig, day_of
from orchestrator.broker.redis_keys import Keys
from tests.cli.machine import Machine
from tests.servers import start_redis
from tests.window.browser.conftest import CHROMIUM, DESKTOP, PHONE, Deployment
from tests.window.conftest import serving, working

FOLDER = Path(__file__).parents[2] / "docs" / "doors" / "window"
WITHIN_MS = 30_000


def _runs(command: list[str], before: str, **more: Any) -> list[dict[str, Any]]:
    call = {"call": "shell", "args": {"command": command, **more}}
    return [{"items": [{"text": before}, call]}, {"items": [{"text": "It is done."}]}]


PATCH = """*** Begin Patch
*** Add File: ledger/post.py
+def post(entry):
+    if entry.amount == 0:
+        raise ValueError("an entry of nothing")
+    return Ledger.append(entry)
*** End Patch"""
POST = """def post(entry):
    owner = entry.owner
    if owner not in known:
        raise UnknownOwner(owner)
    return ledger.write(entry)


def reverse(receipt):
    \"\"\"Writes the entry's opposite.\"\"\"
    entry = ledger.read(receipt.entry)
    return ledger.write(entry.negated())
"""
"""The file that agents of a tree change at once."""
SERVICES = """*** Begin Patch
*** Update File: ledger/post.py
@@
 def post(entry):
-    owner = entry.owner
-    if owner not in known:
-        raise UnknownOwner(owner)
-    return ledger.write(entry)
+    account = accounts.of(entry.owner_id, entry.currency)
+    if account.closed_at is not None:
+        raise ClosedAccount(account.id)
+    with ledger.lock(account.id):
+        return ledger.write(entry, account=account)
*** Add File: payouts/run.py
+def run(day):
+    return [post(entry) for entry in due(day)]
*** End Patch"""
TAX = """*** Begin Patch
*** Update File: ledger/post.py
@@
-    return ledger.write(entry)
+    return ledger.write(rounded(entry))
@@
-    \"\"\"Writes the entry's opposite.\"\"\"
+    \"\"\"Writes the entry's opposite, rounded as the entry was.\"\"\"
*** Add File: ledger/rounding.py
+def rounded(entry):
+    return entry.quantized(CENT, ROUND_HALF_EVEN)
*** End Patch"""
QUESTION = {
    "header": "Users",
    "question": "Which of the two users should stay an administrator?",
    "multiSelect": False,
    "options": [
        {"label": "ana", "description": "signed in yesterday"},
        {"label": "deploy", "description": "the account of the pipeline"},
    ],
}
PLAN = {
    "title": "Upgrade in place with logical replication",
    "summary": "A replica of version 18 takes over within seconds; the old server stays for a day.",
    "plan": {
        "plan": [
            {"step": "Set up a replica of version 18", "status": "pending"},
            {"step": "Switch the services over", "status": "pending"},
            {"step": "Keep the old server for a day", "status": "pending"},
        ]
    },
}
WORK: dict[str, list[dict[str, Any]]] = {
    "Move billing to ledger v2": [
        {
            "items": [
                {"text": "Three parts can go on at once. I divide the work."},
                {"call": "subagent_spawn", "args": {"label": "migrate", "prompt": "Write the migration"}},
                {"call": "subagent_spawn", "args": {"label": "reports", "prompt": "Move the old reports"}},
                {"call": "subagent_spawn", "args": {"label": "docs", "prompt": "Describe the ledger"}},
            ]
        },
        {"items": [{"call": "subagent_await", "args": {}}]},
        {"items": [{"text": "The ledger is moved."}]},
    ],
    "Write the migration": _runs(
        ["bash", "-lc", 'psql "$LEDGER_URL" -v ON_ERROR_STOP=1 -f 2026_11_accounts.sql'],
        "The schema is ready. Before the services can switch, staging needs the new `accounts` table.",
        with_escalated_permissions=True,
        justification="Apply the new accounts table to the staging ledger. The file is reversible.",
    ),
    "Move the reports": [
        {"items": [{"call": "apply_patch", "args": {"input": PATCH}}]},
        {"items": [{"text": "The reports read the ledger."}]},
    ],
    "Move payouts to the ledger": [
        {
            "items": [
                {"call": "subagent_spawn", "args": {"label": "services", "prompt": "Post by account"}},
                {"call": "subagent_spawn", "args": {"label": "tax", "prompt": "Round as the ledger does"}},
            ]
        },
        {"items": [{"call": "subagent_await", "args": {}}]},
        {"items": [{"call": "subagent_await", "args": {}}]},
        {"items": [{"text": "Both have written their part."}]},
    ],
    "Post by account": [
        {"items": [{"call": "apply_patch", "args": {"input": SERVICES}}]},
        {"items": [{"text": "Entries are posted by account."}]},
    ],
    "Round as the ledger does": [
        {"items": [{"call": "apply_patch", "args": {"input": TAX}}]},
        {"items": [{"text": "Amounts are rounded half to even."}]},
    ],
    "Move the old reports": [{"items": [{"text": "All eleven reports read the ledger now."}]}],
    "Describe the ledger": [{"items": [{"text": "The page says what an entry is, and who may write one."}]}],
    "Find the flaky login test": [
        {"items": [{"call": "ask_user_question", "args": {"questions": [QUESTION]}}]},
        {"items": [{"text": "It waits for the session now."}]},
    ],
    "Upgrade to Postgres 18": [
        {"items": [{"call": "approve_plan", "args": {"proposal": PLAN}}]},
        {"items": [{"text": "It is planned."}]},
    ],
    "Triage last night's crash reports": _runs(
        ["curl", "-fsS", "https://symbols.example.com/7.4.1/app.sym", "-o", "app.sym"],
        "The newest crash has no symbols yet.",
        with_escalated_permissions=True,
        justification="Fetch the symbols of the release that crashed.",
    ),
    "Document the public API": [{"items": [{"text": "Every public name has an example now."}]}],
    "Shrink the image": [{"items": [{"text": "The image has 84 MB instead of 410."}]}],
}
SCENARIO = {
    "steps": [{"items": [{"text": "Nothing to do."}]}],
    "agents": [{"prompt": name, "steps": steps} for name, steps in WORK.items()],
    "after_end": "repeat_last",
}
ASKED = 5
"""Requests that this work leads to."""


def main() -> None:
    """Writes all pictures anew."""
    FOLDER.mkdir(exist_ok=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dendro-pictures-")))
        redis = stack.enter_context(start_redis(folder))
        machine = Machine.at(folder, redis.url)
        user = stack.enter_context(machine.playing(json.dumps(SCENARIO)))
        stack.enter_context(working(user))
        served = stack.enter_context(serving(user))
        token = user.run("token", "new", "ana", "--scope", "admin").stdout.split()[0]
        headers = {"Authorization": f"Bearer {token}"}
        client = stack.enter_context(httpx.Client(base_url=served.url, headers=headers, timeout=40.0))
        deployment = Deployment(served, token, client)
        for name in ("Document the public API", "Shrink the image", "Triage last night's crash reports"):
            _begun(deployment, name)
        for name in ("Upgrade to Postgres 18", "Find the flaky login test"):
            _begun(deployment, name)
        deployment.asks("Move the reports", "Close the month in the ledger")
        tree = _begun(deployment, "Move billing to ledger v2")
        deployment.call("budget/add", {"treeId": tree, "requestId": "first", "add": {"tokens": 1_000_000}})
        (user.folder / "ledger").mkdir()
        (user.folder / "ledger" / "post.py").write_text(POST)
        ran = user.run("run", "--portable", "Move payouts to the ledger", "--json")
        changed = json.loads(ran.stdout.splitlines()[0])["msg"]["session_id"]
        playwright = stack.enter_context(sync_playwright())
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        _desktop(browser, deployment, tree)
        _changes(browser, deployment, changed)
        _earlier_spend(redis.url)
        _spend(browser, deployment)
        _phone(browser, deployment)
        browser.close()


def _begun(deployment: Deployment, name: str) -> str:
    """A session that runs in the sandbox, and asks where it wants to leave it."""
    folder = str(deployment.served.machine.folder)
    asked = {"cwd": folder, "approvalPolicy": "on-request", "sandbox": "workspace-write"}
    thread = str(deployment.call("thread/start", asked)["thread"]["id"])
    deployment.call("thread/name/set", {"threadId": thread, "name": name})
    deployment.say(thread, name)
    return thread


def _page(browser: Browser, deployment: Deployment, size: tuple[int, int], scheme: str) -> Page:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
        reduced_motion="reduce",
    )
    context.set_default_timeout(WITHIN_MS)
    page = context.new_page()
    page.goto(f"{deployment.url}/#c={deployment.served.new_code('--scope', 'approve')}")
    expect(page.get_by_test_id("request")).to_have_count(ASKED, timeout=WITHIN_MS)
    return page


def _desktop(browser: Browser, deployment: Deployment, tree: str) -> None:
    for scheme in ("light", "dark"):
        page = _page(browser, deployment, DESKTOP, scheme)
        page.get_by_test_id("request").filter(has_text="psql").click()
        expect(page.get_by_test_id("request-detail")).to_contain_text("What led here")
        page.screenshot(path=FOLDER / f"needs-{scheme}.png")
        page.goto(f"{deployment.url}/fleet")
        expect(page.get_by_test_id("tree-row").first).to_be_visible()
        page.screenshot(path=FOLDER / f"fleet-{scheme}.png")
        page.goto(f"{deployment.url}/tree/{tree}")
        expect(page.get_by_test_id("agent")).to_have_count(4)
        expect(page.get_by_test_id("conversation")).to_contain_text("I divide the work")
        page.screenshot(path=FOLDER / f"tree-{scheme}.png")
        _past(page, scheme)
        page.context.close()


def _past(page: Page, scheme: str) -> None:
    """The same tree as it was when its first agent had come to rest."""
    slider = page.get_by_test_id("slider")
    expect(slider).not_to_have_attribute("data-end", "")
    page.keyboard.press("ArrowLeft")
    while "has come to rest" not in page.get_by_test_id("slider-mark").inner_text():
        page.keyboard.press("ArrowLeft")
    at = slider.get_attribute("data-at") or ""
    expect(page.get_by_test_id("past-banner")).to_have_attribute("data-drawn", at)
    expect(page.get_by_test_id("conversation")).to_have_attribute("data-at", at)
    page.screenshot(path=FOLDER / f"past-{scheme}.png")


def _changes(browser: Browser, deployment: Deployment, tree: str) -> None:
    for scheme in ("light", "dark"):
        page = _page(browser, deployment, DESKTOP, scheme)
        page.goto(f"{deployment.url}/tree/{tree}/0/changes?by=all")
        page.get_by_test_id("file").filter(has_text="post.py").click()
        expect(page.locator("mark").first).to_be_visible()
        page.get_by_role("button", name="Remark on line 5", exact=True).click()
        page.get_by_test_id("remark-text").fill(
            "Two posts to the same pair of accounts can wait for each other here."
        )
        page.get_by_test_id("remark-add").click()
        expect(page.get_by_test_id("remarks")).to_be_visible()
        page.mouse.move(0, 0)
        page.screenshot(path=FOLDER / f"changes-{scheme}.png")
        page.context.close()


def _earlier_spend(url: str, shards: int = BrokerConfig().shards) -> None:
    """Made-up usage of the days before: the work of this deployment is a minute old."""
    figures, keys = random.Random(7), Keys("dendro:", shards)
    with Redis.from_url(url) as redis:
        for ago in range(1, 34):
            at_ms = round((time.time() - ago * 86_400) * 1000)
            day = day_of(at_ms)
            weekend = time.gmtime(at_ms / 1000).tm_wday >= 5
            rows: dict[str, str | int] = {}
            for model, share, dollars in (("opus-large", 3, 15), ("gpt-5", 5, 6), ("gpt-5-mini", 9, 1)):
                for who in ("ana", "jo", "nightly"):
                    if weekend and who != "nightly":
                        continue
                    tokens = round(share * figures.uniform(40_000, 160_000))
                    rows[f"\n{model}\n{who}"] = f"{tokens} {tokens * dollars} {tokens // 30_000}"
            redis.hset(keys.spend(0, day), mapping={**rows, "n": len(rows)})


def _spend(browser: Browser, deployment: Deployment) -> None:
    for scheme in ("light", "dark"):
        page = _page(browser, deployment, DESKTOP, scheme)
        page.goto(f"{deployment.url}/spend?by=model")
        expect(page.get_by_test_id("spend-chart").locator("canvas")).to_be_visible()
        page.screenshot(path=FOLDER / f"spend-{scheme}.png")
        page.context.close()


def _phone(browser: Browser, deployment: Deployment) -> None:
    page = _page(browser, deployment, PHONE, "light")
    page.screenshot(path=FOLDER / "needs-phone.png")
    page.context.close()


if __name__ == "__main__":
    main()
