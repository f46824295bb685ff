"""The model request that a state owes: instructions, input, tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from orchestrator.core.blobs import resolve
from orchestrator.core.compaction import compaction_input
from orchestrator.core.history import for_model
from orchestrator.core.state import Request, State, Task
from orchestrator.model.request import Item, Prompt
from orchestrator.runtime.instructions import BASE_INSTRUCTIONS

_REASONING_MODELS = ("gpt-5", "o1", "o3", "o4", "codex-")


def build_prompt(
    state: State, request: Request, tools: Sequence[Item], text_of: Callable[[str], str | None]
) -> Prompt:
    """What request `request` says. `text_of` gives a stored text by its hash."""
    task = _task(state)
    shown = for_model(state.history)
    compact = request.purpose == "compact"
    settings = task.settings
    return Prompt(
        model=settings.model,
        instructions=state.facts.base_instructions or BASE_INSTRUCTIONS,
        # Item by item: only one that has a reference is copied.
        input=[resolve(item, text_of) for item in (compaction_input(shown) if compact else shown)],
        tools=() if compact else tools,
        effort=settings.effort,
        summary=settings.summary,
        verbosity=settings.verbosity,
        session_id=state.facts.session_id,
        supports_reasoning=settings.model.startswith(_REASONING_MODELS),
    )


def _task(state: State) -> Task:
    assert state.task is not None
    return state.task
