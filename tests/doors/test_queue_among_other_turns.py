"""Words that wait among turns of other kinds: a client sees and orders its words, and nothing else moves."""

from __future__ import annotations

from itertools import permutations, product
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.core.state import Queued
from orchestrator.core.user_turns import UserTurn
from orchestrator.gateways.app_server.messages import RpcError
from orchestrator.gateways.app_server.methods import queue
from orchestrator.protocol import ops
from orchestrator.protocol.inputs import TextInput
from orchestrator.protocol.review import ReviewRequest
from tests.doors.test_door_of_several_threads import ROOT

REVIEW = ops.Review(review_request=ReviewRequest.model_validate({"target": {"type": "uncommittedChanges"}}))
KINDS: dict[str, Any] = {
    "words": None,
    "compact": ops.Compact(),
    "review": REVIEW,
    "shell": ops.RunUserShellCommand(command="true"),
}
SOME = [*product(KINDS, repeat=2), *product(("words", "compact"), repeat=4)]
"""The kinds of the turns that wait, in their order."""


def queued(place: int, kind: str) -> Queued:
    said = ops.UserInput(items=(TextInput(text=f"t{place}"),), client_user_message_id=f"c{place}")
    turn = UserTurn.asked(KINDS[kind] or said)
    return Queued(cast(Any, f"{kind}{place}"), turn, "ann")


class Thread:
    """A door whose one thread has turns that wait, and the operations that it is handed."""

    def __init__(self, kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        self.ops: list[Any] = []
        self.waiting = [queued(place, kind) for place, kind in enumerate(kinds)]
        self.ids = [one.id for one in self.waiting]
        self.words = [one.id for one, kind in zip(self.waiting, kinds, strict=True) if kind == "words"]
        self.door = cast(
            Any, SimpleNamespace(head=self._head, decided=self._decided, ports=SimpleNamespace(found=None))
        )

        async def waiting_inputs(found: Any, head: Any) -> list[Queued]:
            return self.waiting

        async def lately(door: Any, head: Any, id: str) -> None:
            return None

        monkeypatch.setattr(queue, "waiting_inputs", waiting_inputs)
        monkeypatch.setattr(queue, "_lately", lately)

    async def _head(self, thread: str) -> Any:
        return SimpleNamespace(session=ROOT, pool="p")

    async def _decided(self, head: Any, op: Any, by: Any) -> Any:
        self.ops.append(op)
        return object()

    async def asks(self, method: str, **given: Any) -> Any:
        found = queue.METHODS[method]
        return await found.answer(self.door, found.params.model_validate({"threadId": ROOT, **given}))


@pytest.mark.parametrize("kinds", SOME)
async def test_list_shows_the_words_that_wait_in_their_order_and_no_other_turn(
    kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = Thread(kinds, monkeypatch)
    found, cursor = list[Any](), None
    while True:
        page = await thread.asks("thread/queue/list", limit=1, cursor=cursor)
        found += page["data"]
        if (cursor := page["nextCursor"]) is None:
            break
    assert [one["id"] for one in found] == thread.words
    places = [id.removeprefix("words") for id in thread.words]
    told = [(one["clientUserMessageId"], one["input"][0]["text"]) for one in found]
    assert told == [(f"c{place}", f"t{place}") for place in places]


@pytest.mark.parametrize("kinds", SOME)
async def test_words_that_are_given_another_order_leave_each_other_turn_in_its_place(
    kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = Thread(kinds, monkeypatch)
    for order in permutations(thread.words):
        await thread.asks("thread/queue/reorder", queuedSubmissionIds=list(order))
        given = list(thread.ops[-1].submission_ids)
        assert [id for id in given if id in thread.words] == list(order)
        assert [(at, id) for at, id in enumerate(given) if id not in thread.words] == [
            (at, id) for at, id in enumerate(thread.ids) if id not in thread.words
        ]


@pytest.mark.parametrize("kinds", SOME)
async def test_words_are_begun_by_the_end_of_the_turn_and_another_turn_is_not_taken_for_them(
    kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = Thread(kinds, monkeypatch)
    for id in (None, *thread.ids):
        with pytest.raises(RpcError) as refused:
            await thread.asks("thread/queue/start", queuedSubmissionId=id)
        waits = bool(thread.words) if id is None else id in thread.words
        assert ("begins by itself" in refused.value.message) is waits
    assert thread.ops == []


@pytest.mark.parametrize("kinds", SOME)
async def test_words_that_are_changed_keep_their_own_names(
    kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    thread = Thread(kinds, monkeypatch)
    for id in thread.words:
        words = [{"type": "text", "text": "new"}]
        told = await thread.asks("thread/queue/update", queuedSubmissionId=id, input=words)
        own = f"c{id.removeprefix('words')}"
        assert told["queuedSubmission"] == {"id": id, "clientUserMessageId": own, "input": words}
        assert (thread.ops[-1].submission_id, thread.ops[-1].items[0].text) == (id, "new")
