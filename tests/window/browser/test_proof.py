"""A person sees that the logs of a tree hold, and who decided what in it."""

from __future__ import annotations

import re

from playwright.sync_api import expect

from orchestrator.broker.redis_keys import Keys
from tests.redis_clients import PlainRedis
from tests.window.browser.conftest import Deployment, Visitor
from tests.window.browser.test_accessibility import found


def decided(visitor: Visitor, name: str) -> str:
    """A tree in which a program has decided about a command."""
    thread = visitor.deployment.asks("touch one", name)
    page = visitor.signed_in(f"/tree/{thread}")
    expect(page.locator("[data-testid=agent][data-state=needs]")).to_be_visible()
    (request,) = visitor.deployment.call("approval/list", {"treeId": thread})["data"]
    answer = {"threadId": thread, "callId": request["callId"], "answer": {"decision": "decline"}}
    visitor.deployment.call("approval/answer", {"requests": [answer]})
    page.close()
    return thread


def test_logs_of_a_tree_are_verified_and_decisions_are_told_with_who(visitor: Visitor) -> None:
    thread = decided(visitor, "Proved")
    page = visitor.signed_in(f"/tree/{thread}/0/proof")
    expect(page.get_by_test_id("proof-verdict")).to_have_attribute("data-ok", "true")
    expect(page.get_by_test_id("proof-verdict")).to_contain_text(", by chains that have no key.")
    acts = page.get_by_test_id("proof-act")
    act = acts.filter(has_text="denied")
    expect(act).to_have_count(1)
    expect(act).to_contain_text("program")
    expect(act).to_contain_text("touch")


def test_all_that_people_did_in_a_tree_stands_under_its_proof(visitor: Visitor) -> None:
    thread = decided(visitor, "Much was done")
    added = {"treeId": thread, "requestId": "once", "add": {"tokens": 5000}}
    visitor.deployment.call("budget/add", added)
    visitor.deployment.call("thread/name/set", {"threadId": thread, "name": "Named anew"})
    page = visitor.signed_in(f"/tree/{thread}/0/proof")
    acts = page.get_by_test_id("proof-act")
    for words in ("words for the root", "denied", "5,000 tokens", "the root was named"):
        row = acts.filter(has_text=words).first
        expect(row).to_contain_text("program")
    assert found(page) == []


def forged(deployment: Deployment, thread: str, word: bytes, other: bytes) -> int:
    """Has a thread's log say another word, as somebody does who may write to Redis; the entry's number."""
    url, key = deployment.served.machine.environ["DENDRO_REDIS_URL"], Keys("dendro:", 16).rollout(thread)
    with PlainRedis.from_url(url) as redis:
        entries = redis.xrange(key)
        redis.delete(key)
        for at, fields in entries:
            redis.xadd(key, {**fields, b"p": fields[b"p"].replace(word, other)}, id=at)
    return next(int(at.split(b"-")[0]) for at, fields in entries if word in fields[b"p"])


def test_a_word_that_somebody_changed_in_a_log_is_a_finding_with_its_entry(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("echo", "Forged")
    visitor.deployment.until_at_rest(thread)
    seq = forged(visitor.deployment, thread, b"for you", b"for him")
    page = visitor.signed_in(f"/tree/{thread}/0/proof")
    verdict = page.get_by_test_id("proof-verdict")
    expect(verdict).to_have_attribute("data-ok", "false")
    expect(verdict).to_contain_text(
        f"1 log is not as it was written. The first fault is entry {seq} of root."
    )
    finding = page.get_by_role("cell", name=re.compile(r"^entry \d+: "))
    expect(finding).to_have_count(1)
    expect(finding).to_contain_text(f"entry {seq}: ")
    assert found(page) == []
    verdict.get_by_role("button").click()
    expect(verdict).to_have_attribute("data-ok", "false")
    expect(finding).to_contain_text(f"entry {seq}: ")
