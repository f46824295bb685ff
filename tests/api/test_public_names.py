"""The public names: each is there, told of on its page, and costs nobody who does not use it."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator

REPOSITORY = Path(__file__).parent.parent.parent
PAGE = (REPOSITORY / "docs" / "api.md").read_text(encoding="utf-8")
SIGNED = re.findall(r"`(\w+)\(([\w, ]*)\)`", PAGE)


@pytest.mark.parametrize("name", orchestrator.__all__)
def test_every_public_name_is_there_and_on_the_page(name: str) -> None:
    assert getattr(orchestrator, name) is not None
    assert re.search(rf"`{name}\b", PAGE), f"docs/api.md does not tell of {name}"


@pytest.mark.parametrize(("name", "parameters"), [(n, p) for n, p in SIGNED if n in orchestrator.__all__])
def test_signature_on_the_page_is_the_true_one(name: str, parameters: str) -> None:
    true = [each for each in inspect.signature(getattr(orchestrator, name)).parameters if each[0] != "_"]
    assert parameters.split(", ") == true


def test_every_public_function_has_its_signature_on_the_page() -> None:
    functions = {name for name in orchestrator.__all__ if inspect.isfunction(getattr(orchestrator, name))}
    assert functions - {name for name, _ in SIGNED} == set()


def test_type_checkers_and_programs_find_the_same_names() -> None:
    tree = ast.parse(Path(orchestrator.__file__).read_text(encoding="utf-8"))
    checked = {
        (str(node.module).removeprefix("orchestrator."), alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in ast.walk(block)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    loaded = {(module, name) for module, names in orchestrator._MODULES.items() for name in names}
    assert loaded == checked
    assert {name for _, name in loaded} == set(orchestrator.__all__)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nobody"):
        orchestrator.nobody  # noqa: B018


def test_importing_the_package_loads_nothing_of_it() -> None:
    script = "import sys, orchestrator; print(sorted(m for m in sys.modules if m.startswith('orchestrator')))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['orchestrator']"
