"""Pieces of texts that wait for a slow client: every text is whole, and in its place among all else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.live_threads import Line, LiveThread
from orchestrator.gateways.app_server.outbox import Outbox
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.window.stream import LogChannel
from orchestrator.views.turns import turn_records as r

SESSIONS = [SessionId(f"0199a2b4-0000-7000-8000-00000000000{number}") for number in (1, 2)]
STREAMED = (r.DeltaKind.MESSAGE, r.DeltaKind.REASONING_SUMMARY, r.DeltaKind.REASONING_TEXT)
KINDS = (*STREAMED * 4, *r.DeltaKind)


def piece(chance: Random) -> r.ItemDelta:
    turn, item = r.TurnId(chance.choice("ttu")), r.ItemId(chance.choice("aab"))
    text, process = chance.choice(["x", "yz", "ä", ""]), chance.choice([None, "7"])
    kind = chance.choice(KINDS)
    part = chance.randrange(2) if "reasoning" in kind else 0
    return r.ItemDelta(turn, item, kind, text, part, process)


def acts_of(chance: Random) -> Iterator[r.Change | None]:
    """Pieces, now and then another change; None: the client reads."""
    for _ in range(chance.randrange(1, 24)):
        others = chance.choice([None, r.NameChanged(chance.choice("nm"))])
        yield piece(chance) if chance.random() < 0.85 else others
    yield None


Message = tuple[str, dict[str, Any]]


def shown(told: list[Message]) -> list[Any]:
    """The texts that a client has by then: between two messages that are none, each text as a whole."""
    found: list[Any] = []
    texts: dict[bytes, str] = defaultdict(str)
    for method, params in told:
        if "delta" in params:
            rest = {name: value for name, value in params.items() if name != "delta"}
            texts[orjson.dumps([method, rest], option=orjson.OPT_SORT_KEYS)] += params["delta"]
            continue
        found += [dict(texts), (method, params)]
        texts.clear()
    return [*found, dict(texts)]


def lines_of(change: r.Change, session: SessionId) -> tuple[Line, ...]:
    ports = SimpleNamespace(now_ms=lambda: 1)
    live = LiveThread(cast(Any, ports), notifications, cast(Any, None), session, cast(Any, None))
    return live._lines(change, 5)[1]


def drained(outbox: Outbox) -> list[Message]:
    found = []
    while outbox._waiting:
        found += [orjson.loads(data) for data in outbox._burst()]
    return [(one["method"], one["params"]) for one in found]


def taken(channel: LogChannel) -> list[Message]:
    told = [orjson.loads(one.partition(b"data: ")[2]) for one in channel.taken(0.0)]
    return [(one["method"], one["params"]) for one in told]


@pytest.mark.parametrize("seed", range(8))
def test_client_that_reads_late_has_the_texts_of_one_that_reads_at_once(seed: int) -> None:
    """Also where two sessions that it hears have turns and items of the same ids."""
    for number in range(25):
        chance = Random(seed)
        outbox, channel = Outbox(), LogChannel("thread:x", lambda: None)
        at_once, from_outbox, from_channel = list[Message](), list[Message](), list[Message]()
        for act in acts_of(Random(1_000 * seed + number)):
            if act is None:
                from_outbox += drained(outbox)
                from_channel += taken(channel)
                continue
            for line in lines_of(act, chance.choice(SESSIONS)):
                at_once.append((line.method, line.params))
                channel.put("1", line)
                if line.merges is None:
                    outbox.put(line.data)
                else:
                    outbox.put_delta(line.data, line.merges, line.method, line.params, line.at_ms)
        assert shown(from_outbox) == shown(at_once)
        assert shown(from_channel) == shown(at_once)
        assert (outbox._bytes, channel.waiting) == (0, 0)
