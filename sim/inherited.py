"""The history that a fork begins with, held against its parent's log as it stood then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
import zstandard

from orchestrator.broker.keys import Keys
from orchestrator.core.blobs import is_reference
from orchestrator.core.frozen import record
from orchestrator.core.history import OUTPUT_KINDS, Item, Log, for_model
from sim.double import Double

FORK = "subagent_fork"


@record
class Place:
    """A log behind one of its entries."""

    head: bytes
    history: Log[Item]


def unlike(place: Place | None, fact: Mapping[str, Any], content: str) -> str:
    """The error in a fork whose log states `fact`; empty if the fork is as its parent was."""
    parent = fact["parent"]
    if place is None or place.head.hex() != parent["chain"]:
        return f"it names entry {parent['seq']} of {parent['session']}, which is another one"
    there, here = _said(for_model(place.history)), _said(orjson.loads(content))
    if here[: len(there)] != there:
        return f"it begins with {len(here)} items, which are not the {len(there)} of its parent"
    return ""


def _said(items: Iterable[Item]) -> list[Any]:
    """Without outputs, which may have come between, and without forks, which are told in each in its way."""
    said = (item for item in items if item.get("type") not in OUTPUT_KINDS and item.get("name") != FORK)
    return [orjson.loads(orjson.dumps(item, default=dict)) for item in said]


def text_of(double: Double, keys: Keys, tree: str, content: Any) -> str:
    """A large text that may be stored beside the log."""
    if not is_reference(content):
        return str(content)
    packed: bytes = double.look("GET", keys.blob(tree, content["$blob"]))
    return zstandard.decompress(packed).decode()
