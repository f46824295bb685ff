"""How a defect is planted: into the text of a script, or in the place of a function.

A defect that no longer fits the product's text fails loudly: it must be planted anew, not passed over.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from inspect import getsource
from textwrap import dedent
from types import ModuleType
from typing import Any

from orchestrator.broker import scripts as scripts_module
from sim import network


@dataclass(frozen=True, slots=True)
class Mutant:
    """A defect: its name, what is wrong, and how it is planted."""

    name: str
    wrong: str
    plant: Callable[[], None]
    workload: str = ""
    """The one whose seeds are run, where others would never meet the defect."""
    test: str = ""
    """The test that finds it, where no seed is known to."""


def lua(part: str, old: str, new: str) -> Callable[[], None]:
    """Changes the text of a script or of a part of scripts."""

    def plant() -> None:
        read = scripts_module._read

        def changed(name: str) -> str:
            text = read(name)
            if name != part:
                return text
            assert text.count(old) == 1, (
                f"{part}.lua has {text.count(old)} times {old!r}: plant the defect anew"
            )
            return text.replace(old, new)

        scripts_module._read = changed
        scripts_module.load.cache_clear()
        network._SCRIPTS.clear()
        changed(part)

    return plant


def swapped(owner: Any, name: str, make: Callable[[Any], Any]) -> Callable[[], None]:
    """Replaces a function by what `make` makes of it."""

    def plant() -> None:
        if isinstance(owner, ModuleType):
            text = getsource(owner)
            called = text.count(f"{name}(") > text.count(f"def {name}(")
            assert called, f"nothing in {owner.__name__} calls {name}: plant the defect anew"
        setattr(owner, name, make(getattr(owner, name)))

    return plant


def both(*plants: Callable[[], None]) -> Callable[[], None]:
    """Plants one defect in several places."""

    def plant() -> None:
        for each in plants:
            each()

    return plant


def text(owner: Any, name: str, old: str, new: str) -> Callable[[], None]:
    """Changes the text of a Python function or method, wherever it is known under its name."""

    def plant() -> None:
        real = getattr(owner, name)
        source = dedent(getsource(real))
        assert source.count(old) == 1, f"{name} has {source.count(old)} times {old!r}: plant the defect anew"
        module = sys.modules[real.__module__]
        found: dict[str, Any] = {}
        changed = f"from __future__ import annotations\n{source.replace(old, new)}"
        exec(compile(changed, name, "exec"), module.__dict__, found)
        made = found[name]
        setattr(owner, name, made)
        product = ("orchestrator.", "workers.")
        for known in [vars(other) for name, other in sys.modules.items() if name.startswith(product)]:
            for table in (known, *(value for value in known.values() if type(value) is dict)):
                table.update({key: made for key, value in table.items() if value is real})

    return plant
