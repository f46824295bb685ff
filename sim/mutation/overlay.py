"""A process that runs with a change, while every file stays as it is.

An import hook hands out the changed source of one module, or has one script read with the change. `written`
makes a folder with a `sitecustomize` in it: with that folder first in PYTHONPATH a process, and every
Python process that it starts, runs with the change from its first import on. Knows nothing of what is run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_SCRIPTS = "orchestrator.broker.scripts"
_START = """from sim.mutation.overlay import planted_from
planted_from({folder!r})
"""


class _Changed(SourceFileLoader):
    """Reads a module's other source in the place of its file's."""

    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType | None:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _WithScript(SourceFileLoader):
    """Loads the module that reads scripts, and has it read one of them otherwise."""

    def __init__(self, name: str, path: str, script: str, source: str) -> None:
        super().__init__(name, path)
        self._script, self._source = script, source

    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        read_otherwise(module, self._script, self._source)


def read_otherwise(module: Any, script: str, source: str) -> None:
    """Has `module` (the one that reads scripts) read one of them as `source`."""
    read = module._read
    module._read = lambda name: source if name == script else read(name)
    module.load.cache_clear()


class _Finder(MetaPathFinder):
    def __init__(self, module: str, script: str, source: str) -> None:
        self._module, self._script, self._source = module, script, source
        self._wanted = module or _SCRIPTS

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self._wanted:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        assert spec is not None, fullname
        assert spec.origin is not None, fullname
        if self._module:
            spec.loader = _Changed(fullname, spec.origin, self._source)
        else:
            spec.loader = _WithScript(fullname, spec.origin, self._script, self._source)
        return spec


def plant(module: str, script: str, source: str) -> None:
    """Changes what this process is going to import: one module, or one script."""
    known = sys.modules.get(module or _SCRIPTS)
    if module:
        assert known is None, f"{module} is imported already"
    elif known is not None:
        read_otherwise(known, script, source)
        return
    sys.meta_path.insert(0, _Finder(module, script, source))


def planted_from(folder: str) -> None:
    """Plants what `written` left in a folder."""
    told = json.loads(Path(folder, "change.json").read_text(encoding="utf-8"))
    plant(told["module"], told["script"], told["source"])


def written(folder: Path, module: str, script: str, source: str) -> None:
    """Prepares a folder to be put into PYTHONPATH."""
    told = {"module": module, "script": script, "source": source}
    (folder / "change.json").write_text(json.dumps(told), encoding="utf-8")
    (folder / "sitecustomize.py").write_text(_START.format(folder=str(folder)), encoding="utf-8")
