"""Data kept of an older version's deployments, put into a Redis again."""

from __future__ import annotations

import base64
import gzip
import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from orchestrator.core.chain import ChainKey

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(index.parent.name for index in FOLDER.glob("*/index.json")))
SECRET, KEY_ID = "a secret of the old sessions", "old-1"
ROOT = Path("/tmp/dendro-old-sessions")
"""The sessions name folders below it: a test that resumes one puts the workspace there."""


@dataclass(frozen=True)
class Kept:
    """A deployment of an older version."""

    name: str
    index: Mapping[str, Any]

    @classmethod
    def of(cls, name: str) -> Kept:
        return cls(name, json.loads((FOLDER / name / "index.json").read_text()))

    @property
    def sessions(self) -> Mapping[str, Mapping[str, Any]]:
        """The older version's description of each session."""
        found: Mapping[str, Mapping[str, Any]] = self.index["sessions"]
        return found

    @property
    def archive(self) -> Path:
        return FOLDER / self.name / "archive"

    @property
    def environ(self) -> dict[str, str]:
        """The key of the chain, as settings take it; a deployment may have none."""
        if self.name != "keyed":
            return {}
        return {"DENDRO_CHAIN_SECRET": SECRET, "DENDRO_CHAIN_KEY_ID": KEY_ID}

    @property
    def secret(self) -> bytes:
        return SECRET.encode() if self.environ else b""

    @property
    def key(self) -> ChainKey | None:
        return ChainKey(KEY_ID, self.secret) if self.secret else None

    def made(self, how: str) -> str:
        """The session that `make.py` made so."""
        return str(self.index["made"][how])

    def put_into(self, redis: Redis) -> None:
        """Writes every key of the deployment into an empty Redis, a real one or the double."""
        for key, value in json.loads(
            gzip.decompress((FOLDER / self.name / "redis.json.gz").read_bytes())
        ).items():
            _put(redis, key, *value)

    def file(self, name: str, to: Path) -> Path:
        """An exported file, unpacked below `to`."""
        path = to / name
        path.write_bytes(gzip.decompress((FOLDER / self.name / "files" / f"{name}.gz").read_bytes()))
        return path

    def files(self) -> list[str]:
        return sorted(file.name[:-3] for file in (FOLDER / self.name / "files").glob("*.gz"))

    def at_home(self) -> Path:
        """Puts archive and workspace where the sessions say that they are; answers the home folder."""
        place = ROOT / self.name
        mark = place / "workspace" / ".git" / "dendro-workspace"
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_text(self.index["workspace"]["marks"]["git"])
        shutil.copytree(self.archive, place / "home" / "archive", dirs_exist_ok=True)
        return place / "home"


def _put(redis: Redis, key: str, kind: str, *value: Any) -> None:
    match kind:
        case "string":
            redis.set(key, _bytes(value[0]))
        case "hash":
            redis.hset(key, mapping={_bytes(f): _bytes(v) for f, v in value[0]})
        case "set":
            redis.sadd(key, *map(_bytes, value[0]))
        case "zset":
            redis.zadd(key, {_bytes(member): score for member, score in value[0]})
        case "stream":
            last, entries = value
            for at, fields in entries:
                redis.xadd(key, {_bytes(f): _bytes(v) for f, v in fields}, id=at)
            if last != "0-0" and (not entries or entries[-1][0] != last):
                # Consumed entries are gone, and their ids are not given again.
                redis.xadd(key, {"gone": ""}, id=last)
                redis.xdel(key, last)


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
