"""A copy with changes is what the record's own class would have made."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import pytest

from orchestrator.core.replacing import replace
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import UNCONFIGURED, Call, Phase, State, Task
from orchestrator.core.tokens import Usage

RECORDS = [
    State(),
    Task("t", "user", UNCONFIGURED),
    Call("c", "shell", {}),
    UNCONFIGURED,
    SessionFacts(),
    Usage(),
]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_copy_equals_what_dataclasses_makes_whatever_field_changes(record: object) -> None:
    for spec in dataclasses.fields(record):  # type: ignore[arg-type]
        change = {spec.name: object()}
        assert replace(record, **change) == dataclasses.replace(record, **change)  # type: ignore[type-var]


def test_copy_leaves_its_original_as_it_was() -> None:
    call = Call("c", "shell", {})
    moved = replace(call, phase=Phase.RUNNING, epoch=3)
    assert (moved.phase, moved.epoch, moved.call_id) == (Phase.RUNNING, 3, "c")
    assert call == Call("c", "shell", {})


def test_copy_is_as_frozen_as_its_original() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        replace(Usage(), input_tokens=1).input_tokens = 2  # type: ignore[misc]


def test_unknown_field_is_refused() -> None:
    with pytest.raises(KeyError):
        replace(TurnSettings("/", "never", {}, "m"), no_such_field=1)


def test_record_that_computes_its_fields_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Doubled:
        value: int

        def __post_init__(self) -> None:
            object.__setattr__(self, "value", self.value * 2)

    with pytest.raises(TypeError, match="Doubled"):
        replace(Doubled(1), value=2)


def test_record_without_slots_is_refused() -> None:
    @dataclass(frozen=True)
    class Open:
        value: int

    with pytest.raises(TypeError, match="Open"):
        replace(Open(1), value=2)
