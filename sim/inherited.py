"""The history that a fork begins with, held against its parent's log as it stood then."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson
import zstandard

from orchestrator.broker.redis_keys import Keys
from orchestrator.core.blobs import is_reference
from orchestrator.core.entries import Entry
from orchestrator.core.frozen import record
from orchestrator.core.history import INHERITED, OUTPUT_KINDS, Item, Log, for_model, message_text
from sim.double import Double
from sim.grammar_terms import CONTEXT, REDACTED, REPLACES

if TYPE_CHECKING:
    from sim.seen import Seen

FORK = "subagent_fork"
_OWN = (
    "<environment_context>",
    "<user_instructions>",
    "<turn_aborted>",
    "<process_gone>",
    "<folder_changed>",
    "<code_review>",
    "<user_shell_command>",
    "This conversation was compacted.",
)
"""The beginnings of messages that nobody said."""


@record
class Place:
    """A log behind one of its entries."""

    head: bytes
    history: Log[Item]
    kept: tuple[Any, ...] = ()
    """The texts of people that a compaction kept."""


def unlike(place: Place | None, fact: Mapping[str, Any], content: str) -> str:
    """The error in a fork whose log states `fact`; empty if the fork is as its parent was."""
    parent = fact["parent"]
    if place is None or place.head.hex() != parent["chain"]:
        return f"it names entry {parent['seq']} of {parent['session']}, which is another one"
    there, here = _said(for_model(place.history)), _said(orjson.loads(content))
    if here[: len(there)] != there:
        return f"it begins with {len(here)} items, which are not the {len(there)} of its parent"
    told, known = _of_people(place.history), list(fact.get("user_texts", ()))
    if told and told[-1] not in known:
        return f"a compaction would keep {known} of what it inherits, and people said {told}"
    heeded, known = _heeded(place.history), _plain(fact.get("instructions", ()))
    return "" if known == heeded else f"it heeds {known} of what it inherits, and {heeded} hold there"


def _heeded(history: Iterable[Item]) -> list[Any]:
    """The instructions that hold in a conversation: each once, and none that others took the place of."""
    found: list[Any] = []
    for item in history:
        of_it = item.get("instructions", ()) if item.get("type") == INHERITED else (item,)
        for one in _plain(one for one in of_it if message_text(one).startswith(CONTEXT[1])):
            found = [] if REPLACES in message_text(one) else [other for other in found if other != one]
            found.append(one)
    return found


def _plain(items: Iterable[Item]) -> list[Any]:
    return [orjson.loads(orjson.dumps(item, default=dict)) for item in items]


def strange_child(seen: Seen, members: Mapping[str, Seen]) -> str:
    """The place that an agent's log says it has, where that is not below its maker; empty if it is."""
    facts = seen.state.facts
    if not facts.agent_id:
        return ""
    maker = members.get(str(facts.parent_session))
    if maker is None:
        return "" if str(facts.parent_session) != str(facts.tree_id) else "it has no parent"
    above = maker.state.facts
    told = facts.agent_path, facts.grandparent_session, facts.tree_id, facts.tree_rules
    own = f"{above.agent_path}/{facts.agent_id}", above.parent_session, above.tree_id, above.tree_rules
    return "" if told == own else f"it is told to be {told}, and is {own}"


def unlike_then(
    places: Mapping[int, Place], entries: Sequence[Entry], fact: Mapping[str, Any], content: str
) -> str:
    """The error in a conversation that was put back; empty if it is the one with which its turn ended."""
    mark = fact["response_id"]
    ends = [seq for seq, entry in enumerate(entries, 1) if _ends(entry, mark)]
    if not ends:
        return f"no turn ended with {mark}"
    then = places[ends[-1]]
    there = [orjson.loads(orjson.dumps(_bare(item), default=dict)) for item in for_model(then.history)]
    here = orjson.loads(content)
    if len(here) != len(there) or any(map(_differ, here, there)):
        return f"what is put back of {mark} is not what was said until then"
    told, known = _of_people(then.history), list(fact.get("user_texts", ()))
    lost = told and told[-1] not in known and not any(REDACTED in text for text in (told[-1], *known))
    return f"a compaction would keep {known}, and people said {told}" if lost else ""


def _differ(one: Any, other: Any) -> bool:
    """Whether two items say something else, and neither has lost words that the other may have still."""
    return bool(one != other) and not any(REDACTED.encode() in orjson.dumps(each) for each in (one, other))


def _ends(entry: Entry, mark: str) -> bool:
    return entry.payload.get("type") == "token_count" and entry.payload.get("response_id") == mark


def _said(items: Iterable[Item]) -> list[Any]:
    """Without outputs, which may have come between, and without forks, which are told in each in its way."""
    said = (item for item in items if item.get("type") not in OUTPUT_KINDS and item.get("name") != FORK)
    return [orjson.loads(orjson.dumps(_bare(item), default=dict)) for item in said]


def _bare(item: Item) -> Item:
    """An inherited conversation without what the log of its heir notes beside it."""
    return {name: item[name] for name in ("type", "content")} if item.get("type") == INHERITED else item


def _of_people(history: Iterable[Item]) -> list[str]:
    """Texts that people or agents said in words short enough to stand in the log, oldest first."""
    parts = [
        item["content"][0].get("text")
        for item in history
        if item.get("role") == "user" and item.get("type") == "message" and len(item["content"]) == 1
    ]
    return [text for text in parts if isinstance(text, str) and not text.startswith(_OWN)]


def text_of(double: Double, keys: Keys, tree: str, content: Any) -> str:
    """A large text that may be stored beside the log."""
    if not is_reference(content):
        return str(content)
    return stored_text(double, keys, tree, content["$blob"])


def stored_text(double: Double, keys: Keys, tree: str, digest: str) -> str:
    """A large text that stands beside the logs of a tree."""
    packed: bytes = double.look("GET", keys.blob(tree, digest))
    return zstandard.decompress(packed).decode()
