"""Hand-written wire values, one JSON object per line, for every variant of the protocol."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

_HERE = Path(__file__).parent

Json = dict[str, Any]


def examples(name: str) -> list[Json]:
    lines = (_HERE / "examples" / f"{name}.ndjson").read_bytes().splitlines()
    return [orjson.loads(line) for line in lines]


def ids(values: list[Json]) -> list[str]:
    return [f"{number}-{value['type']}" for number, value in enumerate(values)]
