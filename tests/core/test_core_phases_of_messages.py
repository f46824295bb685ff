"""The phase that a model names for a message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.core.driver import Session, assistant


@pytest.mark.parametrize("phase", ["commentary", "partial_answer", "final_answer"])
def test_client_is_told_the_phase_of_a_message(phase: str) -> None:
    session = Session()
    session.say("go")
    session.begin()
    told = session.item({**assistant("I look first."), "phase": phase}).one("agent_message")
    assert told["phase"] == phase


@pytest.mark.parametrize("phase", [None, "", "x" * 10_000, 7, ["commentary"]])
def test_client_is_told_no_phase_that_it_does_not_know(phase: Any) -> None:
    session = Session()
    session.say("go")
    session.begin()
    assert "phase" not in session.item({**assistant("Done."), "phase": phase}).one("agent_message")
