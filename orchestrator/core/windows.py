"""Context windows of models, in tokens."""

from __future__ import annotations

_WINDOWS = (
    ("codex-mini-latest", 200_000),
    ("gpt-5", 272_000),
    ("o3", 200_000),
    ("o4-mini", 200_000),
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
)
"""By the beginning of a model's name."""


def context_window(model: str, configured: int | None = None) -> int | None:
    """The model's window in tokens; None when the model is not known (then nothing compacts by itself)."""
    if configured is not None:
        return configured
    # Asked several times a turn: a loop costs half of what a generator does.
    for prefix, window in _WINDOWS:
        if model.startswith(prefix):
            return window
    return None
