"""Which changes the operators make of a text, and which they leave alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from sim.mutation import lua_operators, python_operators
from sim.mutation.change import ROOT, Change
from sim.mutation.maps import parts_of
from sim.mutation.sampling import all_changes, compiles, sample, scopes

MODULE = '''"""About a module."""

from __future__ import annotations

import logging

__all__ = ["due"]

log = logging.getLogger(__name__)
MOST = 3


def due(at: int, now: int = 0, *, late: bool = False) -> list[int]:
    """About a function."""
    log.warning("looked at %s", at + 1)
    assert at != 7, "never"
    if at > now and not late:
        return [at]
    left = at - 1
    right = left
    note(left)
    note(right)
    return [left] if late else []
'''

SCRIPT = """-- uses: base
-- a comment with 1 == 2
local now, most = take_number(), take_number()
local known = redis.call('GET', KEYS[1])
if known and num(known) >= most then return {'FULL', known} end
redis.call('SET', KEYS[1], text(now))
redis.call('ZADD', KEYS[2], 'NX', text(now + 1),
  'word == 3')
redis.call('HSET', KEYS[3], 'a', 'b')
redis.call('HDEL', KEYS[3], 'c')
return {'OK', now}
"""


MANY = '''"""About a module."""

KINDS = frozenset(("text", "image", "call"))


def told(root: str, agent: str, count: int, items: list[Item], *, late: bool) -> Row:
    """About a function."""
    for item in items:
        try:
            match item:
                case Text() | Image():
                    note(root, item)
                case Call() if late:
                    note(agent, item)
                case _:
                    assert_never(item)
        except (KeyError, OSError, ValueError):
            continue
    if isinstance(items, list | tuple):
        return Row({"root": root, "agent": agent}, [one for one in items if one.kind in ("a", "b")])
    return Row({}, [])
'''


def _forgotten() -> list[Change]:
    return python_operators.changes("orchestrator/core/many.py", MANY, "forgotten")


def _python() -> list[Change]:
    return python_operators.changes("orchestrator/core/due.py", MODULE)


def _lua() -> list[Change]:
    return lua_operators.changes("orchestrator/broker/lua/due.lua", SCRIPT)


def _told(changes: list[Change], operator: str) -> set[tuple[str, str]]:
    return {(change.before, change.after) for change in changes if change.operator == operator}


def _made(change: Change, text: str) -> str:
    return text[: change.start] + change.new + text[change.end :]


def test_comparison_of_a_module_is_turned_both_ways() -> None:
    head = "if at > now and not late:"
    turned = {(head, "if at >= now and not late:"), (head, "if at <= now and not late:")}
    assert _told(_python(), "comparison turned") == turned


def test_condition_of_a_module_is_negated_dropped_and_robbed_of_its_parts() -> None:
    told = {after for operator in ("condition negated", "condition dropped", "operand dropped")
            for before, after in _told(_python(), operator) if before.startswith("if")}  # fmt: skip
    assert told == {
        "if not (at > now and not late):",
        "if True:",
        "if at > now and (late):",
        "if not late:",
        "if at > now:",
    }


def test_statement_of_a_function_is_dropped_and_docstrings_asserts_and_logs_are_not() -> None:
    dropped = {before for before, _ in _told(_python(), "statement dropped")}
    assert dropped == {
        "return [at]",
        "left = at - 1",
        "right = left",
        "note(left)",
        "note(right)",
        "return [left] if late else []",
    }


def test_neighbours_are_swapped_unless_nothing_could_tell() -> None:
    swapped = {before for before, _ in _told(_python(), "neighbours swapped")}
    assert swapped == {"left = at - 1 right = left", "note(left) note(right)"}


def test_constants_are_moved_by_one_in_modules_and_defaults_and_annotations_are_left_alone() -> None:
    moved = {change.new for change in _python() if change.operator == "constant ± 1"}
    assert moved == {"4", "2", "1", "-1", "0"}
    assert all("list[" not in change.new for change in _python())


def test_change_leaves_every_other_byte_of_the_file_as_it_was() -> None:
    for change in _python():
        made = _made(change, MODULE)
        assert made.startswith(MODULE[: change.start])
        assert made.endswith(MODULE[change.end :])
        assert made != MODULE


def test_texts_and_comments_of_a_script_are_left_alone() -> None:
    for change in _lua():
        made = _made(change, SCRIPT)
        assert "-- a comment with 1 == 2" in made
        assert change.operator == "statement dropped" or "'word == 3'" in made


def test_condition_of_a_script_is_turned_dropped_and_robbed_of_its_parts() -> None:
    after = {change.after.partition(" then")[0] for change in _lua() if change.line == 5}
    assert {
        "if known and num(known) > most",
        "if known or num(known) >= most",
        "if not (known and num(known) >= most)",
        "if true",
        "if false",
        "if known",
        "if num(known) >= most",
    } <= after


def test_statement_of_a_script_is_dropped_whole_with_the_lines_that_continue_it() -> None:
    dropped = {before for before, _ in _told(_lua(), "statement dropped")}
    assert "redis.call('ZADD', KEYS[2], 'NX', text(now + 1), 'word == 3')" in dropped


def test_writes_of_a_script_to_one_key_are_swapped_and_those_to_two_are_not() -> None:
    swapped = [before for before, _ in _told(_lua(), "neighbours swapped") if "redis.call" in before]
    assert [before for before in swapped if before.count("redis.call") == 2] == [
        "redis.call('HSET', KEYS[3], 'a', 'b') redis.call('HDEL', KEYS[3], 'c')"
    ]


def _left(operator: str) -> set[str]:
    """The lines that differ, as they are with each change of an operator."""
    lines = set(MANY.splitlines())
    made = [_made(change, MANY) for change in _forgotten() if change.operator == operator]
    return {line.strip() for text in made for line in text.splitlines() if line not in lines}


def test_branch_of_a_condition_or_a_case_is_forgotten_and_one_that_is_never_met_is_not() -> None:
    assert _left("branch forgotten") == {
        "if False:",
        "case Text() | Image() if False:",
        "case Call() if False:",
    }


def test_each_member_of_a_table_a_pattern_a_handler_and_a_check_is_forgotten_once() -> None:
    some = _left("member forgotten")
    assert {line for line in some if line.startswith("KINDS")} == {
        'KINDS = frozenset(("image", "call"))',
        'KINDS = frozenset(("text", "call"))',
        'KINDS = frozenset(("text", "image"))',
    }
    assert {line for line in some if line.startswith("case")} == {"case Text():", "case Image():"}
    assert {line for line in some if line.startswith("except")} == {
        "except (OSError, ValueError):",
        "except (KeyError, ValueError):",
        "except (KeyError, OSError):",
    }
    assert {line for line in some if line.startswith("if")} == {
        "if isinstance(items, list):",
        "if isinstance(items, tuple):",
    }
    whole = 'return Row({"root": root, "agent": agent}, [one for one in items if one.kind in ("a", "b")])'
    assert {line for line in some if line.startswith("return")} == {
        whole.replace('"root": root, ', ""),
        whole.replace(', "agent": agent', ""),
        whole.replace('("a", "b")', '("a",)'),
        whole.replace('("a", "b")', '("b",)'),
    }


def test_loop_and_comprehension_go_over_the_first_alone() -> None:
    row = 'return Row({"root": root, "agent": agent}, [one for one in list(items)[:1]'
    assert _left("only the first") == {
        "for item in list(items)[:1]:",
        f'{row} if one.kind in ("a", "b")])',
    }


def test_parameter_is_taken_for_another_of_its_type() -> None:
    assert {change.new for change in _forgotten() if change.operator == "another of its type"} == {
        "root",
        "agent",
    }
    assert {"note(agent, item)", "note(root, item)"} >= {
        line for line in _left("another of its type") if line.startswith("note")
    }


def test_named_argument_is_forgotten_where_the_product_has_a_default_for_it() -> None:
    text = "def due() -> None:\n    texts.store(tree, contents=some, unborn=True)\n    draw(unborn=True)\n"
    made = python_operators.changes("orchestrator/core/due.py", text, "forgotten")
    assert [change.after for change in made] == ["texts.store(tree, contents=some)"]


@pytest.mark.parametrize("group", ["turned", "forgotten"])
def test_every_change_of_the_product_has_a_name_of_its_own(group: python_operators.Group) -> None:
    for scope in scopes(group):
        changes = all_changes(scope, group)
        assert len(changes) > 500
        assert len({change.id for change in changes}) == len(changes)


def test_sample_of_what_is_forgotten_is_drawn_from_all_packages_and_compiles() -> None:
    chosen = sample(54, 5, group="forgotten")
    assert all(compiles(change) for change in chosen)
    assert {change.path.split("/")[1] for change in chosen} >= {"core", "runtime", "broker", "cli"}
    assert len({change.operator for change in chosen}) >= 4


def test_sample_is_the_same_again_and_holds_the_smaller_one_and_an_even_share_of_each_scope() -> None:
    small, large = sample(9, 5), sample(12, 5)
    assert [change.id for change in sample(9, 5)] == [change.id for change in small]
    assert {change.id for change in small} < {change.id for change in large}
    folders = [change.path.split("/")[1].replace("rollouts", "runtime") for change in small]
    assert folders == ["broker"] * 3 + ["core"] * 3 + ["runtime"] * 3
    assert {change.id for change in sample(9, 6)} != {change.id for change in small}


def test_change_keeps_its_name_when_lines_are_added_above_it() -> None:
    moved = python_operators.changes(
        "orchestrator/core/due.py", MODULE.replace("MOST = 3\n", "MOST = 3\n\n\n")
    )
    assert [change.id for change in moved] == [change.id for change in _python()]


def test_change_refuses_a_text_that_has_changed_under_it(tmp_path: Path) -> None:
    change = _python()[0]
    file = tmp_path / change.path
    file.parent.mkdir(parents=True)
    file.write_text(MODULE)
    assert change.text(tmp_path) == _made(change, MODULE)
    file.write_text("# another line\n" + MODULE)
    with pytest.raises(ValueError, match="has changed"):
        change.text(tmp_path)


def test_change_of_a_part_of_scripts_is_looked_for_where_its_scripts_run() -> None:
    scripts = list((ROOT / "orchestrator" / "broker" / "lua").glob("*.lua"))
    parts = {file.stem.removeprefix("_") for file in scripts if file.stem.startswith("_")}
    assert parts == {part for file in scripts for part in parts_of(file)}
