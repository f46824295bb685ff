"""Recorded conversations of version 1, played against a server over a wire in memory, and compared."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.acceptance.comparator import compare_events, has_come
from tests.acceptance.placeholders import Bindings, Difference, differences
from tests.doors.peer import Peer

RECORDINGS = Path(__file__).parent / "recordings" / "jsonrpc-v1"
Line = dict[str, Any]
EVENT = "codex/event/"
FREE_RESULTS = frozenset({"initialize", "execOneOffCommand", "tools/list", "getUserAgent"})
"""Methods whose answers are the peer's own, or tell that the peer could not do it where it was recorded."""


def connections(name: str) -> Iterator[list[Line]]:
    """The lines of each connection of a recording."""
    lines = [json.loads(line) for line in (RECORDINGS / name / "rpc.ndjson").read_text().splitlines()]
    begins = [at for at, line in enumerate(lines) if line.get("client", {}).get("method") == "initialize"]
    for begin, end in zip(begins, [*begins[1:], len(lines)], strict=True):
        yield lines[begin:end]


@dataclass
class Player:
    """A recorded client before a server: it sends each message when all before it has come."""

    peer: Peer
    bindings: Bindings
    found: list[Difference] = field(default_factory=list)

    async def play(self, lines: Sequence[Line]) -> None:
        recorded: list[Line] = []
        for line in lines:
            if "server" in line:
                recorded.append(line["server"])
                continue
            await self._come(recorded)
            self.peer.send(self._bound(line["client"], recorded))
        await self._come(recorded)
        self._compare(lines, recorded)

    def _bound(self, message: Line, recorded: Sequence[Line]) -> Line:
        """The client's message with real ids, also of the request that it answers."""
        bound: Line = json.loads(self.bindings.fill(json.dumps(message)))
        if "method" not in message:
            asked = [one["id"] for one in recorded if _is_request(one)]
            place = asked.index(message["id"])
            bound["id"] = [one["id"] for one in self.peer.heard if _is_request(one)][place]
        return bound

    async def _come(self, recorded: Sequence[Line]) -> None:
        """Waits until as much has come as had at the peer."""
        while not self._has_come(recorded):
            await self.peer.next()

    def _has_come(self, recorded: Sequence[Line]) -> bool:
        heard = self.peer.heard
        answered = {one["id"]: one for one in heard if "method" not in one}
        for one in recorded:
            if "method" not in one and one["id"] not in answered:
                return False
            if "method" not in one and "result" in one:
                # What the answer teaches of ids is needed for the next message.
                list(differences(one["result"], answered[one["id"]].get("result"), self.bindings, ""))
        asked = sum(_is_request(one) for one in recorded)
        return sum(_is_request(one) for one in heard) >= asked and has_come(_events(recorded), _events(heard))

    def _compare(self, lines: Sequence[Line], recorded: Sequence[Line]) -> None:
        heard = self.peer.heard
        versioned = "jsonrpc" in lines[0]["client"]
        assert {"jsonrpc" in one for one in heard} == {versioned}, "as the client's first message"
        methods = {
            line["client"]["id"]: line["client"]["method"]
            for line in lines
            if "client" in line and {"id", "method"} <= line["client"].keys()
        }
        for one in recorded:
            if "method" in one or methods[one["id"]] in FREE_RESULTS:
                continue
            (answer,) = [got for got in heard if "method" not in got and got["id"] == one["id"]]
            place = f"answer to {methods[one['id']]}"
            if "error" in one:
                self.found += differences(True, "error" in answer, self.bindings, place)
            else:
                said, got = (_plain_result(result) for result in (one["result"], answer.get("result")))
                self.found += differences(said, got, self.bindings, place)
        events = _events(recorded)
        if "resumeConversation" in methods.values():
            # The peer begins to count anew; here the figures are those of the whole conversation.
            events = [event for event in events if event["msg"]["type"] != "token_count"]
        self.found += compare_events(events, _events(heard), self.bindings)
        self._compare_requests([one for one in recorded if _is_request(one)])

    def _compare_requests(self, recorded: Sequence[Line]) -> None:
        got = [one for one in self.peer.heard if _is_request(one)]
        assert [one["method"] for one in got] == [one["method"] for one in recorded]
        for one, other in zip(recorded, got, strict=True):
            self.found += differences(_tagged(one["params"]), other["params"], self.bindings, one["method"])
            before = self.peer.heard[: self.peer.heard.index(other)]
            call = other["params"]["callId"]
            assert any(_calls(event["params"], call) for event in before if _is_event(event)), "event first"


def _plain_result(result: Any) -> Any:
    """A result without what is each program's own: places of further pages, events beside what was said."""
    if not isinstance(result, dict):
        return result
    plain = {name: part for name, part in result.items() if name != "nextCursor"}
    if "initialMessages" in plain:
        said = ("user_message", "agent_message", "agent_reasoning")
        plain["initialMessages"] = [one for one in plain["initialMessages"] if one["type"] in said]
    return plain


def _calls(params: Line, call: str) -> bool:
    return bool(params["msg"].get("call_id") == call and params["msg"]["type"].endswith("approval_request"))


def _is_request(message: Line) -> bool:
    return "method" in message and "id" in message


def _is_event(message: Line) -> bool:
    return str(message.get("method", "")).startswith(EVENT)


def _events(messages: Sequence[Line]) -> list[Line]:
    """The events of notifications, their ids numbered by appearance."""
    numbers: dict[str, str] = {}
    events = []
    for one in messages:
        if _is_event(one):
            params = _tagged(one["params"])
            if params["msg"]["type"] in (
                "input_accepted",
                "request_resolved",
                "item_started",
                "item_completed",
            ):
                continue
            id = numbers.setdefault(params["id"], str(len(numbers)))
            events.append({"id": id, "msg": params["msg"]})
    return events


def _tagged(value: Any) -> Any:
    """Changes of files with their kind inside; the recorded version wrapped them."""
    if isinstance(value, dict):
        found = {name: _tagged(part) for name, part in value.items()}
        for name in ("changes", "file_changes", "fileChanges"):
            if isinstance(found.get(name), dict):
                found[name] = {path: _change(change) for path, change in found[name].items()}
        return found
    return [_tagged(part) for part in value] if isinstance(value, list) else value


def _change(change: Line) -> Line:
    if "type" in change:
        return change
    ((kind, fields),) = change.items()
    return {"type": kind, **fields}
