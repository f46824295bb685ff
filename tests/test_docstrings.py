"""A docstring begins with the code's noun or verb, and stands right behind what it is about."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("orchestrator", "workers", "sim", "bench", "tests")
VAGUE = frozenset({"who", "whoever", "whom", "whose", "what", "whatever", "one"})


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """The docstrings of a module, with their lines: of itself, classes, functions and attributes."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for before, statement in zip([None, *body], body, strict=False) if isinstance(body, list) else ():
            own = before is None and isinstance(
                node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            )
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))) if text.strip():
                    if own or isinstance(before, (ast.Assign, ast.AnnAssign)):
                        yield statement.lineno, text


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_with_a_pronoun_for_anybody_or_anything(folder: str) -> None:
    vague = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for line, text in docstrings(ast.parse(path.read_text(encoding="utf-8")))
        if text.split()[0].strip(".,:;").lower() in VAGUE
    ]
    assert vague == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_stands_behind_another_one(folder: str) -> None:
    """A name that was put between a constant and its docstring has taken that one."""
    strays = [
        f"{path.relative_to(ROOT)}:{second.lineno}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(body := getattr(node, "body", None), list)
        for first, second in pairwise(body)
        if _is_text(first) and _is_text(second)
    ]
    assert strays == []


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)
