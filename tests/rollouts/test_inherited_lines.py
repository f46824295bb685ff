"""Conversations that a fork inherited, as lines: what they hold, and what proves them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import orjson
import pytest

from orchestrator.core import entries as e
from orchestrator.core import facts as f
from orchestrator.core.blobs import externalise
from orchestrator.core.chain import payload_digest
from orchestrator.core.frozen import replace
from orchestrator.core.ids import SessionId
from orchestrator.rollouts.inherited_lines import (
    LogLine,
    inherited_lines,
    missing_texts,
    proves,
    texts_inside,
)
from tests.rollouts.test_file_format import grandchild, said, stored

LONG = "y" * 6000
NAME = hashlib.sha256(LONG.encode()).hexdigest()


def fact_line(items: list[Any]) -> tuple[LogLine, dict[str, str]]:
    source = f.ForkedAt(session=SessionId("a"), seq=1, chain="00")
    fact = e.fact(f.Forked(source, orjson.dumps(items).decode()))
    log, texts = stored([fact])
    return LogLine(log[0]), texts


def test_conversation_that_was_inherited_twice_has_its_depths() -> None:
    log, texts, whole = grandchild()
    lines = [orjson.loads(line) for line in inherited_lines(LogLine(log[1]), texts.get)]
    assert [line["inherited"]["depth"] for line in lines] == [1, 1, 1, 0]
    assert [line["payload"] for line in lines] == whole
    assert ["fact" in line["inherited"] for line in lines] == [True, False, False, False]
    assert ["raw" in line["inherited"] for line in lines] == [False, False, True, False]
    fact = lines[0]["inherited"]["fact"]
    assert (fact["seq"], fact["salt"]) == (2, log[1].salt.hex())
    assert fact["stored"]["payload"]["content"] is None
    assert {line["timestamp"] for line in lines} == {LogLine(log[1]).value["timestamp"]}


def test_entry_that_is_no_fork_or_inherited_nothing_has_no_lines() -> None:
    lookalike, _ = stored([e.item({"type": "other", "content": '"forked"'})])
    other, _ = stored([e.fact(f.Closed())])
    empty, texts = fact_line([])
    for line in (LogLine(lookalike[0]), LogLine(other[0]), empty):
        assert inherited_lines(line, texts.get) == []


def test_fork_whose_text_is_gone_has_no_lines() -> None:
    line, texts = fact_line([said(LONG)])
    assert len(texts) == 1
    assert inherited_lines(line, lambda _: None) == []
    assert len(inherited_lines(line, texts.get)) == 1


def test_texts_inside_are_those_of_items_and_not_the_facts_own() -> None:
    texts: dict[str, bytes] = {}
    item = externalise({"type": "function_call_output", "call_id": "c", "output": LONG}, texts)
    line, known = fact_line([item, said("x" * 5_000)])
    known |= {NAME: LONG}
    payload = line.value["payload"]
    assert len(known) == 2
    assert texts_inside(payload, known.get) == {NAME: LONG}
    assert texts_inside(payload, {**known, NAME: None}.get) == {}
    assert texts_inside({"type": "other"}, known.get) == {}
    assert texts_inside({"kind": "forked"}, known.get) == {}


def test_missing_texts_are_asked_for_from_the_outside_inwards() -> None:
    texts: dict[str, bytes] = {}
    item = externalise({"type": "function_call_output", "call_id": "c", "output": LONG}, texts)
    line, known = fact_line([item, said("x" * 5_000)])
    [own] = known
    assert missing_texts([line], lambda _: None) == {own}
    assert missing_texts([line], known.get) == {NAME}
    assert missing_texts([line], {**known, NAME: LONG}.get) == set()
    plain, _ = stored([e.item(said("nothing large"))])
    assert missing_texts([LogLine(plain[0])], lambda _: None) == set()


def _run() -> tuple[list[Any], dict[int, bytes]]:
    log, texts, _ = grandchild()
    lines = [orjson.loads(line) for line in inherited_lines(LogLine(log[1]), texts.get)]
    digests = {2: payload_digest(log[1].salt, log[1].payload)}
    return [(line["payload"], line["inherited"]) for line in lines], digests


def test_run_of_lines_is_proved_by_the_digest_of_its_fact() -> None:
    run, digests = _run()
    assert proves(run, digests)
    run, _ = _run()
    assert not proves(run, {1: digests[2]})
    run, _ = _run()
    assert not proves(run, {2: bytes(32)})


@pytest.mark.parametrize(
    "spoiled",
    [
        lambda run: run.pop(),
        lambda run: run.pop(0),
        lambda run: run.reverse(),
        lambda run: run[1][0].update(name="other"),
        lambda run: run[2][0].update(output=LONG + "y"),
        lambda run: run[2][0].update(call_id="other"),
        lambda run: run[2][0].update(more=1),
        lambda run: run[2][0].pop("call_id"),
        lambda run: run[3][1].update(depth=1),
        lambda run: run[0][1]["fact"].pop("salt"),
        lambda run: run[0][1]["fact"].update(stored=3),
        lambda run: run[0][1].update(depth="x"),
        lambda run: run[2][0].update(output={"no": "text"}),
    ],
)
def test_run_of_lines_that_is_not_what_was_inherited_is_not_proved(spoiled: Any) -> None:
    run, digests = _run()
    spoiled(run)
    assert not proves(run, digests)


def test_text_that_is_gone_is_proved_by_the_word_that_it_is() -> None:
    log, texts, _ = grandchild()
    kept = {name: text for name, text in texts.items() if text != LONG}
    assert len(kept) == len(texts) - 1
    lines = [orjson.loads(line) for line in inherited_lines(LogLine(log[1]), kept.get)]
    assert lines[2]["payload"]["output"] == "[6000 bytes that are no longer stored]"
    run = [(line["payload"], line["inherited"]) for line in lines]
    assert proves(run, {2: payload_digest(log[1].salt, log[1].payload)})


def test_lists_inside_of_an_item_are_proved_element_by_element() -> None:
    texts: dict[str, bytes] = {}
    content = [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": LONG}]
    line, known = fact_line([externalise({"type": "message", "role": "user", "content": content}, texts)])
    known |= {NAME: LONG}
    [only] = [orjson.loads(one) for one in inherited_lines(line, known.get)]
    assert only["payload"]["content"] == content
    digests = {1: payload_digest(line.stored.salt, line.stored.payload)}

    def shown(content: Any) -> bool:
        mark = orjson.loads(orjson.dumps(only["inherited"]))
        return proves([({**only["payload"], "content": content}, mark)], digests)

    assert shown(content)
    assert not shown(content[:1])
    assert not shown([content[0], content[0]])
    assert not shown(["a", content[1]])
    assert not shown("a")


def test_line_is_a_fact_by_its_type_however_it_is_laid_out() -> None:
    log, _ = stored([e.fact(f.Closed()), e.event("dendro", {"type": "dendro"}), e.item({"type": "dendro"})])
    assert [LogLine(entry).is_fact for entry in log] == [True, False, False]
    for entry, fact in zip(log, (True, False, False), strict=True):
        for laid_out in (
            json.dumps(orjson.loads(entry.payload)).encode(),
            orjson.dumps(dict(reversed(orjson.loads(entry.payload).items()))),
        ):
            assert LogLine(replace(entry, payload=laid_out)).is_fact is fact
