"""Variables that a model gives to a command: their bounds, and which ones are known to be harmless.

Knows names and values only. A variable can make any program run other code (`LD_PRELOAD`,
`BASH_ENV`, `GIT_EXTERNAL_DIFF`, `RIPGREP_CONFIG_PATH`, `HOME`), and new ones are invented all the time. So
the harmless ones are listed, and everything else counts as a reason to ask.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from orchestrator.tools.arguments import BadArguments

MOST_VARIABLES: Final = 64
MOST_BYTES: Final = 32 * 1024
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")

_HARMLESS: Final = re.compile(
    r"CI|CLICOLOR|CLICOLOR_FORCE|COLUMNS|FORCE_COLOR|LANG|LANGUAGE|LC_[A-Z]+|LINES|NO_COLOR|TERM|TZ"
)
_LOADING: Final = re.compile(
    r"(LD|DYLD)_.*|GCONV_PATH|GLIBC_TUNABLES|BASH_ENV|BASH_LOADABLES_PATH|BASHOPTS|SHELLOPTS|ENV|IFS|PS4"
    r"|PROMPT_COMMAND|ZDOTDIR",
    re.IGNORECASE,
)
"""Variables of the loader and of shells: with them any program, and any script, runs other code first."""
# No slash: a locale, a terminal or a time zone named by a path is a file that somebody has written.
_HARMLESS_VALUE: Final = re.compile(r"[A-Za-z0-9_.@+-]{0,64}")


def check_variables(env: Mapping[str, str]) -> None:
    """Raises `BadArguments` for variables that no command can be given or no person could look through."""
    if len(env) > MOST_VARIABLES:
        raise BadArguments(f"env: {len(env)} variables are given, at most {MOST_VARIABLES} are taken")
    for name, value in env.items():
        if _NAME.fullmatch(name) is None:
            raise BadArguments(f"env: {name[:40]!r} is not the name of a variable (letters, digits, _)")
        if _LOADING.fullmatch(name):
            raise BadArguments(
                f"env: {name} is not taken: it makes the loader or a shell run other code; leave it out"
            )
        if "\0" in value or not _encodable(value):
            raise BadArguments(f"env: the value of {name} holds a character that no program can be given")
    size = sum(len(name) + len(value.encode()) for name, value in env.items())
    if size > MOST_BYTES:
        raise BadArguments(f"env: {size} bytes are given, at most {MOST_BYTES} are taken")


def _encodable(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def are_known_safe(env: Mapping[str, str]) -> bool:
    """Whether none of the variables can change what a command that only reads does."""
    return all(_HARMLESS.fullmatch(n) and _HARMLESS_VALUE.fullmatch(v) for n, v in env.items())
