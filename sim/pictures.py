"""Pictures and session names that people send, held against the log.

Small pictures stand in the log; a large one is a text of the tree's, which the log names by its digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from orchestrator.core.blobs import REFERENCE
from orchestrator.core.entries import DENDRO, EVENT_MSG, RESPONSE_ITEM

if TYPE_CHECKING:
    from sim.seen import Seen
    from sim.watch import Watch

NAMES = "set_thread_name"


def check_pictures(watch: Watch, session: str, seen: Seen, shown: Mapping[str, str]) -> None:
    """The rule `shown`: whose input was taken, its picture is in the conversation and in what others see."""
    said = list(_in_items(seen))
    told = [image for entry in seen.entries if entry.type == EVENT_MSG for image in _told(entry.payload)]
    for id in dict.fromkeys(_taken(seen)):
        if id not in shown:
            continue
        watch.reach.saw("shown")
        for where, images in (("its conversation", said), ("its events", told)):
            if sum(_is(image, shown[id]) for image in images) != 1:
                watch.broken(
                    "shown", f"{session}: {len(images)} pictures are in {where}, and not that of {id}"
                )


def check_name(watch: Watch, session: str, seen: Seen) -> None:
    """The rule `named`: the name that was given last, as far as the queue was read."""
    refused = {
        entry.id for entry in seen.entries if entry.type == EVENT_MSG and entry.payload["type"] == "error"
    }
    given = [
        given.about
        for given in seen.given
        if given.op == NAMES and given.n <= seen.cursor and given.id not in refused
    ]
    if len(given) > 1:
        watch.reach.saw("named")
    if given and seen.state.name != given[-1]:
        watch.broken("named", f"{session} was called {given[-1]!r}, and is {seen.state.name!r}")


def _taken(seen: Seen) -> Iterator[str]:
    """The ids of inputs that began a task, or joined one."""
    for entry in seen.entries:
        if entry.type == DENDRO and entry.payload["kind"] in ("task", "steered"):
            yield entry.payload["id"]


def _in_items(seen: Seen) -> Iterator[Any]:
    """Every picture that a person's message has in the log, or that is to join the next request."""
    for entry in seen.entries:
        if entry.type == RESPONSE_ITEM and entry.payload.get("role") == "user":
            for part in entry.payload["content"]:
                if part["type"] == "input_image":
                    yield part["image_url"]


def _told(message: Mapping[str, Any]) -> list[Any]:
    return list(message.get("images", ())) if message["type"] == "user_message" else []


def _is(image: Any, shown: str) -> bool:
    if isinstance(image, Mapping):
        return bool(image.get(REFERENCE) == sha256(shown.encode()).hexdigest())
    return bool(image == shown)
