"""Names and schemas of tools as models are offered them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config_keys import McpServerSettings
from orchestrator.mcp.server_records import ServerTool, cut, is_deeper, named, plain
from orchestrator.mcp.servers import Lines, answered, cleaned, parameters
from orchestrator.protocol.mcp import Tool

ACCEPTED = re.compile(r"[A-Za-z0-9_-]{1,64}")


def tools(*names: tuple[str, str]) -> list[ServerTool]:
    return [ServerTool(server, name, "", {}, Tool(name=name, input_schema={})) for server, name in names]


def full(*names: tuple[str, str]) -> list[str]:
    return [each.full_name for each in named(tools(*names))]


def digest(text: str) -> str:
    return hashlib.sha1(text.encode()).hexdigest()[:8]


def test_a_tool_is_named_by_its_server_and_itself() -> None:
    assert full(("b", "x"), ("a", "y"), ("a", "x")) == ["mcp__a__x", "mcp__a__y", "mcp__b__x"]


def test_other_characters_become_underscores_and_of_two_equal_names_the_second_gets_a_hash() -> None:
    assert full(("a", "x.y"), ("a", "x/y")) == ["mcp__a__x_y", f"mcp__a__x_y_{digest('mcp__a__x/y')}"]
    assert full(("a__b", "c"), ("a", "b__c")) == ["mcp__a__b__c", f"mcp__a__b__c_{digest('mcp__a__b__c')}"]


def test_a_long_name_is_cut_and_ends_with_a_hash_of_the_whole() -> None:
    (name,) = full(("server", "t" * 100))
    whole = f"mcp__server__{'t' * 100}"
    assert name == f"{whole[:55]}_{digest(whole)}"
    assert len(name) == 64


@given(
    st.lists(
        st.tuples(st.text("ab_-", min_size=1, max_size=70), st.text(min_size=1, max_size=90)), max_size=8
    )
)
def test_names_are_such_as_providers_take_and_each_stands_for_one_tool(pairs: list[tuple[str, str]]) -> None:
    offered = named(tools(*dict.fromkeys(pairs)))
    assert all(ACCEPTED.fullmatch(each.full_name) for each in offered)
    assert len({each.full_name for each in offered}) == len(offered)
    again = named(tools(*reversed(dict.fromkeys(pairs))))
    assert [each.full_name for each in again] == [each.full_name for each in offered]


@pytest.mark.parametrize(
    ("schema", "offered"),
    [
        ({}, {"type": "object", "properties": {}}),
        ({"type": "object", "oneOf": [{}], "$schema": "x"}, {"type": "object", "properties": {}}),
        (
            {"properties": {"a": {"type": "array"}, "b": {"type": "object"}, "c": True}},
            {
                "type": "object",
                "properties": {
                    "a": {"type": "array", "items": {}},
                    "b": {"type": "object", "properties": {}},
                    "c": {},
                },
            },
        ),
        (
            {"properties": {"a": {"anyOf": [{"type": "array"}, "no"], "items": 3}}, "required": ["a"]},
            {
                "type": "object",
                "required": ["a"],
                "properties": {"a": {"anyOf": [{"type": "array", "items": {}}, {}]}},
            },
        ),
        ({"properties": [], "additionalProperties": False},
         {"type": "object", "properties": {}, "additionalProperties": False}),
    ],
)  # fmt: skip
def test_schemas_are_mended_so_that_providers_take_them(
    schema: dict[str, Any], offered: dict[str, Any]
) -> None:
    assert parameters(schema) == offered


KEYS = ("$blob", "bytes", "type", "properties", "items", "anyOf", "$defs", "text", "data", "mimeType", "not")
JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.sampled_from(KEYS), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(
    st.lists(
        st.dictionaries(st.sampled_from(("name", "inputSchema", "annotations", "title")), JSON), max_size=4
    )
)
def test_no_list_of_tools_breaks_what_cleans_it(listed: list[dict[str, Any]]) -> None:
    settings = McpServerSettings(id="a", command="x")
    found, _ = cleaned((tool for tool in listed if isinstance(tool.get("inputSchema"), dict)), settings)
    for tool in found:
        assert tool.parameters["type"] == "object"
        assert isinstance(tool.parameters["properties"], dict)


@given(JSON, st.lists(JSON, max_size=4))
def test_no_result_breaks_what_reads_it(structured: Any, content: list[Any]) -> None:
    answer = answered({"structuredContent": structured, "content": content}, _whole)
    assert answer.output is not None


def _whole(text: str) -> str:
    return text


def test_bounds_hold() -> None:
    assert cut("a\x00b\ud800" + "c" * 9, 5) == "ab?c…"
    assert plain({"$blob": [1 << 70, 10**2_000]}) == {
        "$blob ": ["1180591620717411303424", "[a very large number]"]
    }
    assert not is_deeper({"a": [1]}, 2)
    assert is_deeper({"a": [[1]]}, 2)


@pytest.mark.parametrize("char", ["a", "é", "\U0001f4a3", "\n"])
def test_text_of_a_server_is_cut_at_its_bound_and_says_so(char: str) -> None:
    assert [cut(char * count, 5) for count in (0, 1, 4, 5)] == ["", char, char * 4, char * 5]
    assert [cut(char * count, 5) for count in (6, 7, 99)] == [f"{char * 4}…"] * 3


def lines(parts: Iterable[bytes]) -> list[bytes]:
    reading = Lines("a")
    return [line for part in parts for line in reading.of(part)]


def _is_line(text: bytes) -> bool:
    return b"\n" not in text and text.strip() == text


@given(st.lists(st.binary(min_size=1, max_size=9).filter(_is_line)), st.integers(1, 7))
def test_lines_are_the_same_however_they_are_cut(whole: list[bytes], size: int) -> None:
    stream = b"".join(line + b"\n" for line in whole)
    parts = [stream[at : at + size] for at in range(0, len(stream), size)]
    assert lines(parts) == whole
