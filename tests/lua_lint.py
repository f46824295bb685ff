"""Lints the Lua scripts as Redis gets them: each with the parts that it uses in front.

Each reply that a script returns is held against its head (`-- gives:`): its code, how many values stand
behind it, and in which order, as far as an expression says by its names which field it is.

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

from orchestrator.broker.reply_shapes import Field, Gives
from orchestrator.broker.scripts import composed, gives_of_script

ROOT = Path(__file__).parent.parent
SCRIPTS = ROOT / "orchestrator" / "broker" / "lua"
STORE = ROOT / "sim" / "store.lua"
LUACHECK = ("luacheck", "--config", str(ROOT / ".luacheckrc"), "--formatter", "plain", "--codes", "-")
_WARNING = re.compile(r"^stdin:(\d+):(\d+): \((\w)(\d+)\) (.*)$")
_UNUSED = "211"
_RETURNED = re.compile(r"\breturn \{")
_SPLIT = re.compile(r"'[^']*'|[(){}\[\],]")
_CODES = re.compile(r"'([A-Z][A-Z_]*)'")
_CONSTANT = re.compile(r"'[^']*'|-?\d+|\{\}")
_FEW = 3
"""Of so few fields an expression need not name its own: it may name no other."""


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


# ── replies ───────────────────────────────────────────────────────────────────────────────────


def replies_of(script: Path) -> Iterator[tuple[Path, int, str, str]]:
    """Each reply that is not as the head says: its file and line, no code, and what is wrong."""
    if not script.read_text(encoding="utf-8").startswith("-- uses:"):
        return
    gives = gives_of_script(
        script.stem, lambda name: script.with_name(f"{name}.lua").read_text(encoding="utf-8")
    )
    for part, text in pieces_of(script):
        if "" in gives.shapes and part != script:
            # It has no code, and parts refuse with one.
            continue
        for line, values in returned(text):
            if fault := reply_fault(gives, values):
                yield part or script, line, "reply", f"{script.stem}: {fault}"


def returned(text: str) -> Iterator[tuple[int, list[str]]]:
    """Each table that is returned, by its line: the expressions in it."""
    for found in _RETURNED.finditer(text):
        values, depth, begin, at = [], 0, found.end(), found.end()
        for token in _SPLIT.finditer(text, found.end()):
            at = token.start()
            if token[0] in "({[":
                depth += 1
            elif token[0] in ")}]":
                depth -= 1
            if depth < 0 or (token[0] == "," and depth == 0):
                values.append(" ".join(text[begin:at].split()))
                begin = token.end()
            if depth < 0:
                break
        yield text.count("\n", 0, found.start()) + 1, [value for value in values if value]


def reply_fault(gives: Gives, values: list[str]) -> str:
    """The fault of a returned table; empty if it has none, or is no reply."""
    if "" in gives.shapes:
        return _values_fault("", gives.shapes[""].fields, values)
    codes = _CODES.findall(values[0]) if values else []
    if not codes and not values[0].startswith("string.upper("):
        return ""
    if unknown := [code for code in codes if code not in gives.shapes]:
        return f"the head does not give {unknown[0]}"
    # A code that is made from a state is one of those that bear nothing but the time.
    shapes = {gives.shapes[code].fields for code in codes or ("GONE",)}
    faults = (_values_fault(codes[0] if codes else "GONE", fields, values[1:]) for fields in shapes)
    return next(filter(None, faults), "")


def _values_fault(code: str, fields: tuple[Field, ...], values: list[str]) -> str:
    least = sum(not one.optional for one in fields)
    if not least <= len(values) <= len(fields):
        return f"{code} has {len(values)} values where the head has {len(fields)}"
    for field, value in zip(fields, values, strict=False):
        if not (names := _names_in(value)):
            if _CONSTANT.fullmatch(value) and not _fits(value, field):
                return f"{code} has {value} for {field.name}"
            continue
        if _said(field.name, names):
            continue
        others = [one.name for one in fields if _said(one.name, names)]
        if others or len(fields) > _FEW:
            return f"{code} has {value} where the head has {field.name}"
    return ""


def _names_in(value: str) -> set[str]:
    bare = re.sub(r"'[^']*'", "", value)
    names = set(re.findall(r"[a-z_]\w*", bare)) - {"and", "or", "not", "nil", "true", "false"}
    return names | {word for name in names for word in name.split("_")}


def _said(field: str, names: set[str]) -> bool:
    return all(word in names for word in field.split("_"))


def _fits(value: str, field: Field) -> bool:
    """Whether a constant is of the field's type."""
    if value == "{}":
        return bool(field.columns) or field.tag == "*"
    return field.tag in ("", "!", "?", "%") if value.startswith("'") else field.tag in ("#", "~", "?", "%")


def lint(scripts: list[Path]) -> list[str]:
    """Warnings on any of the scripts, as `file:line: text`."""
    uses = Counter(part for script in scripts for part, _ in pieces_of(script))
    told: Counter[tuple[Path, int, str, str]] = Counter()
    for script in scripts:
        told.update(set(warnings_of(script)))
        told.update(set(replies_of(script)))
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
