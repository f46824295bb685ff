"""Forks of whole sessions: finds the place in the source's log, and copies what its conversation refers to.

The source is only read, in Redis or in the archive, whoever holds it. The fork is another tree and may
outlive it: large texts of the conversation are copied under the fork's own name before it is made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any

import orjson

from orchestrator.broker.records import SessionHead
from orchestrator.core.birth import ForkedFrom
from orchestrator.core.blobs import is_reference, references, resolve
from orchestrator.core.frozen import replace
from orchestrator.core.history import INHERITED, Item
from orchestrator.core.ids import TreeId
from orchestrator.core.lines import given
from orchestrator.core.state import State
from orchestrator.rollouts.full_log import end_of_turn
from orchestrator.rollouts.log_source import LogSource
from orchestrator.rollouts.replay import Folded, fold_session
from orchestrator.views import ViewError
from orchestrator.views.find import find

COPIED_AT_ONCE = 32


class CannotFork(ViewError):
    """A session cannot be forked as it was asked for."""


async def to_fork(found: LogSource, text: str, at: str | None) -> ForkedFrom:
    """The place at which the session that `text` names is forked; raises `ViewError`.

    That is the end of the turn `at`. Without one it is the end of the log or, while a task runs, the end of
    the last turn that its conversation has.
    """
    head = await find(found, text)
    if at is not None:
        return await _placed(found, head, await _end_of(found, head, at))
    folded = await fold_session(found, head, None)
    if not (folded.broken or folded.unchecked) and folded.state.task is not None:
        return await _placed(found, head, folded.turn_ends[_last_turn(head, folded.state)])
    return await _source(found, head, folded)


async def fork_at(found: LogSource, head: SessionHead, seq: int) -> ForkedFrom:
    """The place behind an entry of a session's log; raises `ViewError`."""
    return await _placed(found, head, seq)


def _last_turn(head: SessionHead, state: State) -> str:
    """The response that ended the last turn: what the log has last may have been left by going back."""
    turns = [mark for mark, _ in state.bookmarks] or state.earlier_turns
    if not turns:
        raise CannotFork(
            f"session {head.session} is at work on its first turn: wait for its end, or interrupt it"
        )
    return turns[-1]


async def _end_of(found: LogSource, head: SessionHead, at: str) -> int:
    turn = await end_of_turn(found.log(head.session, head.seq), found.secret, at)
    if turn.broken is not None:
        raise _broken(head, turn.broken)
    if turn.seq:
        return turn.seq
    raise CannotFork(
        f"no turn of session {head.session} ended with response {at}: `token_count` and `task_complete` name "
        f"the responses of turns; see them with: dendro logs {head.session} --json"
    )


async def _placed(found: LogSource, head: SessionHead, seq: int) -> ForkedFrom:
    return await _source(found, head, await fold_session(found, head, seq))


async def _source(found: LogSource, head: SessionHead, folded: Folded) -> ForkedFrom:
    if folded.broken is not None:
        raise _broken(head, folded.broken)
    if folded.unchecked:
        raise CannotFork(f"the log of session {head.session} is {folded.unchecked}; nothing is built on it")
    state = await _readable(found, head.tree, folded.state)
    return ForkedFrom(head.session, folded.seq, folded.head.hex(), state)


def _broken(head: SessionHead, broken: object) -> CannotFork:
    return CannotFork(
        f"the log of session {head.session} cannot be believed ({broken}), and nothing is built on it; "
        f"dendro verify {head.session} tells more"
    )


async def _readable(found: LogSource, tree: TreeId, state: State) -> State:
    """The state with the texts that a new session is told of in their place, very long ones too."""
    facts, meta = state.facts, state.meta
    texts = await found.large_texts(tree, references([facts.base_instructions, given(meta.instructions)]))
    if not texts:
        return state
    base = resolve(facts.base_instructions, texts.get)
    meta = replace(meta, instructions=resolve(meta.instructions, texts.get))
    return replace(state, meta=meta, facts=replace(facts, base_instructions=base))


# ── large texts ───────────────────────────────────────────────────────────────────────────────────


async def copy_texts(found: LogSource, source: ForkedFrom, tree: TreeId) -> list[str]:
    """Stores every large text of the conversation for a tree that is about to be made; answers their hashes.

    A text that is gone is left out.
    """
    head = await found.broker.logs.place(source.session)
    done, copied = set[str](), list[str]()
    waiting: list[Sequence[Item]] = [tuple(source.state.history)]
    while waiting:
        items = waiting.pop()
        wanted = {digest for item in items for digest in references(item)} - done
        ordered = sorted(wanted)
        for start in range(0, len(ordered), COPIED_AT_ONCE):
            texts = await found.large_texts(head.tree, ordered[start : start + COPIED_AT_ONCE])
            contents = {name: text.encode("utf-8", "surrogatepass") for name, text in texts.items()}
            await found.texts.store(tree, contents, unborn=True)
            copied += contents
        done |= wanted
        waiting += [inner async for inner in _inherited(found, head.tree, items)]
    return copied


async def _inherited(found: LogSource, tree: TreeId, items: Iterable[Item]) -> AsyncIterator[list[Item]]:
    """The conversations inside of one, which refer to texts of their own."""
    for item in items:
        if item.get("type") != INHERITED:
            continue
        content: Any = item["content"]
        if is_reference(content):
            content = (await found.large_texts(tree, [content["$blob"]])).get(content["$blob"])
        if content is not None:
            yield orjson.loads(content)
