"""A person answers what waits for them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.cli.machine import dendro
from tests.started import Started
from tests.window.browser.conftest import PHONE, Deployment, Visitor


def row(page: Page, thread: str) -> Locator:
    """The row of the request of a thread."""
    return page.locator(f"[data-testid=request][data-thread='{thread}']")


def ready(page: Page, thread: str) -> None:
    """Chooses a request, and waits until it may be answered."""
    row(page, thread).click()
    expect(row(page, thread)).to_have_attribute("aria-selected", "true")
    expect(page.get_by_test_id("allow")).to_be_enabled()


def press(page: Page, key: str) -> None:
    """Presses a key that answers, and waits for the end of that answer."""
    with page.expect_response("**/api/approval/answer"):
        page.keyboard.press(key)


def decision(deployment: Deployment, thread: str) -> str:
    """How a thread's last request was decided, as the log says."""
    rows = deployment.call("approval/history", {"treeId": thread, "limit": 1})["data"]
    return str(rows[0]["decision"]) if rows else ""


@pytest.fixture
def queue(deployment: Deployment) -> list[str]:
    """Leaves nothing open from other tests."""
    for one in deployment.call("approval/list")["data"]:
        said = {"threadId": one["threadId"], "callId": one["callId"], "answer": {"decision": "cancel"}}
        deployment.call("approval/answer", {"requests": [said]})
    return []


@pytest.mark.usefixtures("queue")
def test_a_request_comes_up_and_a_key_allows_it(visitor: Visitor) -> None:
    page = visitor.signed_in("/")
    expect(page.get_by_test_id("needs-empty")).to_contain_text("Nobody waits for you")
    thread = visitor.deployment.asks("touch one", "First tree")
    expect(row(page, thread)).to_contain_text("touch one.txt")
    expect(page).to_have_title("(1) Dendro")
    expect(page.locator("link[rel=icon]")).to_have_attribute("href", re.compile("icon-dot"))
    detail = page.get_by_test_id("request-detail")
    expect(detail).to_contain_text("First tree")
    expect(detail).to_contain_text("I make a file.")
    expect(detail).to_contain_text("Runs")
    expect(page.get_by_test_id("allow")).to_be_enabled()
    press(page, "a")
    expect(page.get_by_test_id("needs-empty")).to_contain_text("allowed by you")
    expect(page).to_have_title("Dendro")
    assert decision(visitor.deployment, thread) == "accept"


