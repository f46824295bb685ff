"""Parts of the window keep the names by which programs and tests find them.

That the chosen request is `aria-selected`, and that each part is there in a page, is tested in a browser.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator.gateways import window

ASSETS = {path.name: path.read_text() for path in (Path(window.__file__).parent / "assets").glob("*.js")}
NAMES = [
    "sign-in",
    "token",
    "needs",
    "request",
    "request-detail",
    "request-text",
    "allow",
    "allow-session",
    "deny",
    "deny-stop",
    "reply",
    "answer",
    "selection",
    "needs-count",
    "needs-empty",
    "notice",
    "connection",
    "lost-connection",
    "fleet",
    "tree-row",
    "filter",
    "tree",
    "agents",
    "agent",
    "conversation",
    "item",
    "composer",
    "interrupt",
    "confirm",
    "slider",
    "live",
    "past-banner",
    "changes",
    "file",
    "remark",
    "proof",
    "proof-verdict",
    "budget-add",
    "budget-tokens",
    "budget-save",
    "palette",
    "palette-item",
    "keys",
    "nav-needs-you",
    "nav-fleet",
    "nav-workers",
    "nav-spend",
    "tabbar",
    "workers",
    "spend",
]
ATTRIBUTES = {
    "request": ("data-request-id", "data-thread", "data-call", "data-opened-ms"),
    "tree-row": ("data-tree", "data-state"),
    "agent": ("data-agent-id", "data-label", "data-state"),
    "item": ("data-item-id", "data-type"),
    "proof-verdict": ("data-ok",),
}
STATES = [
    "needs",
    "lost",
    "due",
    "failed",
    "ready",
    "working",
    "paused",
    "waiting",
    "idle",
    "quarantined",
    "archived",
]


def named() -> set[str]:
    """The names that the pages' elements have: as they are written, of the main pages, and of answers."""
    text = "\n".join(ASSETS.values())
    pages = re.findall(r'\["/[a-z]*", "[a-z]+", "([A-Z][a-z ]+)", "g [a-z]"\]', ASSETS["parts.js"])
    answers = re.findall(r'act\("([a-z-]+)", "[a-z]", ', ASSETS["needs.js"])
    return {
        *re.findall(r'data-testid="([a-z-]+)"', text),
        *(f"nav-{words.lower().replace(' ', '-')}" for words in pages),
        *answers,
    }


def test_each_part_has_the_name_that_was_promised() -> None:
    assert sorted({*NAMES} - named()) == []


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_part_has_the_attributes_that_were_promised(name: str) -> None:
    """Each element of the name has all of them, in its own tag."""
    tags = [
        tag
        for text in ASSETS.values()
        for tag in re.findall(rf'<\w+ [^\n]*?data-testid="{name}"[^\n]*', text)
    ]
    assert tags
    for tag in tags:
        element = tag[tag.rindex("<", 0, tag.index(f'data-testid="{name}"')) :]
        assert [one for one in ATTRIBUTES[name] if f" {one}=" not in element] == []


def test_states_have_the_names_that_were_promised_in_their_order() -> None:
    told = re.search(r"export const STATES = \{(.*?)\};", ASSETS["parts.js"], re.S)
    assert told is not None
    order = re.search(r"export const ORDER = \[(.*?)\];", ASSETS["trees.js"])
    assert order is not None
    assert sorted(re.findall(r"([a-z]+): \"", told[1])) == sorted(STATES)
    assert sorted(re.findall(r'"([a-z]+)"', order[1])) == sorted(STATES)
