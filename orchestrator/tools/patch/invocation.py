"""Whether a command is a call of apply_patch, and which text it carries.

Recognised are `["apply_patch", body]` and a shell script that is nothing but
`apply_patch <<EOF … EOF`, with or without `cd DIR &&` before it. The script is read by a
real bash parser, in a process of its own (`script_reader`): anything beside that one statement
(a second command, a redirect, an option of cd) leaves it an ordinary command, which the sandbox
runs and confines. So does a script that cannot be read.

It must not read the patch further than to tell a bare patch from a command.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final, TypeAlias

from orchestrator.core.frozen import record
from orchestrator.tools.commands.bash_words import PATCH_NAMES
from orchestrator.tools.commands.script_reader import PATCH, ask
from orchestrator.tools.patch.grammar import PatchSyntaxError, parse_patch

IMPLICIT_CALL = 'patch detected without explicit call to apply_patch. Rerun as ["apply_patch", "<patch>"]'
MAX_PATCH_BYTES: Final = 4 << 20
"""Of a script that is a patch: nothing runs it, so it may be longer than any argument."""
_SHELLS = frozenset({"bash", "sh", "zsh"})


@record
class PatchInvocation:
    """A call of apply_patch: the patch's text, and the folder that `cd` names, if any."""

    body: str
    workdir: str | None = None


@record
class NotAPatch:
    """An ordinary command."""


@record
class PatchRefusal:
    """A patch given as a command of its own; the message tells the model what to do."""

    message: str


InvocationVerdict: TypeAlias = PatchInvocation | NotAPatch | PatchRefusal


def patch_from_argv(argv: Sequence[str]) -> InvocationVerdict:
    """Judges one command line; a call's body may still be no valid patch."""
    match list(argv):
        case [body]:
            return _bare(body)
        case [name, body] if name in PATCH_NAMES:
            return PatchInvocation(body)
        case [shell, "-lc" | "-c", script] if PurePosixPath(shell).name in _SHELLS:
            bare = _bare(script)
            return bare if isinstance(bare, PatchRefusal) else _from_script(script)
        case _:
            return NotAPatch()


def _bare(text: str) -> NotAPatch | PatchRefusal:
    try:
        parse_patch(text)
    except PatchSyntaxError:
        return NotAPatch()
    return PatchRefusal(IMPLICIT_CALL)


def _from_script(script: str) -> PatchInvocation | NotAPatch:
    if not any(name in script for name in PATCH_NAMES):
        return NotAPatch()
    # Surrogates come from JSON that a model wrote badly; such a script is no patch.
    source = script.encode("utf-8", "surrogatepass")
    if len(source) > MAX_PATCH_BYTES:
        return NotAPatch()
    try:
        found = ask(PATCH, source)
    except OSError:
        return NotAPatch()
    return NotAPatch() if found is None else PatchInvocation(*found)