@pytest.mark.usefixtures("queue")
def test_a_refusal_can_be_taken_back_and_is_sent_after_that(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("touch one")
    page = visitor.signed_in("/")
    ready(page, thread)
    page.keyboard.press("d")
    expect(row(page, thread)).to_have_count(0)
    expect(page.get_by_test_id("notice")).to_contain_text("Denied")
    page.keyboard.press("z")
    expect(row(page, thread)).to_be_visible()
    assert decision(visitor.deployment, thread) == ""
    expect(page.get_by_test_id("deny")).to_be_enabled()
    press(page, "d")
    expect(page.get_by_test_id("needs-empty")).to_contain_text("denied by you")
    assert decision(visitor.deployment, thread) == "decline"


@pytest.mark.usefixtures("queue")
def test_a_page_that_is_left_sends_the_refusal_that_it_held_back(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("touch one")
    page, other = visitor.signed_in("/"), visitor.signed_in("/")
    ready(page, thread)
    expect(row(other, thread)).to_be_visible()
    page.keyboard.press("d")
    expect(row(page, thread)).to_have_count(0)
    page.goto(f"{visitor.deployment.url}/fleet")
    expect(row(other, thread)).to_contain_text("denied")


@pytest.mark.usefixtures("queue")
def test_what_another_window_answers_folds_away_with_its_name(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("touch one")
    page, other = visitor.signed_in("/"), visitor.signed_in("/")
    expect(row(page, thread)).to_be_visible()
    ready(other, thread)
    other.keyboard.press("a")
    expect(row(page, thread).get_by_test_id("answered-by")).to_have_text(re.compile("allowed by"))
    expect(page.get_by_test_id("needs-empty")).to_be_visible()
    page.get_by_role("link", name="Answered").click()
    expect(page.get_by_test_id("answered-row").first).to_contain_text("touch one.txt")


@pytest.mark.usefixtures("queue")
def test_a_long_text_is_read_to_its_end_before_allow_works(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("long")
    page = visitor.signed_in("/")
    row(page, thread).click()
    expect(page.get_by_test_id("request-text")).to_contain_text("line 199")
    expect(page.get_by_test_id("deny")).to_be_enabled()
    expect(page.get_by_test_id("allow")).to_be_disabled()
    page.keyboard.press("a")
    expect(page.get_by_test_id("notice")).to_contain_text("Read it to its end first")
    page.get_by_test_id("request-detail").evaluate("one => one.scrollTo(0, one.scrollHeight)")
    expect(page.get_by_test_id("allow")).to_be_enabled()
    page.keyboard.press("a")
    expect(row(page, thread)).to_have_count(0)


@pytest.mark.usefixtures("queue")
def test_alike_commands_are_allowed_together_and_a_compound_one_is_alike_to_nothing(visitor: Visitor) -> None:
    say = visitor.deployment.asks
    one, two, odd = say("fetch a"), say("fetch b"), say("compound")
    page = visitor.signed_in("/")
    expect(row(page, odd)).to_be_visible()
    ready(page, odd)
    page.keyboard.press("x")
    expect(page.get_by_test_id("notice")).to_contain_text("Nothing else here is alike")
    ready(page, one)
    page.keyboard.press("x")
    expect(page.get_by_test_id("selection")).to_contain_text("2 requests")
    expect(page.get_by_test_id("request-detail")).to_contain_text("http://127.0.0.1:9/b")
    expect(page.get_by_test_id("allow")).to_have_text(re.compile("Allow 2"))
    expect(page.get_by_test_id("allow")).to_be_enabled()
    press(page, "a")
    expect(page.get_by_test_id("request")).to_have_count(1)
    expect(row(page, odd)).to_be_visible()
    assert [decision(visitor.deployment, each) for each in (one, two, odd)] == ["accept", "accept", ""]


@pytest.mark.usefixtures("queue")
def test_what_cannot_be_seen_is_shown(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("bidi", "Tree \u202eeman")
    page = visitor.signed_in("/")
    row(page, thread).click()
    text = page.get_by_test_id("request-text")
    for shown in ("⟨U+202E⟩", "⟨U+202C⟩", "⟨U+200B⟩", "end··"):
        expect(text).to_contain_text(shown)
    expect(row(page, thread)).to_contain_text("⟨U+202E⟩eman")


@pytest.mark.usefixtures("queue")
def test_nothing_that_an_agent_says_becomes_part_of_the_page(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("hostile", '<b>bold</b> "quoted"')
    page = visitor.signed_in("/")
    row(page, thread).click()
    detail = page.get_by_test_id("request-detail")
    expect(detail).to_contain_text("<img src=x onerror")
    expect(detail).to_contain_text("evil.example.com")
    expect(detail).to_contain_text("[image: shot]")
    assert detail.locator("img, script, style, iframe, [style], [onerror]").count() == 0
    assert detail.locator("a[href^=javascript], h1").count() == 0
    links = detail.locator("a[target=_blank]")
    for n in range(links.count()):
        assert links.nth(n).get_attribute("rel") == "noopener noreferrer"


@pytest.mark.usefixtures("queue")
def test_a_patch_shows_its_lines_and_is_denied_with_words(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("patch")
    page = visitor.signed_in("/")
    ready(page, thread)
    text = page.get_by_test_id("request-text")
    expect(text.locator("tr.add")).to_have_count(3)
    expect(text).to_contain_text("notes.txt")
    expect(text).to_contain_text("a⟨U+202E⟩b<i>.md")
    expect(text).to_contain_text("⟨U+202E⟩")
    expect(row(page, thread)).to_contain_text("+3")
    what = row(page, thread).get_by_test_id("request-what")
    expect(what).to_have_text("notes.txt, a⟨U+202E⟩b<i>.md")
    page.keyboard.press("r")
    page.locator("textarea").fill("Not like this: echo")
    press(page, "Control+Enter")
    expect(page.get_by_test_id("needs-empty")).to_contain_text("denied by you")
    assert decision(visitor.deployment, thread) == "decline"


@pytest.mark.usefixtures("queue")
def test_a_question_is_answered_by_one_of_its_options(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("question")
    page = visitor.signed_in("/")
    row(page, thread).click()
    expect(page.get_by_test_id("answer")).to_be_disabled()
    expect(page.get_by_test_id("request-detail")).to_contain_text("as <b>rust</b>")
    page.get_by_label("green").check()
    expect(page.get_by_test_id("answer")).to_be_enabled()
    with page.expect_response("**/api/approval/answer"):
        page.get_by_test_id("answer").click()
    expect(page.get_by_test_id("needs-empty")).to_be_visible()
    assert decision(visitor.deployment, thread) == "answer"


@pytest.mark.usefixtures("queue")
def test_a_plan_is_read_and_approved(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("plan")
    page = visitor.signed_in("/")
    ready(page, thread)
    text = page.get_by_test_id("request-text")
    expect(text.locator("strong")).to_have_text("two")
    expect(text.locator("ol li")).to_have_text(["Copy <b>all</b>", "Switch over"])
    press(page, "a")
    expect(page.get_by_test_id("needs-empty")).to_be_visible()
    assert decision(visitor.deployment, thread) == "accept"


@pytest.mark.usefixtures("queue")
def test_who_may_only_read_sees_all_of_it_without_buttons(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("touch one")
    page = visitor.signed_in("/", scope="read")
    page.get_by_test_id("more-scope").click()
    expect(page.get_by_test_id("settings")).to_contain_text("dendro token code --scope approve")
    page.keyboard.press("Escape")
    row(page, thread).click()
    detail = page.get_by_test_id("request-detail")
    expect(detail).to_contain_text("touch one.txt")
    expect(detail).to_contain_text("dendro token code --scope approve")
    expect(page.get_by_test_id("allow")).to_have_count(0)
    page.keyboard.press("a")
    expect(row(page, thread)).to_be_visible()


@pytest.mark.usefixtures("queue")
def test_at_a_phone_a_card_allows_what_is_wholly_seen_and_opens_the_rest(visitor: Visitor) -> None:
    short, long = visitor.deployment.asks("touch one"), visitor.deployment.asks("long")
    page = visitor.signed_in("/", size=PHONE)
    expect(row(page, long).get_by_test_id("read")).to_be_visible()
    expect(row(page, long).get_by_test_id("allow")).to_have_count(0)
    allow = row(page, short).get_by_test_id("allow")
    box = allow.bounding_box()
    assert box is not None
    assert box["height"] >= 44
    with page.expect_response("**/api/approval/answer"):
        allow.click()
    expect(row(page, short)).to_have_count(0)
    row(page, long).get_by_test_id("read").click()
    expect(page.get_by_test_id("request-detail")).to_be_visible()
    expect(page.get_by_test_id("allow")).to_be_disabled()
    page.go_back()
    expect(row(page, long)).to_be_visible()
    assert decision(visitor.deployment, short) == "accept"


@pytest.mark.usefixtures("queue")
def test_a_key_does_not_answer_what_has_just_moved_under_the_selection(visitor: Visitor) -> None:
    first, second = visitor.deployment.asks("touch one"), visitor.deployment.asks("fetch a")
    page = visitor.signed_in("/")
    expect(row(page, second)).to_be_visible()
    ready(page, first)
    # The key comes in the very moment in which the first row leaves and the second one is chosen.
    page.evaluate(
        """(thread) => new MutationObserver((_, observer) => {
          if (document.querySelector(`[data-testid=request][data-thread='${thread}']`)) return;
          observer.disconnect();
          const key = { key: "a", code: "KeyA", bubbles: true };
          document.body.dispatchEvent(new KeyboardEvent("keydown", key));
          document.documentElement.dataset.pressed = "a";
        }).observe(document.body, { childList: true, subtree: true })""",
        first,
    )
    asked = next(one for one in visitor.deployment.call("approval/list")["data"] if one["threadId"] == first)
    said = {"threadId": first, "callId": asked["callId"], "answer": {"decision": "decline"}}
    visitor.deployment.call("approval/answer", {"requests": [said]})
    expect(page.locator("html")).to_have_attribute("data-pressed", "a")
    expect(row(page, second)).to_have_attribute("aria-selected", "true")
    expect(page.get_by_test_id("allow")).to_be_enabled()
    assert decision(visitor.deployment, second) == ""
    press(page, "a")
    expect(page.get_by_test_id("needs-empty")).to_be_visible()
    assert decision(visitor.deployment, second) == "accept"


@pytest.mark.usefixtures("queue")
def test_a_button_stays_the_same_while_the_queue_moves_and_keys_go_on_from_a_row_that_folds(
    visitor: Visitor,
) -> None:
    deployment = visitor.deployment
    first, second, third = (
        deployment.asks("touch one"),
        deployment.asks("fetch a"),
        deployment.asks("fetch b"),
    )
    page = visitor.signed_in("/")
    expect(row(page, third)).to_be_visible()
    ready(page, second)
    button = page.get_by_test_id("allow").element_handle()
    _declined(deployment, first)
    expect(row(page, first)).to_contain_text("denied by program")
    expect(row(page, first)).to_have_count(0)
    expect(page.get_by_test_id("allow")).to_be_enabled()
    assert button.evaluate("one => one.isConnected"), "a click that had begun on it would be lost"
    _declined(deployment, second)
    expect(row(page, second)).to_contain_text("denied by program")
    page.keyboard.press("j")
    expect(row(page, third)).to_have_attribute("aria-selected", "true")


def _declined(deployment: Deployment, thread: str) -> None:
    (asked,) = deployment.call("approval/list", {"treeId": thread})["data"]
    said = {"threadId": thread, "callId": asked["callId"], "answer": {"decision": "decline"}}
    deployment.call("approval/answer", {"requests": [said]})


@pytest.mark.usefixtures("queue")
def test_what_is_being_answered_is_there_when_a_person_comes_back_to_it(visitor: Visitor) -> None:
    question, command = visitor.deployment.asks("question"), visitor.deployment.asks("touch one")
    page = visitor.signed_in("/")
    row(page, question).click()
    page.get_by_label("green").check()
    ready(page, command)
    page.keyboard.press("r")
    page.keyboard.type("not like this")
    row(page, question).click()
    expect(page.get_by_label("green")).to_be_checked()
    page.get_by_test_id("nav-fleet").click()
    page.get_by_test_id("nav-needs-you").click()
    row(page, command).click()
    page.get_by_test_id("request-detail").get_by_test_id("reply").or_(
        page.get_by_role("textbox")
    ).first.click()
    expect(page.get_by_role("textbox")).to_have_value("not like this")
    # Sent and taken back, the words are there again.
    page.get_by_test_id("answer").click()
    expect(page.get_by_test_id("notice")).to_contain_text("Denied, with your words")
    page.keyboard.press("z")
    page.get_by_test_id("reply").click()
    expect(page.get_by_role("textbox")).to_have_value("not like this")


@pytest.mark.usefixtures("queue")
def test_commands_that_begin_alike_are_allowed_together_from_then_on(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("folders")
    page = visitor.signed_in("/")
    ready(page, thread)
    expect(page.get_by_test_id("allow-prefix")).to_contain_text("And all that begin with mkdir")
    with page.expect_response("**/api/approval/answer"):
        page.get_by_test_id("allow-prefix").click()
    visitor.deployment.until_at_rest(thread)
    assert decision(visitor.deployment, thread) == "acceptWithExecpolicyAmendment"
    decided = visitor.deployment.call("approval/history", {"treeId": thread, "limit": 5})["data"]
    assert len(decided) == 1, "the second command asks nobody"


@pytest.mark.usefixtures("queue")
def test_a_call_that_waits_for_a_program_can_be_ended(visitor: Visitor) -> None:
    tool = {"type": "function", "name": "look_up", "description": "Looks.", "inputSchema": {"type": "object"}}
    thread = visitor.deployment.begins("Asks a program", dynamicTools=[tool])
    visitor.deployment.say(thread, "client tool")
    page = visitor.signed_in("/")
    row(page, thread).click()
    expect(page.get_by_test_id("request-detail")).to_contain_text("look_up")
    expect(page.get_by_test_id("allow")).to_have_count(0)
    page.keyboard.press("a")
    page.get_by_test_id("deny").click()
    expect(row(page, thread)).to_have_count(0)
    # The end of the page sends what is held back.
    page.goto(f"{visitor.deployment.url}/fleet")
    visitor.deployment.until_at_rest(thread)
    (agent,) = visitor.deployment.call("tree/read", {"treeId": thread})["agents"]
    assert agent["last"] == "Nobody has looked."


@pytest.mark.night
@pytest.mark.usefixtures("queue")
def test_a_question_of_an_mcp_server_is_answered(visitor: Visitor) -> None:
    machine = visitor.deployment.served.machine
    server = Path(__file__).parents[2] / "mcp" / "asking_server.py"
    asking = f"mcp_servers.asking={{command={json.dumps(sys.executable)}, args=[{json.dumps(str(server))}]}}"
    with Started(
        dendro("-c", asking, "worker", "--pool", "asks"), cwd=machine.folder, env=machine.environ
    ) as worker:
        try:
            begun = machine.run("-c", "pool=asks", "run", "--detach", "permit")
            thread = begun.stdout.strip()
            page = visitor.signed_in("/")
            row(page, thread).click()
            expect(page.get_by_test_id("request-detail")).to_contain_text("May I?")
            expect(page.get_by_test_id("request-detail")).to_contain_text("asking")
            expect(page.get_by_test_id("allow")).to_have_text(re.compile("^Yes"))
            expect(page.get_by_test_id("deny")).to_have_text(re.compile("^No"))
            expect(page.get_by_test_id("allow")).to_be_enabled()
            press(page, "a")
            visitor.deployment.until_at_rest(thread)
            assert decision(visitor.deployment, thread) == "accept"
        finally:
            worker.terminate()


@pytest.mark.usefixtures("queue")
def test_single_letters_act_on_nothing_while_one_types_and_can_be_switched_off(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("touch one")
    page = visitor.signed_in("/")
    row(page, thread).click()
    expect(page.get_by_test_id("allow")).to_be_enabled()
    page.keyboard.press("r")
    page.keyboard.type("a and d")
    expect(page.get_by_label("Deny, and tell root")).to_have_value("a and d")
    page.keyboard.press("Escape")
    page.get_by_test_id("settings-open").click()
    page.get_by_label("Single letters act").uncheck()
    page.keyboard.press("Escape")
    page.keyboard.press("a")
    page.keyboard.press("?")
    page.keyboard.press("Control+k")
    # The key that came last has acted, and those before it have not.
    expect(page.get_by_test_id("palette")).to_be_visible()
    page.keyboard.press("Escape")
    expect(row(page, thread)).to_be_visible()
    page.reload()
    page.get_by_test_id("settings-open").click()
    page.get_by_label("Single letters act").check()
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("allow")).to_be_enabled()
    press(page, "a")
    expect(page.get_by_test_id("needs-empty")).to_contain_text("allowed by you")


@pytest.mark.usefixtures("queue")
def test_what_has_waited_for_ten_minutes_is_said_in_amber(visitor: Visitor) -> None:
    thread = visitor.deployment.asks("touch one")
    page = visitor.signed_in("/fleet")

    def later(route: Route) -> None:
        answer = route.fetch()
        route.fulfill(json={**answer.json(), "now": answer.json()["now"] + 660_000})

    page.route("**/api/window/state", later)
    page.goto(f"{visitor.deployment.url}/")
    expect(row(page, thread).locator("time")).to_have_text("11 m")
    expect(row(page, thread).locator("time")).to_have_class("late")


@pytest.mark.usefixtures("queue")
def test_second_key_of_a_pair_that_goes_elsewhere_answers_nothing(visitor: Visitor) -> None:
    """`g s` goes to Spend, and its `s` allows nothing; `g n` goes from Fleet, and its `n` begins no tree."""
    thread = visitor.deployment.asks("touch one", "Left open")
    page = visitor.signed_in("/")
    ready(page, thread)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    page.keyboard.press("g")
    page.keyboard.press("s")
    expect(page).to_have_url(re.compile("/spend$"))
    expect(page.get_by_test_id("spend")).to_be_visible()
    assert [url for url in sent if url.endswith("approval/answer")] == []
    assert [one["threadId"] for one in visitor.deployment.call("approval/list")["data"]] == [thread]
    page.keyboard.press("g")
    page.keyboard.press("f")
    expect(page.get_by_test_id("fleet")).to_be_visible()
    page.keyboard.press("g")
    page.keyboard.press("n")
    expect(page.get_by_test_id("needs")).to_be_visible()
    expect(page.get_by_test_id("new-tree")).to_have_count(0)
