"""Works of calls, of every kind, for Hypothesis."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from orchestrator.core.calls import (
    AwaitWork,
    CallWork,
    CopyWork,
    CustomWork,
    ExecWork,
    HelperWork,
    McpWork,
    MergeWork,
    PatchWork,
    PlanWork,
    QuestionWork,
    StdinWork,
    UnknownWork,
    UserInputWork,
    VariantsWork,
)
from orchestrator.core.calls.exec import Lasting
from orchestrator.core.packs import Pack
from orchestrator.protocol.scalars import StoredText

Strategy = st.SearchStrategy[Any]


def works_of_calls(words: Strategy, numbers: Strategy, objects: Strategy) -> st.SearchStrategy[CallWork]:
    """A work of any kind; a text of it may be one that stands beside the log."""
    texts = words | st.just(StoredText.model_validate({"$blob": "0" * 64, "bytes": 70_000}))
    keys = st.lists(texts, max_size=2).map(tuple)
    rows = st.lists(st.lists(st.none() | words, min_size=3, max_size=3), max_size=2)
    timers, env = st.none() | numbers, st.dictionaries(words, words, max_size=2)
    parsed = st.lists(objects, max_size=2).map(tuple)
    agents = st.lists(numbers, max_size=3).map(tuple)
    return st.one_of(
        st.builds(
            ExecWork, keys, keys, texts, parsed, st.none() | numbers, env, st.booleans(), timers,
            lasting=st.none() | st.builds(Lasting, st.booleans(), numbers, numbers, numbers),
        ),
        st.builds(StdinWork, numbers, words, texts, numbers, numbers),
        st.builds(
            PatchWork, keys, texts, texts, objects, texts, rows | texts, objects, st.none() | words,
            numbers, st.booleans(), timers,
        ),
        st.builds(CustomWork, keys, words, objects, texts, texts, st.booleans(), timers),
        st.builds(McpWork, keys, words, words, st.none() | objects, texts, timers),
        st.builds(
            MergeWork, st.lists(words, max_size=2).map(tuple), numbers, st.none() | st.just("s1"), words,
            st.lists(st.builds(Pack, words, words, numbers, st.booleans()), max_size=2).map(tuple), numbers,
            st.lists(words, max_size=2).map(tuple), st.booleans(), timers, words,
        ),
        st.builds(CopyWork, numbers),
        st.builds(QuestionWork, parsed, timers),
        st.builds(UserInputWork, parsed, timers),
        st.builds(PlanWork, objects, timers),
        st.builds(VariantsWork, agents, parsed, numbers, st.dictionaries(words, objects, max_size=2)),
        st.builds(AwaitWork, agents, numbers, numbers),
        st.builds(HelperWork, numbers, objects, numbers),
        objects.map(lambda spec: UnknownWork({"kind": "of a newer version", **spec})),
    )  # fmt: skip
