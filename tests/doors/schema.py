"""The schema of the app-server protocol, as strict clients read its messages."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import orjson

FILE = Path(__file__).parent / "recordings" / "schema" / "app-server-v2.json"


@cache
def _definitions() -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(FILE.read_bytes())["definitions"]
    return found


@cache
def _validator(definition: str) -> Any:
    assert definition in _definitions(), f"the schema defines no {definition}"
    return jsonschema.Draft7Validator({"$ref": f"#/definitions/{definition}", "definitions": _definitions()})


def faults(definition: str, value: Any) -> list[str]:
    """Where a message is not what a definition asks for; empty for a valid one."""
    # Through JSON: a client sees no tuples and no enums.
    read = orjson.loads(orjson.dumps(value))
    return [f"{error.json_path}: {error.message}" for error in _validator(definition).iter_errors(read)]


def assert_valid(definition: str, value: Any) -> None:
    """Fails with every fault of a message."""
    assert faults(definition, value) == []
