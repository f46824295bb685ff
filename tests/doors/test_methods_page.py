"""Every method that clients know is served, or refused with the way there is instead."""

from __future__ import annotations

from pathlib import Path

from orchestrator.gateways.app_server.methods import METHODS, refusal
from tests.methods_page import methods_of_schema, page

DOCS = Path(__file__).parent.parent.parent / "docs" / "doors"


def test_the_page_of_methods_is_not_stale() -> None:
    stale = "run: python -m tests.methods_page > docs/doors/methods.md"
    assert (DOCS / "methods.md").read_text() == page(), stale


def test_every_method_of_the_schema_is_served_or_names_a_way_out() -> None:
    refused = [name for name in methods_of_schema() if name not in METHODS]
    assert [name for name in refused if ": " not in refusal(name)] == []
