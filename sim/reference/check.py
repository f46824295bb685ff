"""The rule `scripts`: each call of a script is answered, and leaves its keys, as it was stated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sim.reference import commit as commits
from sim.reference import histories, jobs, lists, notes, providers, sessions, states, storage, trees
from sim.reference.given import Given
from sim.reference.sight import Sight
from sim.store import Store

Statement = Callable[[Sight, Sequence[bytes], Given], list[Any]]
STATEMENTS: Mapping[str, Statement] = {
    "commit": commits.commit,
    "enlist": lists.enlist,
    "look_again": lists.look_again,
    "drop_texts": lists.drop_texts,
    "note": notes.note,
    "recount": states.recount,
    "add_to_history": histories.add_to_history,
    "forget_prompts": histories.forget_prompts,
    **{f.__name__: f for f in (providers.admit, providers.settle)},
    **{
        f.__name__: f
        for f in (jobs.offer_job, jobs.take_job, jobs.keep_job, jobs.answer_job, jobs.settle_job)
    },
    **{f.__name__: f for f in (trees.reserve_ids, trees.registry, trees.raise_limits, trees.tree_heads)},
    **{
        f.__name__: f
        for f in (
            sessions.announce,
            sessions.attend,
            storage.archive,
            sessions.bury,
            sessions.claim,
            sessions.create,
            storage.delete,
            sessions.drain,
            sessions.emit,
            sessions.fire,
            sessions.give_up,
            sessions.heartbeat,
            sessions.keep_secret,
            sessions.look,
            sessions.pass_on,
            sessions.peek,
            storage.put_blob,
            sessions.release,
            sessions.renew,
            storage.restore,
            storage.rewrite,
            sessions.revoke,
            storage.seal,
            storage.seal_tree,
            sessions.serving,
            sessions.snapshot,
            sessions.submit,
            sessions.timers_due,
            sessions.turn_away,
        )
    },
}


class Stated:
    """A call as it is to be: made before the call, and compared behind it."""

    def __init__(
        self, store: Store, name: str, keys: Sequence[bytes], args: Sequence[bytes], now_us: int
    ) -> None:
        self._name = name
        self._sight = Sight(store, keys, now_us)
        self._reply = STATEMENTS[name](self._sight, keys, Given(args))

    def difference(self, reply: Any) -> str:
        """The differences from the statement; empty if there are none."""
        found = self._sight.differences()
        if _plain(self._name, reply) != _plain(self._name, self._reply):
            found.insert(
                0, f"the answer was {str(reply)[:300]}, and {str(self._reply)[:300]} was to be expected"
            )
        return "; ".join(found)


def _plain(name: str, reply: Any) -> Any:
    """The fields of a hash come in any order."""
    if name == "tree_heads":
        return [reply[0], sorted(reply[1]), reply[2]]
    if name != "registry":
        return reply
    flat = reply[1]
    return [reply[0], dict(zip(flat[::2], flat[1::2], strict=True))]
