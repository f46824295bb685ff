"""Secret questions among others: whichever is secret, no place that shows or takes answers tells it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.cli import approvals
from orchestrator.config_keys import LEAST_SECRET
from orchestrator.core.secrets import NOT_KEPT, hidden, with_secrets
from orchestrator.gateways import mcp_server
from orchestrator.gateways.app_server.methods.approvals import kind_of
from orchestrator.gateways.app_server.write_requests import question_json
from orchestrator.protocol.ops import UserInputAnswer
from orchestrator.protocol.wire import json_text
from orchestrator.requests import Request, request_of
from orchestrator.terminal.faults import Fault
from orchestrator.terminal.watched_turn import Prompt
from orchestrator.views.approvals import _hides

SECRETS = st.lists(st.booleans(), min_size=1, max_size=3)
"""Of each question whether it is secret."""


def asking(secrets: list[bool]) -> Request:
    questions = [
        {"id": f"q{number}", "header": f"Q{number}", "question": "?", "isOther": True, "isSecret": secret}
        for number, secret in enumerate(secrets)
    ]
    return request_of({"type": "request_user_input", "call_id": "c1", "questions": questions})


@given(SECRETS)
def test_terminal_hides_what_is_typed_to_each_secret_question_and_to_no_other(secrets: list[bool]) -> None:
    prompt, hid = Prompt(asking(secrets)), []
    for _ in secrets:
        hid.append(prompt.hides)
        prompt.take("words")
    assert hid == secrets


@given(SECRETS)
def test_list_of_what_waits_shows_no_choices_of_a_secret_question(secrets: list[bool]) -> None:
    asked = cast(Any, SimpleNamespace(request=asking(secrets), call="0:c1"))
    lines = list(approvals._details(asked))
    assert lines == [f"q{number}={'' if secret else 'any text'}" for number, secret in enumerate(secrets)]
    for question, secret in zip(asked.request.questions, secrets, strict=True):
        assert approvals._example("0:c1", question).endswith("='" if secret else "=TEXT'")


@given(SECRETS, st.data())
def test_command_line_gives_no_secret_answer_and_each_is_typed(
    secrets: list[bool], data: st.DataObject
) -> None:
    asked = cast(Any, SimpleNamespace(request=asking(secrets), call="0:c1"))
    words = st.none() | st.lists(st.sampled_from(["", "plain"]), min_size=1, max_size=2)
    said = data.draw(st.tuples(*(words for _ in secrets)))
    given_ = {f"q{number}": texts for number, texts in enumerate(said) if texts is not None}
    typed = list[str]()

    def unseen(prompt: str) -> str:
        typed.append(prompt)
        return f"secret {len(typed)}"

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(approvals, "_typed_unseen", unseen)
        secret_ones = [name for name in given_ if secrets[int(name[1:])]]
        if any(any(given_[name]) for name in secret_ones):
            with pytest.raises(Fault, match="others see a command line"):
                approvals._secrets_typed(asked, given_)
            return
        found = approvals._secrets_typed(asked, given_)
    put = {name: [f"secret {number}"] for number, name in enumerate(secret_ones, 1)}
    assert found == {**given_, **put}
    assert [name in prompt for name, prompt in zip(secret_ones, typed, strict=True)] == [True] * len(typed)


@given(SECRETS)
def test_form_is_shown_to_a_client_for_plain_questions_alone(secrets: list[bool]) -> None:
    assert (mcp_server.form_of(asking(secrets), 1) is None) == any(secrets)


@given(SECRETS)
def test_client_is_told_of_each_question_whether_it_is_secret(secrets: list[bool]) -> None:
    request = asking(secrets)
    assert kind_of(request) == "question"
    assert [question_json(each)["isSecret"] for each in request.questions] == secrets


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2)), min_size=1, max_size=3))
def test_signature_covers_no_digest_of_an_answer_with_a_secret(asked: list[tuple[bool, int]]) -> None:
    request = asking([secret for secret, _ in asked])
    given_ = {f"q{at}": {"answers": ["w"] * number} for at, (_, number) in enumerate(asked)}
    op = UserInputAnswer.model_validate({"id": "c1", "response": {"answers": given_}})
    hides = _hides(op, cast(Any, SimpleNamespace(request=request)))
    assert hides == any(secret and number for secret, number in asked)


# ── behind the answer ─────────────────────────────────────────────────────────────────────────────

TEXTS = st.lists(st.text("xyz", min_size=1, max_size=7), min_size=1, max_size=3)
RESPONSES = st.lists(st.dictionaries(st.sampled_from("abc"), TEXTS, min_size=1), min_size=1, max_size=3)


@given(RESPONSES, st.randoms(use_true_random=False))
def test_no_error_of_a_provider_quotes_any_text_of_any_secret_answer(
    responses: list[dict[str, list[str]]], random: Any
) -> None:
    told = [
        (f"c{number}", {"answers": {name: {"answers": texts} for name, texts in one.items()}})
        for number, one in enumerate(responses)
    ]
    secrets = [text for one in responses for texts in one.values() for text in texts]
    random.shuffle(secrets)
    left = hidden("cannot read " + " | ".join(secrets), told)
    assert [text for text in secrets if len(text) >= LEAST_SECRET and text in left] == []
    shown = [text for text in secrets if len(text) < LEAST_SECRET]
    assert left.count(NOT_KEPT) == len(secrets) - len(shown)


def test_error_of_a_provider_that_was_cut_quotes_no_half_of_a_secret_answer() -> None:
    told = [("c1", {"answers": {"a": {"answers": ["the blue key below the third stone"]}}})]
    assert hidden("no such place: the blue key below the th…", told) == f"no such place: {NOT_KEPT}…"


@given(st.dictionaries(st.sampled_from("abc"), st.tuples(st.booleans(), TEXTS), min_size=1))
def test_model_reads_every_text_of_every_secret_answer(given_: dict[str, tuple[bool, list[str]]]) -> None:
    kept = {name: {"answers": [NOT_KEPT] if secret else texts} for name, (secret, texts) in given_.items()}
    whole = {"answers": {name: {"answers": texts} for name, (_, texts) in given_.items()}}
    item = {"type": "function_call_output", "call_id": "c1", "output": json_text({"answers": kept})}
    (shown,) = with_secrets([item], [("c1", whole)])
    assert shown["output"] == json_text(whole)
