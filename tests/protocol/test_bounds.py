"""Every field of a submission has a bound, and what lies beyond is refused by its name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.protocol import bounds, inputs, ops, policy
from orchestrator.protocol.codec import parse_submission
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.submission import MalformedSubmission, Submission
from orchestrator.protocol.wire import OpModel
from tests.protocol.wire_examples import Json, examples, ids


def said(text: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"type": "user_input", "items": [{"type": "text", "text": text}], **fields}


def nested(levels: int) -> Any:
    return orjson.loads("[" * levels + "]" * levels)


def refused(op: dict[str, Any], id: str = "a") -> str:
    with pytest.raises(MalformedSubmission) as raised:
        parse_submission(orjson.dumps({"id": id, "op": op}))
    return raised.value.message


def test_every_field_of_every_operation_that_can_grow_has_a_bound() -> None:
    rows = bounds.rows()
    for model in ops.OPS.values():
        for name, kind in bounds.fields_of(model):
            assert f"`{name}` ({kind})" in rows
    assert len(rows) > 30
    assert set(get_args(ops.Op)) == set(ops.OPS.values())


@pytest.mark.parametrize("annotation", [str, tuple[str, ...], dict[str, str], Any], ids=str)
def test_a_new_field_without_a_bound_is_found(monkeypatch: pytest.MonkeyPatch, annotation: Any) -> None:
    class Novelty(OpModel):
        type: Literal["novelty"] = "novelty"
        never_bounded: annotation

    monkeypatch.setitem(ops.OPS, "novelty", Novelty)
    with pytest.raises(KeyError, match="never_bounded"):
        bounds.rows()


BEYOND = [
    (said(), "i" * 1_025, "id: at most 1,024 bytes, this has 1,025"),
    ({"type": "override_turn_context", "model": "m" * 70_000}, "a", "op.model: at most 1,024 bytes"),
    (
        {"type": "configure_session", "model_provider": "p" * 70_000},
        "a",
        "op.model_provider: at most 1,024 bytes",
    ),
    ({"type": "override_turn_context", "model": ""}, "a", "op.model: it is blank"),
    ({"type": "configure_session", "model_provider": " "}, "a", "op.model_provider: it is blank"),
    (
        said(overrides={"collaboration_mode": {"mode": "plan", "settings": {"model": "\n"}}}),
        "a",
        "op.overrides.collaboration_mode.settings.model: it is blank",
    ),
    ({"type": "override_turn_context", "cwd": "/" * 4_097}, "a", "op.cwd: at most 4,096 bytes"),
    ({"type": "override_turn_context", "cwd": "/a\0b"}, "a", "op.cwd: a path holds no byte 0"),
    (said("x" * ((4 << 20) + 1)), "a", "op.items[0].text: at most 4,194,304 bytes"),
    (said("ü" * ((2 << 20) + 1)), "a", "op.items[0].text: at most 4,194,304 bytes"),
    (
        {"type": "user_input", "items": [{"type": "text", "text": "x"}] * 1_001},
        "a",
        "op.items: at most 1,000",
    ),
    (
        {"type": "user_input", "items": [{"type": "image", "image_url": "u" * 200}] * 1_000},
        "a",
        "op: too many parts: beside its texts at most 131,072 bytes",
    ),
    (
        said(final_output_json_schema={"a": "x" * 65_536}),
        "a",
        "op.final_output_json_schema: at most 65,536 bytes",
    ),
    (
        said(final_output_json_schema=nested(33)),
        "a",
        "op.final_output_json_schema: nested deeper than 32 levels",
    ),
    (
        {
            "type": "dynamic_tool_response",
            "id": "c",
            "response": {
                "content_items": [{"type": "inputImage", "imageUrl": "u" * ((8 << 20) + 1)}],
                "success": True,
            },
        },
        "a",
        "op.response.content_items[0].image_url: at most 8,388,608 bytes",
    ),
    (
        {"type": "user_input", "items": [{"type": "local_image", "path": "/" + "p" * 4_096}]},
        "a",
        "op.items[0].path: at most 4,096 bytes",
    ),
]


@pytest.mark.parametrize(("op", "id", "complaint"), BEYOND, ids=[complaint for _, _, complaint in BEYOND])
def test_the_client_is_told_the_field_and_its_bound(op: dict[str, Any], id: str, complaint: str) -> None:
    assert refused(op, id).startswith(complaint)


def test_folders_to_write_are_bounded_by_number_and_in_all() -> None:
    def roots(*found: str) -> dict[str, Any]:
        mode = {"mode": "workspace-write", "writable_roots": list(found)}
        return {"type": "override_turn_context", "sandbox_policy": mode}

    many = refused(roots(*(f"/r{n}" for n in range(40_000))))
    assert many.startswith("op.sandbox_policy.writable_roots: at most 128 elements, this has 40,000")
    long = refused(roots(*(f"/{n:04}" + "r" * 4_000 for n in range(10))))
    assert long.startswith("op.sandbox_policy.writable_roots: at most 32,768 bytes in all")
    assert parse_submission(orjson.dumps({"id": "a", "op": roots(*(f"/r{n}" for n in range(128)))}))


LISTED: Mapping[str, Callable[[list[str]], dict[str, Any]]] = {
    "writable_roots": lambda texts: {
        "type": "override_turn_context",
        "sandbox_policy": {"mode": "workspace-write", "writable_roots": texts},
    },
    "cwds": lambda texts: {"type": "list_skills", "cwds": texts},
    "submission_ids": lambda texts: {"type": "reorder_queue", "submission_ids": texts},
}
"""Operations with each of the lists that is bounded in all."""
WIDE = ("x", "é", "語", "😀")
"""Characters of one to four bytes."""


@pytest.mark.parametrize("letter", WIDE)
@pytest.mark.parametrize("name", bounds.TOGETHER)
def test_lists_are_bounded_in_all_by_bytes_whatever_letters_they_have(name: str, letter: str) -> None:
    most, each = bounds.TOGETHER[name], 1_024 if name == "submission_ids" else 4_096
    wide, rest = divmod(each - 8, len(letter.encode()))
    texts = [f"{n:08}{'x' * rest}{letter * wide}" for n in range(most // each)]
    parse_submission(orjson.dumps({"id": "a", "op": LISTED[name](texts)}))
    complaint = refused(LISTED[name]([*texts, "x"]))
    assert complaint.endswith(f"{name}: at most {most:,} bytes in all, these are {most + 1:,}")


@pytest.mark.parametrize("letter", WIDE)
def test_names_of_answers_weigh_their_bytes_whatever_letters_they_have(letter: str) -> None:
    def answered(count: int) -> dict[str, Any]:
        names = [letter * (4_000 // len(letter.encode())) + f"{n}" for n in range(count)]
        answers = {name: {"answers": ["y"]} for name in names}
        return {"type": "user_input_answer", "id": "t", "response": {"answers": answers}}

    parse_submission(orjson.dumps({"id": "a", "op": answered(30)}))
    assert refused(answered(33)).startswith("op: too many parts: beside its texts at most 131,072 bytes")


@pytest.mark.parametrize("letter", ["i", "é", "€", "𝄞"])
@pytest.mark.parametrize(
    "op", [{"type": "nonsense"}, {"type": "user_input"}, {}, None, {"type": "compact", "x": [[]] * 60_000}]
)
def test_the_error_of_an_overlong_id_does_not_repeat_it(letter: str, op: Json | None) -> None:
    most = bounds.NAME_BYTES // len(letter.encode())
    for count, whole in ((most, True), (most + 1, False), (300_000, False)):
        with pytest.raises(MalformedSubmission) as raised:
            parse_submission(orjson.dumps({"id": letter * count, "op": op}))
        assert (raised.value.submission_id == letter * count) == whole
        assert whole or len(raised.value.submission_id) < 100
    with pytest.raises(MalformedSubmission) as raised:
        parse_submission(orjson.dumps({"id": letter * (most + 1), "op": {"type": "interrupt"}}))
    assert raised.value.submission_id == ""


@pytest.mark.parametrize("shape", [lambda n: [0] * n, lambda n: {f"k{at}": at for at in range(n)}])
def test_a_message_has_as_many_values_as_models_check_and_no_more(shape: Callable[[int], Any]) -> None:
    for more, fits in ((0, True), (1, False)):
        # Beside them: `id` and `op`, and in that `type` and `x`.
        frame = {"id": "a", "op": {"type": "interrupt", "x": shape(bounds.MESSAGE_VALUES - 4 + more)}}
        if fits:
            assert parse_submission(orjson.dumps(frame)).id == "a"
        else:
            with pytest.raises(MalformedSubmission, match="at most 50,000 values in all"):
                parse_submission(orjson.dumps(frame))


@pytest.mark.parametrize("letter", ["x", "é", "€", "𝄞"])
def test_a_schema_has_as_many_bytes_as_json_as_may_be_and_no_more(letter: str) -> None:
    size = len(letter.encode())
    count, rest = divmod(bounds.JSON_BYTES - len(b'{"a":""}'), size)
    for more, fits in ((0, True), (1, False)):
        schema = {"a": letter * count + "x" * (rest + more)}
        assert len(orjson.dumps(schema)) == bounds.JSON_BYTES + more
        op = {"type": "user_input", "items": [], "final_output_json_schema": schema}
        if fits:
            parse_submission(orjson.dumps({"id": "a", "op": op}))
        else:
            with pytest.raises(MalformedSubmission, match="final_output_json_schema: at most 65,536 bytes"):
                parse_submission(orjson.dumps({"id": "a", "op": op}))


def test_text_that_is_no_unicode_is_refused_where_it_was_typed() -> None:
    """A terminal hands on bytes of another encoding as halves of surrogate pairs."""
    item = inputs.TextInput.model_construct(text="caf\udce9")
    with pytest.raises(MalformedSubmission, match=r"items\[0\]\.text: not valid Unicode"):
        bounds.check_bounds(Submission(SubmissionId("a"), ops.UserInput.model_construct(items=(item,))))


@pytest.mark.parametrize("example", examples("ops"), ids=ids(examples("ops")))
def test_every_example_is_within_the_bounds(example: Json) -> None:
    parse_submission(orjson.dumps({"id": "a", "op": example}))


LONG = st.integers(1, 3).map(lambda n: "x" * (n * (2 << 20)))
SHORT = st.text(max_size=8)
VALUES = st.one_of(
    SHORT,
    LONG,
    st.lists(st.one_of(SHORT, LONG), max_size=3),
    st.integers(1, 100_000).map(lambda n: ["x"] * n),
    st.dictionaries(SHORT, st.one_of(SHORT, LONG, st.just({"answers": ["y" * 100]})), max_size=3),
    st.integers(1, 90).map(lambda n: orjson.loads("[" * n + "]" * n)),
    st.integers(),
    st.none(),
)
FIELDS = sorted({name for model in ops.OPS.values() for name in model.model_fields} - {"type"})


@given(
    st.sampled_from(sorted(ops.OPS)),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=8),
    st.one_of(SHORT, st.just("i" * 2_000)),
)
def test_whatever_is_sent_is_either_within_its_bounds_or_refused_in_one_short_line(
    tag: str, fields: dict[str, Any], id: str
) -> None:
    try:
        line = orjson.dumps({"id": id, "op": {"type": tag, **fields}})
    except TypeError:  # an integer that JSON cannot hold here
        return
    try:
        submission = parse_submission(line)
    except MalformedSubmission as error:
        complaint = error.message
    else:
        complaint = ""
        assert len(submission.id) <= bounds.NAME_BYTES
        for name in type(submission.op).model_fields:
            within(name, getattr(submission.op, name))
    assert len(complaint) <= 200
    assert "\n" not in complaint


def within(name: str, value: Any) -> None:
    if isinstance(value, str):
        assert len(value.encode()) <= (bounds.PATHS.get(name) or bounds.TEXTS.get(name, 64))
    elif isinstance(value, tuple):
        assert len(value) <= bounds.LISTS[name]


def test_what_may_be_written_of_a_policy_fits_into_every_entry_that_repeats_it() -> None:
    assert bounds.TOGETHER["writable_roots"] * 4 + bounds.BESIDE_BYTES * 3 + bounds.JSON_BYTES < 600 << 10
    assert "writable_roots" in policy.WorkspaceWrite.model_fields
