"""Replies are read by the head of their script; head, script and Python's types say the same."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from orchestrator.broker import replies
from orchestrator.broker.reply_shapes import BadReply, Field, Gives, Shape, gives_of
from orchestrator.broker.scripts import load
from tests import lua_lint

HEAD = """-- gives: OK name count# so? left% body! pairs* words(word) flat(key amount#),
-- gives:   rows{<account>} [late]
-- gives: FULL MANY n# | NONE
-- row account: kind spent~ limit%
"""
OK = [b"OK", "ä".encode(), 3, 1, b"", b"\xff", [b"a", b"1"], [b"x"], [b"k", 1], [[b"cost", -2, b"7.0"]]]
LUA = files("orchestrator.broker").joinpath("lua")
SCRIPTS = sorted(f.name.removesuffix(".lua") for f in LUA.iterdir() if not f.name.startswith("_"))
TYPES = {"": str, "#": int, "~": int, "?": bool, "%": int | None, "!": bytes, "*": dict[bytes, bytes]}
SHARED = {"CorruptFields": ("commit", "CORRUPT"), "UnstoredFields": ("commit", "UNSTORED")}


def gives() -> Gives:
    return gives_of("example", HEAD)


def changed(place: int, value: Any) -> list[Any]:
    return [*OK[:place], value, *OK[place + 1 :]]


def test_reply_is_read_by_the_names_of_its_head() -> None:
    code, fields = gives().read(OK)
    assert code == "OK"
    assert fields == {
        "name": "ä", "count": 3, "so": True, "left": None, "body": b"\xff", "pairs": {b"a": b"1"},
        "words": ["x"], "flat": [("k", 1)], "rows": [("cost", -2, 7)], "late": None,
    }  # fmt: skip


def test_field_that_may_be_missing_is_read_where_it_is_there() -> None:
    assert gives().read([*OK, b"now"])[1]["late"] == "now"


def test_codes_with_the_same_fields_are_told_apart() -> None:
    assert gives().read([b"FULL", 1]) == ("FULL", {"n": 1})
    assert gives().read([b"MANY", 1]) == ("MANY", {"n": 1})
    assert gives().read([b"NONE"]) == ("NONE", {})


def test_reply_without_a_code_is_read_by_its_only_shape() -> None:
    plain = gives_of("example", "-- gives: CORRUPT key\n-- gives: now# members(member)\n")
    assert plain.read([5, [b"m"]]) == ("", {"now": 5, "members": ["m"]})


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        (OK[:3], "so is missing"),
        ([*OK, b"late", b"later"], "12 values, and 11 are declared"),
        (changed(1, 7), "name is 7"),
        (changed(1, b"\xff"), "name is|utf-8"),
        (changed(2, b"3"), "count is b'3'"),
        (changed(2, 1 << 53), "count is 9007199254740992"),
        (changed(2, -1), "count is -1"),
        (changed(3, b"yes"), "so is b'yes'"),
        (changed(4, b"much"), "left is"),
        (changed(5, None), "body is None"),
        (changed(6, [b"a"]), "pairs is"),
        (changed(6, [b"a", 1]), "pairs is"),
        (changed(7, b"x"), "words is b'x', and not a list"),
        (changed(8, [b"k"]), "flat is 1 values, and not rows of 2"),
        (changed(8, [b"k", b"1"]), "flat is b'1'"),
        (changed(9, [[b"cost", 2]]), "rows is"),
        ([b"FULL"], "n is missing"),
    ],
)
def test_reply_that_is_not_as_declared_is_refused_by_script_and_field(reply: list[Any], told: str) -> None:
    with pytest.raises(BadReply, match=f"script example answered (OK|FULL) wrongly: .*({told})"):
        gives().read(reply)


@pytest.mark.parametrize("reply", [[b"HOLOGRAM"], [5], [], [[b"OK"]]])
def test_code_that_is_not_declared_is_refused(reply: list[Any]) -> None:
    with pytest.raises(BadReply, match=r"script example answered .*, which this version does not know"):
        gives().read(reply)


def test_reply_is_packed_in_the_order_of_its_head() -> None:
    assert gives().packed("FULL", n=3) == [b"FULL", 3]
    with pytest.raises(TypeError, match="FULL has the fields"):
        gives().packed("FULL", m=3)


@pytest.mark.parametrize("head", ["-- gives: OK n# | OK m#", "-- gives: OK n&", "-- gives: OK rows{<none>}"])
def test_head_that_declares_no_replies_is_refused(head: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        gives_of("example", head)


def type_of(field: Field) -> Any:
    if not field.columns:
        found: Any = TYPES[field.tag]
    elif len(field.columns) == 1 and not field.nested:
        found = list[type_of(field.columns[0])]  # type: ignore[misc]
    else:
        found = list[tuple[tuple(type_of(column) for column in field.columns)]]  # type: ignore[misc]
    return found | None if field.optional else found


def plain(hint: Any) -> Any:
    """A hint with texts in the place of those of their values that it names."""
    if get_origin(hint) is Literal:
        return str
    args = get_args(hint)
    return get_origin(hint)[tuple(map(plain, args))] if get_origin(hint) in (list, tuple) else hint


def shape_of(name: str) -> Shape:
    if name in SHARED:
        script, code = SHARED[name]
        return load(script).gives.shapes[code]
    for script in SCRIPTS:
        camel = "".join(word.title() for word in script.split("_"))
        for code, shape in load(script).gives.shapes.items():
            if name == camel + "".join(word.title() for word in code.split("_")):
                return shape
    raise AssertionError(f"no script gives {name}")


@pytest.mark.parametrize("name", [n for n, c in vars(replies).items() if hasattr(c, "__total__")])
def test_types_of_a_reply_are_those_of_its_head(name: str) -> None:
    hints = get_type_hints(getattr(replies, name))
    declared = {field.name: type_of(field) for field in shape_of(name).fields}
    assert {field: plain(hint) for field, hint in hints.items()} == declared
    assert list(hints) == list(declared)


@pytest.mark.parametrize("script", SCRIPTS)
def test_script_returns_what_its_head_gives(script: str) -> None:
    assert load(script).gives.shapes
    assert list(lua_lint.replies_of(lua_lint.SCRIPTS / f"{script}.lua")) == []


@pytest.mark.parametrize(
    ("returned", "told"),
    [
        ("return {'OK', num(s.seq), s.head, now}", ""),
        ("return {'OK', num(s.seq), s.head}", "OK has 2 values where the head has 3"),
        ("return {'OK', s.head, num(s.seq), now}", "OK has s.head where the head has seq"),
        ("return {'OK', num(s.seq), s.head, ''}", "OK has '' for now"),
        ("return {'OK', now_ms(), s.head, num(s.seq)}", "OK has now_ms() where the head has seq"),
        ("return {'LOST'}", "the head does not give LOST"),
        ("return {found and 'OK' or 'DUP', {1, 2}, ',', 5}", ""),
        ("return {1, 2}", ""),
    ],
)
def test_linter_holds_each_reply_against_the_head(tmp_path: Path, returned: str, told: str) -> None:
    script = tmp_path / "one.lua"
    script.write_text(f"-- uses: \n-- gives: OK DUP seq# head! now#\n\n{returned}\n")
    faults = list(lua_lint.replies_of(script))
    assert [(line, text) for _, line, _, text in faults] == ([(4, f"one: {told}")] if told else [])
