"""Secret answers, and every place that may not have them.

A text that a person gave as a secret is known by its beginning. It may stand in the hash of its tree, in the
submission of a client that knows no texts apart, and in requests of the turn that asked: nowhere else, and
there no longer than the turn goes on.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

from orchestrator.broker.redis_keys import Keys
from orchestrator.core.frozen import replace
from orchestrator.core.secrets import NOT_KEPT
from orchestrator.model.prompt import Item, Prompt
from sim.double import Double
from sim.observer import Observer
from sim.requests import Requests

SECRET = "s3cr3t-"
RECENT_S = 30.0
_GIVEN = re.compile(SECRET + r"[a-z0-9.]+")
_KEEPS = frozenset({"submit", "keep_secret"})
"""Scripts that put secrets where they belong."""


class Asking(Observer, Protocol):
    """An observer that knows the requests to the model as well."""

    requests: Requests


class Secrets:
    """The rule `secret`."""

    def __init__(self, watch: Asking, double: Double, keys: Keys) -> None:
        self._watch = watch
        self._double = double
        self._keys = keys
        self.given = False
        """Whether anybody has given a secret: before, nothing is looked for."""

    def wrote(self, name: str, args: Sequence[Any]) -> None:
        """Looks at what a script was given: it names no secret, beside the place where they belong."""
        if self.given and name not in _KEEPS and any(map(_names_one, args[3:])):
            self._watch.broken("secret", f"{name} is given a text that no log may have")

    def logged(self, prompt: Prompt) -> Prompt:
        """The request as its log has it; a turn shows the secrets of its task, and nothing else does."""
        if not self.given:
            return prompt
        self._is_whole(prompt)
        if not any(SECRET in str(item.get("output", "")) for item in prompt.input):
            return prompt
        if not prompt.tools:
            self._watch.broken("secret", "a compaction is shown a secret")
        self._watch.reach.saw("secret")
        return replace(prompt, input=[_logged(item) for item in prompt.input])

    def _is_whole(self, prompt: Prompt) -> None:
        """Holds a turn against the task: a text that stands under a name of it is shown."""
        watch, seen = self._watch, self._watch.sessions.get(prompt.session_id)
        recent = watch.now_s < watch.went_back_s + RECENT_S
        if seen is None or seen.state.task is None or not prompt.tools or recent or watch.requests.untrusted:
            return
        kept = self._double.hash(self._keys.secrets(seen.tree))
        outputs = {item.get("call_id"): str(item["output"]) for item in prompt.input if "output" in item}
        for secret in seen.state.task.secrets:
            if secret.name.encode() in kept and NOT_KEPT in outputs.get(secret.call_id, ""):
                watch.broken("secret", f"{prompt.session_id}: {secret.call_id} is shown without its answer")

    def is_gone(self) -> None:
        """All sessions are at rest: no task needs an answer any more."""
        for tree in {seen.tree for seen in self._watch.sessions.values()} if self.given else ():
            if left := self._double.hash(self._keys.secrets(tree)):
                self._watch.broken("secret", f"{tree} is at rest, and {len(left)} answers stand apart")


def _names_one(word: Any) -> bool:
    return SECRET.encode() in word if isinstance(word, bytes) else isinstance(word, str) and SECRET in word


def _logged(item: Item) -> Item:
    output = item.get("output")
    return {**item, "output": _GIVEN.sub(NOT_KEPT, output)} if isinstance(output, str) else item
