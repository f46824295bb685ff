"""Marks in code: they tell which context came to which line, and the code does what it did."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any
from unittest.mock import patch

from sim.mutation.maps import Share
from sim.mutation.marks import Marks

SOURCE = '''"""A module."""

from __future__ import annotations

SIZE = 2


def sized(number: int) -> str:
    """Says how large it is."""
    if number > SIZE:
        return "large"
    try:
        found = 1 // number
    except ZeroDivisionError:
        return "none"
    match found:
        case 1:
            return "one"
    for _ in range(1):
        found += 1
    return "small"
'''


def _run(marks: Marks) -> Any:
    names: dict[str, Any] = {}
    exec(compile(marks.marked(SOURCE, "orchestrator/sizes.py"), "sizes.py", "exec", dont_inherit=True), names)
    return names["sized"]


def test_marks_tell_each_line_that_a_context_came_to(tmp_path: Path) -> None:
    marks = Marks(tmp_path / "share.json")
    with patch.object(builtins, "__marks__", marks._row, create=True):
        sized = _run(marks)
        told = {}
        for number in (9, 0, 1, 2):
            marks.context(f"of:{number}")
            told[number] = sized(number)
            marks.pause()
        sized(9)
    assert told == {9: "large", 0: "none", 1: "one", 2: "small"}
    marks.save()
    lines = Share(tmp_path / "share.json").lines("orchestrator/sizes.py")
    assert lines == {
        10: ["of:9", "of:0", "of:1", "of:2"],
        11: ["of:9"],
        12: ["of:0", "of:1", "of:2"],
        13: ["of:0", "of:1", "of:2"],
        15: ["of:0"],
        16: ["of:1", "of:2"],
        18: ["of:1"],
        19: ["of:2"],
        20: ["of:2"],
        21: ["of:2"],
    }


def test_marked_function_keeps_its_text_and_lines() -> None:
    sized = _run(Marks(Path("unused")))
    assert sized.__doc__ == "Says how large it is."
    assert sized.__code__.co_firstlineno == 8
