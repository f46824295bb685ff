"""Texts that a fork takes along: those of its conversation, and of each that is inherited inside of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from orchestrator.core.history import INHERITED
from orchestrator.core.ids import TreeId
from orchestrator.gateways import fork
from orchestrator.gateways.fork import copy_texts
from tests.rollouts.test_file_format import grandchild

THEIRS, OURS = TreeId("0199a2b4-0000-7000-8000-00000000000a"), TreeId("0199a2b4-0000-7000-8000-00000000000b")


class Stored:
    """A deployment in which the source's tree has some texts, and a new one gets its own."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.kept: dict[str, bytes] = {}
        self._theirs = texts
        self.broker = SimpleNamespace(logs=self)
        self.texts = self

    async def place(self, session: str) -> Any:
        return SimpleNamespace(tree=THEIRS)

    async def large_texts(self, tree: TreeId, digests: Iterable[str]) -> dict[str, str]:
        assert tree == THEIRS
        return {digest: self._theirs[digest] for digest in digests if digest in self._theirs}

    async def store(self, tree: TreeId, contents: Mapping[str, bytes], *, unborn: bool) -> None:
        assert (tree, unborn) == (OURS, True)
        self.kept |= contents


@pytest.mark.parametrize("at_once", [1, 32])
@pytest.mark.parametrize("lost", [0, 1])
async def test_fork_of_a_fork_takes_the_texts_along_that_stand_inside_what_its_source_has_inherited(
    at_once: int, lost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork, "COPIED_AT_ONCE", at_once)
    log, texts, _ = grandchild("begin" * 3_000, "go on" * 3_000)
    inherited = {"type": INHERITED, "content": orjson.loads(log[1].payload)["payload"]["content"]}
    # The output of a call: a text names it that stands itself only in the one that the log names.
    (output,) = [digest for digest, text in texts.items() if not any(other in text for other in texts)]
    there = {digest: text for digest, text in texts.items() if not lost or digest != output}
    stored = Stored(there)
    source = cast(Any, SimpleNamespace(session="s", state=SimpleNamespace(history=[inherited])))
    copied = await copy_texts(cast(Any, stored), source, OURS)
    assert stored.kept == {digest: text.encode() for digest, text in there.items()}
    assert sorted(copied) == sorted(there)
