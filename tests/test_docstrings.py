"""A docstring begins with the code's noun or verb."""

from __future__ import annotations

import ast
from collections.abc import Iterator
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
