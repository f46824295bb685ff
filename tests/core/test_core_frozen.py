"""Records and their copies are what `dataclasses` would have made."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from dataclasses import dataclass, field

import pytest

from orchestrator.core.calls import Call, Phase
from orchestrator.core.frozen import record, replace
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.state import UNCONFIGURED, State, Task
from orchestrator.core.tokens import Usage
from orchestrator.protocol.ids import CallId, SubmissionId

RECORDS = [
    State(),
    Task(SubmissionId("t"), "user", UNCONFIGURED),
    Call(CallId("c"), "shell", {}),
    UNCONFIGURED,
    SessionFacts(),
    Usage(),
]


@record
class Made:
    """A record with one field of each kind."""

    needed: int
    usual: str = "usual"
    own: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Ordinary:
    """The same, as `dataclasses` makes it."""

    needed: int
    usual: str = "usual"
    own: list[int] = field(default_factory=list)


def test_record_is_what_dataclasses_would_have_made_of_it() -> None:
    for given, named in (((1,), {}), ((1, "a"), {}), ((1,), {"own": [2]}), ((), {"needed": 3, "usual": "b"})):
        made, ordinary = Made(*given, **named), Ordinary(*given, **named)
        assert dataclasses.asdict(made) == dataclasses.asdict(ordinary)
        assert repr(made) == repr(ordinary).replace("Ordinary", "Made")
    assert Made(1) == Made(1) != Made(2)
    assert hash(Made(1, own=())) == hash(Made(1, own=()))  # type: ignore[arg-type]
    assert Made(1).own is not Made(1).own
    match Made(1, "a"):
        case Made(1, usual):
            assert usual == "a"


def test_record_is_frozen_and_has_no_room_for_more() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Made(1).needed = 2  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        object.__setattr__(Made(1), "other", 2)


@pytest.mark.parametrize("given", [(), (1, "a", [], 4)], ids=["too few", "too many"])
def test_record_made_with_wrong_arguments_is_named(given: tuple[object, ...]) -> None:
    with pytest.raises(TypeError, match="Made"):
        Made(*given)  # type: ignore[arg-type]


def test_record_survives_copying_and_pickling() -> None:
    made = Made(1, "a", [2])
    assert copy.copy(made) == copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_copy_equals_what_dataclasses_makes_whatever_field_changes(record: object) -> None:
    for spec in dataclasses.fields(record):  # type: ignore[arg-type]
        change = {spec.name: object()}
        assert replace(record, **change) == dataclasses.replace(record, **change)  # type: ignore[type-var]


def test_copy_leaves_its_original_as_it_was() -> None:
    call = Call(CallId("c"), "shell", {})
    moved = replace(call, phase=Phase.RUNNING, epoch=3)
    assert (moved.phase, moved.epoch, moved.call_id) == (Phase.RUNNING, 3, "c")
    assert call == Call(CallId("c"), "shell", {})


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
