"""A person sees that the logs of a tree hold, and who decided what in it."""

from __future__ import annotations

from playwright.sync_api import expect

from tests.window.browser.conftest import Visitor


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
    act = page.get_by_test_id("proof-act")
    expect(act).to_have_count(1)
    expect(act).to_contain_text("program")
    expect(act).to_contain_text("denied")
    expect(act).to_contain_text("touch")
