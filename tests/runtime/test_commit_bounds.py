"""However much people, models and agents say, no step outgrows what a commit carries."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import orjson
import pytest

from orchestrator.broker.commit_requests import payloads
from orchestrator.broker.records import CommitRequest, NewTree, Unstored
from orchestrator.core.blobs import references
from orchestrator.core.ids import TreeId
from orchestrator.protocol import ops
from orchestrator.runtime.committing import Writing
from orchestrator.runtime.journal import Step
from orchestrator.runtime.runner import Ended
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import ends, message

LONG = "so it is " * 6_600
OF_NOBODY = ops.ExecApproval.model_validate(
    {"type": "exec_approval", "id": "nobody's", "decision": "approved"}
)


async def test_very_long_inputs_that_join_a_task_reach_its_next_request_in_order(harness: Harness) -> None:
    session, streaming = await harness.session(on_user_input="steer"), Gate()
    harness.models.will([message("half"), streaming, ends()])
    await harness.say(session)
    running = asyncio.create_task(harness.run(session))
    await streaming.reached.wait()
    for number in range(40):
        await harness.say(session, f"{number} {LONG}")
    streaming.open()
    assert await running is Ended.PARKED
    said = [
        item["content"][0]["text"] for item in harness.models.prompts[-1].input if item.get("role") == "user"
    ]
    numbers = [int(text.partition(" ")[0]) for text in said if text.endswith(LONG)]
    assert numbers == list(range(40))


async def test_input_of_many_long_parts_is_taken_whole(harness: Harness) -> None:
    session = await harness.session()
    parts = tuple({"type": "text", "text": f"{number} {LONG}"} for number in range(40))
    await harness.submit(session, ops.UserInput(items=cast(Any, parts)))
    assert await harness.run(session) is Ended.PARKED
    shown = [item for item in harness.models.prompts[-1].input if item.get("role") == "user"][-1]
    assert [part["text"] for part in shown["content"]] == [part["text"] for part in parts]


async def test_step_knows_what_its_commit_will_weigh(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    request_of = Writing._request

    def weighed(writing: Writing, step: Step, cursor: str, release: Any, meta: bytes | None) -> CommitRequest:
        request = request_of(writing, step, cursor, release, meta)
        seen.append((step.size, sum(map(len, payloads(request))) - len(meta or b"")))
        return request

    monkeypatch.setattr(Writing, "_request", weighed)
    session = await harness.session()
    harness.models.will([message("a word")])
    await harness.say(session, LONG)
    assert await harness.run(session) is Ended.PARKED
    assert seen
    assert [step for step, _ in seen] == [commit for _, commit in seen]


async def test_step_is_cut_at_its_bound_and_the_next_one_goes_on(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    request_of = Writing._request

    def counted(writing: Writing, step: Step, *more: Any) -> CommitRequest:
        seen.append(step.weight)
        return request_of(writing, step, *more)

    monkeypatch.setattr(Writing, "_request", counted)
    session = await harness.session()
    for number in range(140):
        # Each is an error: one entry.
        await harness.submit(session, OF_NOBODY, f"a{number}")
    assert await harness.run(session) is Ended.PARKED
    assert seen == [128, 12]


async def test_text_that_redis_lost_before_its_commit_is_stored_again(harness: Harness) -> None:
    session, stored = await harness.session(), asyncio.Event()
    tree = TreeId(session)

    async def forgets_the_texts(_: Sequence[Any]) -> None:
        keys = harness.broker.keys
        digests: Any = await harness.broker.command("SMEMBERS", keys.blobs(tree))
        if digests and not stored.is_set():
            stored.set()
            await harness.broker.command("DEL", *(keys.blob(tree, digest.decode()) for digest in digests))

    harness.connection.before["commit"] = forgets_the_texts
    said = "so it is " * 10_000
    await harness.say(session, said)
    assert await harness.run(session) is Ended.PARKED
    assert stored.is_set()
    shown = [item for item in harness.models.prompts[-1].input if item.get("role") == "user"][-1]
    assert shown["content"][0]["text"] == said
    named = {d for entry in await harness.log(session) for d in references(orjson.loads(entry.payload))}
    assert named
    for digest in named:
        assert await harness.broker.command("EXISTS", harness.broker.keys.blob(tree, digest)) == 1


async def test_text_that_a_worker_has_stored_for_a_tree_is_not_sent_again(harness: Harness) -> None:
    session = await harness.session()
    for _ in range(2):
        await harness.say(session, "so it is " * 10_000)
        assert await harness.run(session) is Ended.PARKED
    sent = [words[0] for name, words in harness.connection.calls if name == "put_blob"]
    assert sent
    assert len(sent) == len(set(sent))
    named = [d for entry in await harness.log(session) for d in references(orjson.loads(entry.payload))]
    assert len(named) > len(set(named))


async def test_session_whose_texts_redis_lost_before_it_was_made_is_made_with_them(
    harness: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, keys, made = harness.broker.commits.create, harness.broker.keys, list[bool | Unstored]()

    async def behind_a_loss(new: NewTree) -> bool | Unstored:
        if not made:
            await harness.broker.command("DEL", *(keys.blob(new.root.tree, text) for text in new.texts))
        made.append(await create(new))
        return made[-1]

    monkeypatch.setattr(harness.broker.commits, "create", behind_a_loss)
    session = await harness.session(base_instructions="so it is " * 10_000)
    [lost, stands] = made
    assert isinstance(lost, Unstored)
    assert stands is True
    for text in lost.digests:
        assert await harness.broker.command("PTTL", keys.blob(TreeId(session), text)) == -1
