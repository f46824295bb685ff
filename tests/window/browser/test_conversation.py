"""A person looks at an agent's conversation, and speaks in it."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.window.browser.conftest import PHONE, Deployment, Visitor
from tests.window.browser.test_accessibility import found
from tests.window.browser.test_needs_you import decision, queue

__all__ = ["queue"]


@pytest.mark.always
def test_a_conversation_shows_its_items_and_takes_words_that_can_be_taken_back(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("echo", "Echoes")
    page = visitor.signed_in(f"/tree/{thread}")
    talk = page.get_by_test_id("conversation")
    expect(page.get_by_test_id("tree")).to_contain_text("Echoes")
    expect(talk.locator("[data-type=agentMessage] strong")).to_have_text("for you")
    page.keyboard.press("m")
    page.keyboard.type("more of it")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("own-words")).to_contain_text("more of it")
    page.get_by_role("button", name="Take back").click()
    expect(page.get_by_test_id("own-words")).to_have_count(0)
    box = page.get_by_test_id("composer").locator("textarea")
    expect(box).to_have_value("more of it")
    box.press("Enter")
    expect(talk.locator("[data-type=userMessage]")).to_have_count(2)
    expect(page.get_by_test_id("own-words")).to_have_count(0)
    expect(talk.locator("[data-type=agentMessage]")).to_have_count(2)


def test_a_conversation_goes_on_while_it_is_looked_at(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("echo")
    page = visitor.signed_in(f"/tree/{thread}")
    said = page.get_by_test_id("conversation").locator("[data-type=agentMessage]")
    expect(said).to_have_count(1)
    visitor.deployment.say(thread, "again")
    expect(said).to_have_count(2)


@pytest.mark.usefixtures("queue")
def test_a_request_is_answered_in_the_conversation_that_it_stands_in(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("touch one")
    page = visitor.signed_in(f"/tree/{thread}")
    ask = page.locator("[data-testid=item][data-type=request]")
    expect(ask).to_contain_text("touch one.txt")
    expect(page.locator("[data-type=commandExecution]")).to_contain_text("asks you")
    with page.expect_response("**/api/approval/answer"):
        ask.get_by_test_id("allow").click()
    expect(ask).to_have_count(0)
    talk = page.get_by_test_id("conversation")
    ran = talk.locator("[data-type=commandExecution]")
    expect(ran).to_contain_text("exit 0")
    expect(talk).to_contain_text("It is done.")
    assert decision(visitor.deployment, thread) == "accept"
    # Settled it stays, with who and when; also for who comes later.
    expect(ran.get_by_test_id("settled")).to_have_text(re.compile(r"^Allowed by you at \d+:\d+"))
    page.reload()
    expect(ran.get_by_test_id("settled")).to_have_text(re.compile(r"^Allowed by you at \d+:\d+.*Entry 1$"))
    assert found(page) == []


@pytest.mark.usefixtures("queue")
def test_requests_that_were_answered_stay_in_the_conversation_with_who_and_when(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("question", "Which colour it was")
    page = visitor.signed_in(f"/tree/{thread}")
    expect(page.locator("[data-testid=item][data-type=request]")).to_contain_text("Which colour?")
    (asked,) = visitor.deployment.call("approval/list", {"treeId": thread})["data"]
    answers = {asked["questions"][0]["id"]: ["green"]}
    said = {"threadId": thread, "callId": asked["callId"], "answer": {"answers": answers}}
    visitor.deployment.call("approval/answer", {"requests": [said]})
    kept = page.locator("[data-testid=item][data-type=decision]")
    expect(kept).to_contain_text("Which colour?")
    expect(kept.get_by_test_id("settled")).to_have_text(re.compile(r"^Answered by program at \d+:\d+"))
    expect(page.locator("[data-testid=item][data-type=request]")).to_have_count(0)
    page.reload()
    types = "all => all.map((one) => one.dataset.type)"
    expect(kept).to_contain_text("Which colour?")
    items = page.get_by_test_id("conversation").get_by_test_id("item")
    expect(items).to_have_count(3)
    assert items.evaluate_all(types) == ["userMessage", "decision", "agentMessage"]
    # As it was before its first entry there is nothing of it.
    kept.get_by_role("link", name="Entry 1").click()
    expect(page.get_by_test_id("past-banner")).to_have_attribute("data-drawn", "1")
    expect(kept.get_by_test_id("settled")).to_contain_text("Answered by program")


def test_what_was_begun_meanwhile_stays_when_words_are_taken_back(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("echo", "Two letters")
    page = visitor.signed_in(f"/tree/{thread}")
    box = page.get_by_test_id("composer").locator("textarea")
    box.fill("first")
    box.press("Enter")
    box.fill("second")
    page.get_by_role("button", name="Take back").click()
    expect(box).to_have_value("first\nsecond")


@pytest.mark.usefixtures("queue")
def test_words_that_wait_are_sent_before_a_person_signs_out(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("echo", "Last words")
    page = visitor.page()
    page.goto(f"{visitor.deployment.url}/#c={visitor.deployment.served.new_code('--scope', 'approve')}")
    expect(page.get_by_test_id("connection")).to_be_visible()
    page.goto(f"{visitor.deployment.url}/tree/{thread}")
    expect(page.locator("[data-type=agentMessage]")).to_have_count(1)
    page.get_by_test_id("composer").locator("textarea").fill("echo before I go")
    page.keyboard.press("Enter")
    page.get_by_test_id("settings-open").click()
    page.get_by_test_id("sign-out").click()
    expect(page.get_by_test_id("sign-in")).to_be_visible()
    said = visitor.deployment.call("thread/items/list", {"threadId": thread, "limit": 50})["data"]
    assert "echo before I go" in str(said)


def test_a_title_is_changed_in_place(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("echo", "Before")
    page = visitor.signed_in(f"/tree/{thread}")
    expect(page.get_by_test_id("tree").locator("h1")).to_have_text("Before")
    page.keyboard.press("e")
    page.get_by_label("Title").fill("After")
    with page.expect_response("**/api/thread/name/set"):
        page.keyboard.press("Enter")
    expect(page.get_by_test_id("tree").locator("h1")).to_have_text("After")
    page.reload()
    expect(page.get_by_test_id("tree").locator("h1")).to_have_text("After")


def test_at_a_phone_the_conversation_slides_over_the_agents(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("echo")
    page = visitor.signed_in(f"/tree/{thread}", size=PHONE)
    page.get_by_test_id("agent").first.click()
    expect(page.get_by_test_id("conversation")).to_contain_text("Words for you.")
    expect(page.get_by_test_id("agents")).to_be_hidden()
    page.go_back()
    expect(page.get_by_test_id("agents")).to_be_visible()


def queued(visitor: Visitor, thread: str, text: str) -> list[dict[str, str]]:
    """Words that a thread begins with when its turn has ended."""
    words = [{"type": "text", "text": text}]
    asked = {"threadId": thread, "input": words, "clientUserMessageId": uuid.uuid4().hex}
    visitor.deployment.call("thread/queue/add", asked)
    return words


@pytest.mark.usefixtures("queue")
def test_words_that_wait_stand_above_the_composer_and_are_moved_and_taken_back(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("touch one", "Has a queue")
    page = visitor.signed_in(f"/tree/{thread}")
    talk, waiting = page.get_by_test_id("conversation"), page.get_by_test_id("queued")
    expect(talk.locator("[data-type=request]")).to_be_visible()
    for text in ("echo first", "echo second", "echo third"):
        queued(visitor, thread, text)
    expect(waiting).to_have_text(["next 1echo first×", "next 2echo second↑×", "next 3echo third↑×"])
    page.keyboard.press("m")
    page.keyboard.type("echo fourth")
    page.keyboard.press("Alt+Enter")
    expect(page.get_by_test_id("own-words")).to_contain_text("echo fourth")
    expect(waiting).to_have_count(4)
    expect(page.get_by_test_id("own-words")).to_have_count(0)
    waiting.filter(has_text="third").get_by_role("button", name="Move to the front").click()
    expect(waiting.first).to_contain_text("echo third")
    waiting.filter(has_text="first").get_by_role("button", name="Take back").click()
    expect(waiting).to_have_text(["next 1echo third×", "next 2echo second↑×", "next 3echo fourth↑×"])
    assert found(page) == []
    talk.locator("[data-type=request]").get_by_test_id("deny").click()
    said = talk.locator("[data-type=userMessage]")
    expect(said).to_have_count(4)
    expect(said.nth(1)).to_contain_text("echo third")
    expect(said.nth(2)).to_contain_text("echo second")
    expect(said.nth(3)).to_contain_text("echo fourth")
    expect(waiting).to_have_count(0)


@pytest.mark.usefixtures("queue")
def test_words_that_began_meanwhile_are_not_taken_back_and_it_is_said(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("touch one", "Loses a race")
    page = visitor.signed_in(f"/tree/{thread}")
    words = queued(visitor, thread, "echo soon")
    expect(page.get_by_test_id("queued")).to_have_count(1)
    page.route(
        "**/api/thread/queue/list",
        lambda route: route.fulfill(json={"data": [{"id": "gone", "input": words}]}),
    )
    page.reload()
    page.get_by_test_id("queued").get_by_role("button", name="Take back").click()
    expect(page.get_by_test_id("notice")).to_contain_text("these words have begun meanwhile")


def test_output_of_a_command_is_folded_and_keeps_its_colours_and_no_other_escapes(
    visitor: Visitor, deployment: Deployment, tmp_path: Path
) -> None:
    tree = deployment.begins(cwd=str(tmp_path), approvalPolicy="never")
    deployment.say(tree, "loud")
    page = visitor.signed_in(f"/tree/{tree}")
    ran = page.locator("[data-type=commandExecution]")
    expect(ran).to_contain_text("exit 3")
    expect(ran.locator("pre")).to_have_text(re.compile(r"^19 lines before19\n.*\n30$", re.S))
    ran.get_by_role("button").click()
    expect(ran.locator(".ansi-red")).to_have_text("red")
    expect(ran.locator("pre")).to_have_text(re.compile(r"^red <b>\n1\n2\n.*\n30$", re.S))


def test_reasoning_is_folded_to_its_heading_and_stays_as_a_person_left_it(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("think", "Thinks")
    page = visitor.signed_in(f"/tree/{thread}")
    thought = page.locator("[data-type=reasoning]").first
    heading = thought.get_by_role("button")
    expect(heading).to_have_text("Weighing <b>both</b> ›")
    expect(heading).to_have_attribute("aria-expanded", "false")
    expect(thought).not_to_contain_text("the other")
    heading.click()
    expect(thought).to_contain_text("the other")
    expect(thought.locator("b, a")).to_have_count(0)
    assert found(page) == []
    visitor.deployment.say(thread, "think again")
    expect(page.locator("[data-type=agentMessage]")).to_have_count(2)
    expect(heading).to_have_attribute("aria-expanded", "true")
    heading.click()
    expect(thought).not_to_contain_text("the other")


def test_letters_of_agents_say_who_wrote_them_however_long_ago(visitor: Visitor) -> None:
    tree = visitor.deployment.asks("writer of letters", "Mail")
    visitor.deployment.until_at_rest(tree)
    page = visitor.signed_in(f"/tree/{tree}/1")
    letters = page.locator("[data-type=userMessage]")
    expect(letters).to_have_count(2)
    expect(letters.last).to_contain_text("echo once more")
    expect(letters.get_by_test_id("sender")).to_have_text(["root", "root"])
    # No mark is needed for it, as the timeline has them of the newest entries alone.
    (one,) = [
        row for row in visitor.deployment.call("tree/read", {"treeId": tree})["agents"] if row["agentId"]
    ]
    items = visitor.deployment.call("thread/items/list", {"threadId": one["threadId"]})["data"]
    assert [row["item"]["sentByThreadId"] for row in items if "once more" in str(row)] == [tree]
    items = visitor.deployment.call("thread/items/list", {"threadId": tree})["data"]
    assert [row["item"]["sentBy"] for row in items if row["item"]["type"] == "userMessage"] == ["program"]


@pytest.mark.usefixtures("queue")
def test_letters_say_who_wrote_them(visitor: Visitor) -> None:
    """A program began the tree, its root gave an agent a task, and a person speaks to both."""
    tree = visitor.deployment.asks("family", "Letters")
    page = visitor.signed_in(f"/tree/{tree}/1", scope="submit")
    who = visitor.deployment.call("fleet/list", {"text": "Letters"})["data"][0]["who"]
    letters = page.locator("[data-type=userMessage]")
    expect(letters.get_by_test_id("sender")).to_have_text("root")
    expect(letters).to_contain_text("touch one, and tell of it")
    letters.get_by_role("link", name="root").click()
    expect(page.get_by_label("Message to root (agent 0)")).to_be_visible()
    expect(letters.get_by_test_id("sender")).to_have_text(who)
    expect(letters).to_contain_text("family")
    page.go_back()
    (asked,) = visitor.deployment.call("approval/list", {"treeId": tree})["data"]
    answer = {"threadId": asked["threadId"], "callId": asked["callId"], "answer": {"decision": "decline"}}
    visitor.deployment.call("approval/answer", {"requests": [answer]})
    visitor.deployment.say(asked["threadId"], "look again")
    expect(letters).to_have_count(2)
    expect(letters.last).to_contain_text("look again")
    expect(letters.last.get_by_test_id("sender")).to_have_text(who)
    expect(letters.first.get_by_test_id("sender")).to_have_text("root")
