"""A person signs in at the window, and out."""

from __future__ import annotations

import re

from playwright.sync_api import Route, expect

from tests.window.browser.conftest import Visitor


def test_a_person_signs_in_by_the_address_which_keeps_no_code(visitor: Visitor) -> None:
    page = visitor.page()
    page.goto(f"{visitor.deployment.url}/#c={visitor.deployment.served.new_code()}")
    expect(page.get_by_test_id("connection")).to_be_visible()
    assert page.url == f"{visitor.deployment.url}/"
    expect(page).to_have_title(re.compile(r"^(\(\d+\) )?Dendro$"))
    assert "c=" not in page.evaluate("location.href")
    page.reload()
    expect(page.get_by_test_id("connection")).to_have_text("live")


def test_a_person_without_a_code_pastes_a_token_and_signs_out(visitor: Visitor) -> None:
    visitor.allowed.add("401")
    page = visitor.page()
    for path in ("tree/%E0%A4%A", "fleet"):
        # The first is a link that was cut off in the middle of an escape.
        page.goto(f"{visitor.deployment.url}/{path}")
        expect(page.get_by_test_id("sign-in")).to_be_visible()
    page.get_by_test_id("token").fill("dendro_wrong")
    page.keyboard.press("Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    page.get_by_test_id("token").fill(visitor.deployment.token)
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("connection")).to_have_text("live")
    assert page.url.endswith("/fleet")
    page.get_by_test_id("settings-open").click()
    page.get_by_test_id("sign-out").click()
    expect(page.get_by_test_id("sign-in")).to_be_visible()


def test_another_tab_is_signed_out_too_and_emptied(visitor: Visitor) -> None:
    visitor.allowed.add("401")
    context = visitor.context()
    one = visitor.page(context)
    one.goto(f"{visitor.deployment.url}/#c={visitor.deployment.served.new_code()}")
    expect(one.get_by_test_id("connection")).to_have_text("live")
    two = visitor.page(context)
    two.goto(f"{visitor.deployment.url}/")
    expect(two.get_by_test_id("connection")).to_have_text("live")
    one.get_by_test_id("settings-open").click()
    one.get_by_test_id("sign-out").click()
    expect(two.get_by_test_id("sign-in")).to_be_visible()
    expect(two.get_by_test_id("needs")).to_have_count(0)


def test_keys_and_the_palette_lead_to_pages(visitor: Visitor) -> None:
    page = visitor.signed_in("/")
    page.keyboard.press("?")
    expect(page.get_by_test_id("keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_test_id("keys")).to_have_count(0)
    page.keyboard.press("g")
    page.keyboard.press("f")
    expect(page.get_by_test_id("fleet")).to_be_visible()
    page.keyboard.press("Control+k")
    expect(page.get_by_test_id("palette")).to_be_visible()
    page.keyboard.type("needs")
    expect(page.get_by_test_id("palette-item").first).to_contain_text("Needs you")
    page.keyboard.press("Enter")
    expect(page.get_by_test_id("palette")).to_have_count(0)
    assert page.url == f"{visitor.deployment.url}/"
    page.go_back()
    expect(page.get_by_test_id("fleet")).to_be_visible()


def test_a_code_that_nobody_could_answer_yet_is_tried_again(visitor: Visitor) -> None:
    visitor.allowed |= {"503", "Failed to load resource"}
    page, tries = visitor.page(), []

    def away(route: Route) -> None:
        tries.append(route.request.url)
        if len(tries) == 1:
            route.fulfill(status=503, json={"error": {"code": -32603, "message": "Redis does not answer"}})
        else:
            route.continue_()

    page.route("**/api/login", away)
    page.goto(f"{visitor.deployment.url}/#c={visitor.deployment.served.new_code()}")
    expect(page.get_by_test_id("connection")).to_have_text("live")
    assert len(tries) == 2
