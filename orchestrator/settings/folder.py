"""Rules for the `dendro.toml` of a folder: everything once a person has trusted it, else what does no harm.

The file may come from a stranger's repository, or from an agent that worked in the folder. Untrusted, it
may set what each setting's own record permits by `folder`; keys that no record knows are refused too, so
that a new table cannot be forgotten here. Knows no particular setting.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from orchestrator.core.frozen import record
from orchestrator.settings.layers import KeyPath, Layers, leaves
from orchestrator.tables import Setting, Table, settings_of

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
SHOWN_KEY_CHARS = 60


@record
class _Rule:
    """A folder's rights on a key, and the key's value when nobody sets it."""

    spec: Setting
    default: object


@record
class FolderRules:
    """The rules of all keys, taken from the records. `usual` gives defaults that depend on the machine."""

    records: Sequence[type[Table]]
    usual: Mapping[KeyPath, Callable[[], object]]

    def refused(self, table: Mapping[str, object], person: Layers) -> list[KeyPath]:
        """Keys of a folder's table that it may not set over what the person has set."""
        rules = dict(self._rules())
        return [
            path
            for path, value in leaves(table)
            if path and not self._permits(rules.get(path), path, value, person)
        ]

    def _rules(self) -> Iterator[tuple[KeyPath, _Rule]]:
        for table in self.records:
            for name, spec in settings_of(table):
                yield tuple((spec.key or name).split(".")), _Rule(spec, table.model_fields[name].default)

    def _permits(self, rule: _Rule | None, path: KeyPath, value: object, person: Layers) -> bool:
        if rule is None or rule.spec.folder is None or rule.spec.folder == "trusted":
            return False
        if rule.spec.folder == "free":
            return True
        found = person.peek(path)
        if found is not None:
            return _is_stricter(rule.spec, value, found.value)
        return _is_stricter(rule.spec, value, self.usual.get(path, lambda: rule.default)())


def keys_below(table: Mapping[str, object], paths: Sequence[KeyPath]) -> Mapping[str, object]:
    """The values of a table at these paths, by their keys as TOML writes them."""
    wanted = set(paths)
    return {written(path): value for path, value in leaves(table) if path in wanted}


def written(path: KeyPath) -> str:
    """A key as TOML writes it, cut where it is long; a stranger's key may hold anything."""
    key = ".".join(part if _BARE_KEY.fullmatch(part) else json.dumps(part) for part in path)
    return key if len(key) <= SHOWN_KEY_CHARS else key[: SHOWN_KEY_CHARS - 1] + "…"


def _is_stricter(spec: Setting, value: object, counts: object) -> bool:
    """Whether a value permits no more than the one that counts without it."""
    match spec.folder:
        case tuple() as strict_first:
            return (
                value in strict_first
                and counts in strict_first
                and (strict_first.index(value) <= strict_first.index(counts))
            )
        case "down" | "up":
            return _bounds(value) and _no_further(spec, value, counts)
    return False


def _no_further(spec: Setting, value: object, counts: object) -> bool:
    if counts is None:
        return True
    if not _bounds(counts):
        return False
    assert isinstance(value, (int, float))
    assert isinstance(counts, (int, float))
    return value <= counts if spec.folder == "down" else value >= counts


def _bounds(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
