"""The linter of the scripts sees them as Redis gets them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests import lua_lint

needs_luacheck = pytest.mark.skipif(
    shutil.which("luacheck") is None and not os.environ.get("CI"), reason="there is no luacheck"
)


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lua_lint, "ROOT", tmp_path)
    (tmp_path / "_base.lua").write_text(
        "local function used() return 1 end\n"
        "local function spare() return 2 end\n"
        "local function all_taken() end\n"
    )
    return tmp_path


@needs_luacheck
def test_linter_tells_a_global_at_its_line_of_its_own_file(scripts: Path) -> None:
    script = scripts / "one.lua"
    script.write_text("-- uses: base\nlocal one = used() + spare()\nreturn {one, other}\n")
    assert lua_lint.lint([script]) == ["one.lua:3: accessing undefined variable 'other' (113)"]


@needs_luacheck
def test_linter_tells_a_function_that_no_script_uses(scripts: Path) -> None:
    both = scripts / "one.lua", scripts / "two.lua"
    for script in both:
        script.write_text("-- uses: base\nreturn used()\n")
    assert lua_lint.lint(list(both)) == ["_base.lua:2: unused function 'spare' (211)"]
    both[1].write_text("-- uses: base\nreturn used() + spare()\n")
    assert lua_lint.lint(list(both)) == []
