"""The front matter of Markdown files, also of hostile ones."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.instructions.skills import split


def test_values_are_texts_whatever_yaml_would_make_of_them() -> None:
    text = "---\nname: no\ndescription: >-\n  two\n  lines\nsince: 2020-01-01\n---\nbody\n"
    assert split(text) == ({"name": "no", "description": "two lines", "since": "2020-01-01"}, "body\n")


def test_value_of_an_inner_mapping_is_named_by_both_keys() -> None:
    values, _ = split("---\nmetadata:\n  short-description: brief\n  deep: {a: b}\nname: x\n---\n")
    assert values == {"metadata.short-description": "brief", "name": "x"}


@pytest.mark.parametrize("text", ["", "body", "-- -\nname: x\n---\n", "\n---\nname: x\n---\n"])
def test_text_without_a_front_matter_is_whole(text: str) -> None:
    assert split(text) == (None, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("---\nname: x\n", "does not end"),
        ("---\nname: [x\n---\n", "no YAML in line"),
        ("---\n\x00\n---\n", "no YAML"),
        ("---\n" + "a: b\n" * 10_000 + "---\n", "more than 16,384 bytes"),
    ],
)
def test_broken_front_matter_is_an_error_that_says_what_is_wrong(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        split(text)


@pytest.mark.parametrize(
    "matter",
    [
        "a: &a [" + "x," * 2_000 + "]\n" + "".join(f"k{n}: [*a,*a,*a,*a]\n" for n in range(300)),
        "a: " + "[" * 8_000,
        "a: " + "{a: " * 3_000 + "}" * 3_000,
        "!!python/object/apply:os.system ['true']: x\nname: !!python/name:os.system x",
    ],
    ids=["aliases", "open lists", "nested mappings", "tags"],
)
def test_hostile_front_matter_costs_nothing_and_makes_no_object(matter: str) -> None:
    began = time.process_time()
    try:
        values, _ = split(f"---\n{matter}\n---\n")
    except ValueError:
        values = {}
    assert all(isinstance(value, str) for value in (values or {}).values())
    assert time.process_time() - began < 1.0


@given(st.text(st.sampled_from("ab:-[]{}&*!|>'\"#%@`, \n\t?\u2028"), max_size=60))
def test_no_text_is_anything_but_values_or_a_value_error(matter: str) -> None:
    try:
        values, _ = split(f"---\n{matter}\n---\nrest")
    except ValueError:
        return
    assert values is not None
    assert all(isinstance(value, str) for value in values.values())
