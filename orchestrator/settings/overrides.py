"""Overrides as Codex's own clients write them, in the words of our settings.

Clients of several doors hand them in: a command line has `key=value` texts, a request has a JSON object. Both
become the texts of `-c`, so that they are checked, and refused, where all others are. Knows names of keys and
what their values mean; must not read anything.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from orchestrator.settings.layers import KeyPath, SettingsError, leaves, parse_override, parse_value

MOST_OVERRIDES = 256
OPENAI = ("model_providers", "openai")
RENAMED: Mapping[KeyPath, KeyPath] = {("openai_base_url",): (*OPENAI, "base_url")}
"""Keys with another name here."""
WEB_SEARCH: KeyPath = ("web_search",)
WEB_SEARCH_MODES: Mapping[object, bool] = {
    "live": True,
    "cached": True,
    "disabled": False,
    True: True,
    False: False,
}


def translated(overrides: Iterable[str]) -> tuple[str, ...]:
    """The overrides of a command line under our keys; what is ours already stays byte for byte.

    Raises `SettingsError` for a text that is no override, and for a mode of search that nobody knows.
    """
    return tuple(_translated(override) for override in overrides)


def _translated(override: str) -> str:
    path, text = parse_override(override)
    if path in RENAMED:
        return f"{written_key(RENAMED[path])}={text}"
    if path == WEB_SEARCH:
        return f"tools.web_search={_searches(parse_value(text))}"
    return override


def _searches(mode: object) -> str:
    if not isinstance(mode, str | bool) or mode not in WEB_SEARCH_MODES:
        raise SettingsError("-c", "web_search", repr(mode), "live, cached or disabled")
    return "true" if WEB_SEARCH_MODES[mode] else "false"


def of_object(config: Mapping[str, Any]) -> tuple[str, ...]:
    """The overrides of a request's `config`, whose keys may be dotted, nested, or both; nulls set nothing.

    Raises `SettingsError` for more of them than a person would write.
    """
    texts = tuple(_texts(config))
    if len(texts) > MOST_OVERRIDES:
        raise SettingsError("config", "", f"{len(texts):,} keys", f"at most {MOST_OVERRIDES}")
    return translated(texts)


def _texts(config: Mapping[str, Any]) -> Iterator[str]:
    for path, value in leaves(config):
        if value is not None and path:
            # A dotted key names a table, as in the file; the keys inside a table are names as they are.
            head, rest = parse_override(f"{path[0]}=")
            if rest:
                raise SettingsError("config", "", repr(path[0]), "a key, dotted as in the file")
            yield f"{written_key((*head, *path[1:]))}={_toml(value)}"


def written_key(path: KeyPath) -> str:
    """A key as a file has it: parts that are no bare words are quoted."""
    # An override ends its key at the first `=`, a quoted one too.
    quoted = (part if _is_bare(part) else _string(part).replace("=", "\\u003d") for part in path)
    return ".".join(quoted)


def _is_bare(part: str) -> bool:
    return bool(part) and part.isascii() and part.replace("-", "").replace("_", "").isalnum()


def _toml(value: object) -> str:
    """A JSON value as TOML; a table inside an array is an inline one."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _string(value)
        case Mapping():
            members = (f"{written_key((str(name),))} = {_toml(one)}" for name, one in value.items())
            return "{" + ", ".join(members) + "}"
        case list() | tuple():
            return "[" + ", ".join(_toml(one) for one in value if one is not None) + "]"
        case _:
            return json.dumps(value)


def _string(text: str) -> str:
    """A basic string: JSON's escapes are TOML's, but for those of characters outside of the basic plane."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
