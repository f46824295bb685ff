"""Python packs, and Lua reads, the arguments that the head of a script states."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lupa.lua51 import LuaRuntime

from orchestrator.broker.scripts import composed, takes_of

HEAD = """-- takes: name count# so? at~ spent$ words(word) rows(key amount#) flags(key on?)
-- takes: born<birth> others[told(<event>) whole?]
-- record birth: id entries(payload salt)
-- record birth: parent
-- record event: after# parts(part)
"""
READER = files("orchestrator.broker").joinpath("lua", "_base.lua").read_text()
KNOWN = """
local function shown(value)
  if type(value) ~= 'table' then return tostring(value) end
  local names, found = {}, {}
  for name in pairs(value) do names[#names + 1] = name end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  for i, name in ipairs(names) do found[i] = tostring(name) .. '=' .. shown(value[name]) end
  return '{' .. table.concat(found, ' ') .. '}'
end
return shown({name = name, count = count, so = so, at = at_said, spent = spent, words = words, rows = rows,
  flags = flags, born = born, told = told, whole = whole})
"""


def read(args: list[Any], head: str = HEAD) -> str:
    """Lua's reading of a flat list."""
    runtime = LuaRuntime()
    runtime.globals()["ARGV"] = runtime.table(*(str(arg) for arg in args))
    lua = takes_of(head).lua().replace("local at =", "local at_said =")
    return str(runtime.execute(READER + lua + KNOWN))


def values(**changes: Any) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "name": "n",
        "count": 3,
        "so": True,
        "at": 1_800_000_000_000,
        "spent": (1, 2, 3),
        "words": ["a", "b"],
        "rows": [("k", 1)],
        "flags": [("f", False)],
        "born": {"id": "i", "entries": [("p", "s")], "parent": ""},
        "others": None,
    }
    return whole | changes


def test_lua_reads_what_python_packs() -> None:
    others = {"told": [{"after": 2, "parts": ["x", "y"]}, {"after": 3, "parts": []}], "whole": True}
    assert read(takes_of(HEAD).pack(values(others=others))) == (
        "{at=1800000000000 born={entries={1={payload=p salt=s}} id=i parent=} count=3 "
        "flags={1={key=f on=false}} name=n rows={1={amount=1 key=k}} so=true spent={1=1 2=2 3=3} "
        "told={1={after=2 parts={1=x 2=y}} 2={after=3 parts={}}} whole=true words={1=a 2=b}}"
    )


def test_section_that_is_not_given_reads_as_empty() -> None:
    assert " told={} whole=false " in read(takes_of(HEAD).pack(values()))


@dataclass(frozen=True)
class Row:
    amount: int
    key: str


@given(st.lists(st.builds(Row, st.integers(0, 9), st.text("ab", max_size=3))))
def test_record_packs_as_the_tuple_of_its_columns(rows: list[Row]) -> None:
    takes = takes_of("-- takes: rows(key amount#)")
    assert takes.pack({"rows": rows}) == takes.pack({"rows": [(row.key, row.amount) for row in rows]})


@pytest.mark.parametrize("named", [{"other": 1}, {"name": "n"}])
def test_call_with_other_names_is_refused(named: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="missing"):
        takes_of(HEAD).pack(named)


def test_row_of_another_width_is_refused() -> None:
    with pytest.raises(TypeError, match="2 columns"):
        takes_of(HEAD).pack(values(rows=[("k", 1, 2)]))


@pytest.mark.parametrize("change", [lambda args: args[:-1], lambda args: [*args, "x"]])
def test_lua_refuses_arguments_too_few_or_too_many(change: Any) -> None:
    with pytest.raises(Exception, match="MISCALL"):
        read(change(takes_of(HEAD).pack(values())))


def test_head_that_is_no_list_of_arguments_is_refused() -> None:
    with pytest.raises(ValueError, match="not a list of arguments"):
        takes_of("-- takes: name !")


def test_parts_that_read_arguments_stand_behind_them() -> None:
    scripts = files("orchestrator.broker").joinpath("lua")
    names = [name for name, _ in composed("commit", lambda name: scripts.joinpath(f"{name}.lua").read_text())]
    assert names.index("") < names.index("_commit_refusals") < names.index("commit")
