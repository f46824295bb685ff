"""Keys of the person's own settings file, written by a door: a line each, all else stays as it is."""

from __future__ import annotations

import asyncio
import json
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestrator.gateways.app_server.ports import BadSetting
from orchestrator.sandbox.policy import PROJECT_CONFIG
from orchestrator.settings import Settings
from orchestrator.settings.layers import FILE_LIMIT_BYTES

_TABLE = re.compile(r"^\s*\[", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class SavedSettings:
    """The file of the person whose gateway this is."""

    settings: Settings

    async def write(self, keys: Mapping[str, str | None]) -> None:
        """Sets top-level keys, and takes out those that are None; raises `BadSetting`."""
        await asyncio.to_thread(self._write, keys)

    def _write(self, keys: Mapping[str, str | None]) -> None:
        file = self.settings.config_file or self.settings.home / PROJECT_CONFIG
        try:
            text = file.read_text(encoding="utf-8") if file.exists() else ""
            changed = with_keys(text, keys)
            tomllib.loads(changed)
            if len(changed.encode()) > FILE_LIMIT_BYTES:
                raise BadSetting(f"{file} would be larger than {FILE_LIMIT_BYTES:,} bytes")
            _replace(file, changed)
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise BadSetting(f"{file} was not changed: {error}") from None


def with_keys(text: str, keys: Mapping[str, str | None]) -> str:
    """The text of a file with other values of top-level keys, which stand before its first table."""
    found = _TABLE.search(text)
    head, rest = (text[: found.start()], text[found.start() :]) if found else (text, "")
    for key, value in keys.items():
        line = None if value is None else f"{key} = {json.dumps(value, ensure_ascii=False)}\n"
        before = re.compile(rf"^[ \t]*{re.escape(key)}[ \t]*=.*\n?", re.MULTILINE)
        if (place := before.search(head)) is not None:
            head = head[: place.start()] + (line or "") + head[place.end() :]
        elif line is not None:
            head = f"{head}{'' if not head or head.endswith(chr(10)) else chr(10)}{line}"
    return head + rest


def _replace(file: Path, text: str) -> None:
    """Puts the new content in the place of the old, whole or not at all."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    try:
        if file.exists():
            draft.chmod(file.stat().st_mode & 0o777)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
