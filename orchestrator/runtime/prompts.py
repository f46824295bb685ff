"""The model request that a state owes: instructions, input, tools.

As a rule it says everything. To a provider that keeps responses it may name the last one
instead, and say only what is new since; whether it may is decided here, and by the state alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.broker.blobs import Texts
from orchestrator.core.blobs import resolve
from orchestrator.core.compaction import compaction_input
from orchestrator.core.history import for_model, since
from orchestrator.core.ids import TreeId
from orchestrator.core.inheritance import needed, opened, whole
from orchestrator.core.plans import with_plan
from orchestrator.core.secrets import with_secrets
from orchestrator.core.state import Request, Response, State, Task
from orchestrator.model.request import Item, Prompt
from orchestrator.protocol.wire import JsonMapping
from orchestrator.runtime.instructions import base_instructions

_REASONING_MODELS = ("gpt-5", "o1", "o3", "o4", "codex-")


def known_response(state: State, request: Request) -> Response | None:
    """The response that this request can go on from, if its provider keeps responses.

    Another model would read the conversation of the first anew, and a compaction is about all
    of it. A retry says everything, too: what broke may be the provider's memory.
    """
    task, last = _task(state), state.last_response
    settings = task.settings
    if last is None or request.purpose == "compact" or task.stream_retries:
        return None
    if task.branch is not None or task.pinned is not None:
        # What the provider keeps would hold more than the session's conversation.
        return None
    same = (last.provider, last.model) == (settings.model_provider, settings.model)
    return last if same else None


def conversation(state: State, known: Response | None = None) -> list[Item]:
    """The conversation of a request; of what `known` covers, nothing. Large texts are references still."""
    if known is not None:
        return since(state.history, known.sent, known.length)
    return for_model(state.conversation)


def build_prompt(
    state: State,
    request: Request,
    tools: Sequence[Item],
    text_of: Callable[[str], str | None],
    known: Response | None = None,
    told: Sequence[tuple[str, JsonMapping]] = (),
    stands: bool | None = None,
) -> Prompt:
    """The prompt of `request`. `text_of` gives a stored text by its hash; `told` are secret answers.

    A compaction is shown none of them: what it says is logged. `stands`: whether the conversation refers to
    no stored text, if that was looked at.
    """
    compact = request.purpose == "compact"
    settings, plan = _task(state).settings, _task(state).pinned
    said = conversation(state, known)
    stands = whole(said) if stands is None else stands
    shown = said if stands else list(opened(said, text_of))
    if plan is not None and not compact:
        shown = with_plan(shown, plan)
    shown = with_secrets(shown, told) if told and not compact else shown
    return Prompt(
        model=settings.model,
        instructions=resolve(state.facts.base_instructions, text_of) or base_instructions(state.facts),
        input=compaction_input(shown, max(1, _task(state).rescue)) if compact else shown,
        tools=() if compact else tools,
        effort=settings.effort,
        summary=settings.summary,
        verbosity=settings.verbosity,
        session_id=state.facts.session_id,
        supports_reasoning=settings.model.startswith(_REASONING_MODELS),
        previous_response_id=known.id if known else None,
        output_schema=None if compact else resolve(_task(state).output_schema, text_of),
    )


def beside(state: State) -> list[Item]:
    """The parts of a request beside the conversation, whose large texts may be stored elsewhere."""
    return [{"instructions": state.facts.base_instructions, "schema": _task(state).output_schema}]


async def fetch_texts(texts: Texts, tree: TreeId, items: Sequence[Item]) -> bool:
    """Makes every text available that the items refer to, those inside inherited conversations too.

    A text that is not stored any more stays unknown, and is asked for once. Answers whether the items refer
    to none.
    """
    if whole(items):
        return True
    asked: set[str] = set()
    while missing := needed(items, texts.get) - asked:
        asked |= missing
        await texts.fetch(tree, missing)
    return False


def _task(state: State) -> Task:
    assert state.task is not None
    return state.task
