"""A docstring begins with the code's noun or verb, and stands right behind what it is about."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("orchestrator", "workers", "sim", "bench", "tests")
VAGUE = frozenset({"who", "whoever", "whom", "whose", "what", "whatever", "one"})


def bodies(tree: ast.Module) -> Iterator[tuple[ast.AST, list[ast.stmt]]]:
    """Each node of a module that has statements, from itself on, with them; expressions have none."""
    waiting: list[ast.AST] = [tree]
    for node in waiting:
        for inner in ("body", "orelse", "finalbody", "handlers", "cases"):
            waiting += getattr(node, inner, ())
        if body := getattr(node, "body", None):
            yield node, body


def docstrings(inside: Iterable[tuple[ast.AST, list[ast.stmt]]]) -> Iterator[tuple[int, str]]:
    """The docstrings of a module, with their lines: of itself, classes, functions and attributes."""
    for node, body in inside:
        for before, statement in zip([None, *body], body, strict=False):
            own = before is None and isinstance(
                node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            )
            match statement:
                case ast.Expr(value=ast.Constant(value=str(text))) if text.strip():
                    if own or isinstance(before, (ast.Assign, ast.AnnAssign)):
                        yield statement.lineno, text


@cache
def found_in(folder: str) -> tuple[list[str], list[str]]:
    """The places of a folder where a docstring begins vaguely, and where one stands behind another."""
    vague, strays = [], []
    for path in sorted((ROOT / folder).rglob("*.py")):
        inside, name = list(bodies(ast.parse(path.read_text(encoding="utf-8")))), path.relative_to(ROOT)
        vague += [
            f"{name}:{line}: {text.splitlines()[0]}"
            for line, text in docstrings(inside)
            if text.split()[0].strip(".,:;").lower() in VAGUE
        ]
        strays += [
            f"{name}:{second.lineno}"
            for _, body in inside
            for first, second in pairwise(body)
            if _is_text(first) and _is_text(second)
        ]
    return vague, strays


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_begins_with_a_pronoun_for_anybody_or_anything(folder: str) -> None:
    vague, _ = found_in(folder)
    assert vague == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_docstring_stands_behind_another_one(folder: str) -> None:
    """A name that was put between a constant and its docstring has taken that one."""
    _, strays = found_in(folder)
    assert strays == []


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(getattr(statement.value, "value", None), str)
