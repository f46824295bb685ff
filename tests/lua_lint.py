"""Lints the Lua scripts as Redis gets them: each with the parts that it uses in front.

A warning is told at its line of the file that it stands in. A part has functions that not every script
needs: one is unused only if no script uses it. Exits with 1 if there is a warning, and without luacheck
where CI is set; elsewhere a missing luacheck is said and passed over.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from orchestrator.broker.scripts import composed

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "orchestrator" / "broker" / "lua"
STORE = ROOT / "sim" / "store.lua"
LUACHECK = ("luacheck", "--config", str(ROOT / ".luacheckrc"), "--formatter", "plain", "--codes", "-")
_WARNING = re.compile(r"^stdin:(\d+):(\d+): \((\w)(\d+)\) (.*)$")
_UNUSED = "211"


def pieces_of(script: Path) -> list[tuple[Path | None, str]]:
    """The files that Redis gets as one, and what is generated between them, in their order."""
    if not script.read_text(encoding="utf-8").startswith("-- uses:"):
        return [(script, script.read_text(encoding="utf-8"))]

    def read(name: str) -> str:
        return script.with_name(f"{name}.lua").read_text(encoding="utf-8")

    pieces = composed(script.stem, read)
    return [(script.with_name(f"{name}.lua") if name else None, text) for name, text in pieces]


def warnings_of(script: Path) -> Iterator[tuple[Path, int, str, str]]:
    """Each warning's file, line, code and text."""
    lines = [
        (part, number + 1, line)
        for part, text in pieces_of(script)
        for number, line in enumerate(text.split("\n"))
    ]
    source = "\n".join(line for _, _, line in lines)
    done = subprocess.run(LUACHECK, input=source, capture_output=True, text=True, check=False)
    if done.returncode > 2:
        raise RuntimeError(done.stdout + done.stderr)
    for line in done.stdout.splitlines():
        if found := _WARNING.match(line):
            part, number, _ = lines[int(found[1]) - 1]
            # Generated code is reported at the head that it comes from, and may have long lines.
            if part is not None or not found[4].startswith("6"):
                yield part or script, number if part else 1, found[4], found[5]


def lint(scripts: list[Path]) -> list[str]:
    """Warnings on any of the scripts, as `file:line: text`."""
    uses = Counter(part for script in scripts for part, _ in pieces_of(script))
    told: Counter[tuple[Path, int, str, str]] = Counter()
    for script in scripts:
        told.update(set(warnings_of(script)))
    return sorted(
        f"{part.relative_to(ROOT)}:{line}: {text} ({code})"
        for (part, line, code, text), times in told.items()
        if code != _UNUSED or times == uses[part]
    )


def main() -> int:
    if shutil.which("luacheck") is None:
        print("the Lua scripts are not linted: there is no luacheck (Debian: lua-check)", file=sys.stderr)
        return 1 if os.environ.get("CI") else 0
    scripts = [*sorted(path for path in SCRIPTS.glob("*.lua") if not path.name.startswith("_")), STORE]
    wrong = lint(scripts)
    print("\n".join(wrong) or f"{len(scripts)} Lua scripts: nothing to say")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
