"""Layers of settings and typed values, for tables and texts that nobody has chosen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.settings.layers import (
    Found,
    Layers,
    Origin,
    Rank,
    SettingsError,
    parse_override,
    parse_value,
)
from tests.commit_seed import examples

KEYS = st.sampled_from(["a", "b", "c"])
TABLES: st.SearchStrategy[Any] = st.recursive(
    st.integers() | st.text(max_size=3), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)
ORIGIN = Origin(Rank.FILE, "file", Path("/"))


@settings(max_examples=examples(80))
@given(tables=st.lists(st.dictionaries(KEYS, TABLES, max_size=3), min_size=1, max_size=4))
def test_layers_never_hold_a_value_and_a_table_under_one_name(tables: list[dict[str, Any]]) -> None:
    layers = Layers()
    for table in tables:
        layers.merge(table, ORIGIN)
    held = list(layers.below(()))
    for one in held:
        for other in held:
            assert one == other or other[: len(one)] != one


@settings(max_examples=examples(80))
@given(
    first=st.dictionaries(KEYS, TABLES, max_size=3), value=TABLES, path=st.lists(KEYS, min_size=1, max_size=3)
)
def test_assigned_value_is_found_whole_whatever_was_there(
    first: dict[str, Any], value: Any, path: list[str]
) -> None:
    layers = Layers()
    layers.merge(first, ORIGIN)
    layers.assign(tuple(path), Found(value, ORIGIN))
    expected = Layers()
    expected.assign(tuple(path), Found(value, ORIGIN))
    assert layers.below(tuple(path)) == expected.below(tuple(path))


@settings(max_examples=examples(80))
@given(text=st.text(max_size=30))
def test_any_text_is_a_value(text: str) -> None:
    assert parse_value(text) is not None
    assert parse_value("1\nother = 2") == "1\nother = 2"


def test_text_that_is_nested_too_deep_is_no_table_and_its_key_none() -> None:
    assert parse_value("[" * 5_000) == "[" * 5_000
    with pytest.raises(SettingsError, match="write -c key=value"):
        parse_override("a." * 5_000 + "b=1")
