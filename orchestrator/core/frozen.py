"""Frozen records, made and changed at the price of ordinary ones.

`dataclasses` fills a frozen record through `object.__setattr__`, a call a field, which makes it four times as
dear to make as one that is not frozen; and its `replace` asks each field what it is, at every call, before it
does the same. A fold makes little else than records. Here the slots are filled while the object is of a twin
class, which has the same slots and is not frozen: the interpreter stores plainly there. Both ways are written
out once for each class, as straight code, the way `dataclasses` itself writes `__init__`.

Only for slotted dataclasses whose fields are stored as they were given. Knows nothing of what they mean.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from reprlib import recursive_repr
from types import FunctionType
from typing import TYPE_CHECKING, Final, Protocol, TypeVar, cast, dataclass_transform

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R")


class _Copy(Protocol):
    """The written function that copies records of one class, with changes."""

    def __call__(self, record: R, changes: Mapping[str, object], /) -> R: ...


_COPIES: dict[type, _Copy] = {}


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def record(cls: type[R]) -> type[R]:
    """`dataclass(frozen=True, slots=True)`, for what is made all the time.

    What `dataclasses` compiles when a class is made is compiled here when it is first called for: a program
    imports hundreds of records and makes a few.
    """
    # One without words would get its signature as words, at half the price of the class.
    cls.__doc__ = cls.__doc__ or cls.__name__
    made = dataclass(init=False, repr=False, eq=False, slots=True)(cls)
    for name, method in _METHODS.items():
        if vars(made).get(name) is None:
            setattr(made, name, method)
    return made


def _new(cls: type[R], *given: object, **named: object) -> R:
    new = _new_of(cls)
    type.__setattr__(cls, "__new__", new)
    return cast(R, new(cls, *given, **named))


def _eq(made: DataclassInstance, other: object) -> bool:
    cls = type(made)
    names = [spec.name for spec in fields(made) if spec.compare]
    # As `dataclasses` compares them: as tuples, so that an object is equal to itself.
    mine, others = (f"({''.join(f'{of}.{name},' for name in names)})" for of in ("made", "other"))
    lines = [
        "if other.__class__ is made.__class__:",
        f"  return {mine} == {others}",
        "return NotImplemented",
    ]
    eq = written("__eq__", ["made", "other"], lines, {})
    type.__setattr__(cls, "__eq__", eq)
    return cast(bool, eq(made, other))


def _hash(made: DataclassInstance) -> int:
    names = [spec.name for spec in fields(made) if (spec.compare if spec.hash is None else spec.hash)]
    hashed = written("__hash__", ["made"], [f"return hash(({''.join(f'made.{n},' for n in names)}))"], {})
    type.__setattr__(type(made), "__hash__", hashed)
    return cast(int, hashed(made))


@recursive_repr()
def _repr(made: DataclassInstance) -> str:
    values = (f"{spec.name}={getattr(made, spec.name)!r}" for spec in fields(made) if spec.repr)
    return f"{type(made).__qualname__}({', '.join(values)})"


def _setattr(made: object, name: str, value: object) -> None:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _delattr(made: object, name: str) -> None:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _values(made: DataclassInstance) -> tuple[object, ...]:
    """The field values that a pickled or copied record is made of again."""
    return tuple(getattr(made, spec.name) for spec in fields(made))


def _no_state(made: object) -> None:
    """Of a pickled record: all is in what it is made of again."""


_METHODS: Final[Mapping[str, object]] = {
    "__new__": _new,
    "__eq__": _eq,
    "__hash__": _hash,
    "__repr__": _repr,
    "__setattr__": _setattr,
    "__delattr__": _delattr,
    "__getnewargs__": _values,
    "__getstate__": _no_state,
}


def _new_of(cls: type) -> FunctionType:
    given, lines = ["cls"], ["made = twin()"]
    scope: dict[str, object] = {"twin": twin_of(cls), "missing": MISSING}
    for spec in fields(cls):
        name = value = spec.name
        if spec.default_factory is not MISSING:
            scope[f"make_{name}"] = spec.default_factory
            given.append(f"{name}=missing")
            value = f"make_{name}() if {name} is missing else {name}"
        elif spec.default is not MISSING:
            scope[f"default_{name}"] = spec.default
            given.append(f"{name}=default_{name}")
        else:
            given.append(name)
        lines.append(f"made.{name} = {value}")
    new = written("__new__", given, [*lines, "made.__class__ = cls", "return made"], scope)
    # A call with wrong arguments is told as the record's.
    new.__qualname__ = cls.__qualname__
    return new


def replace(record: R, /, **changes: object) -> R:
    """A copy of `record` with `changes`; raises `KeyError` for a field that it does not have."""
    cls = type(record)
    copy = _COPIES.get(cls) or _copy_of(cls)
    return copy(record, changes)


def _copy_of(cls: type) -> _Copy:
    twin, names = twin_of(cls), [spec.name for spec in fields(cls)]
    # The slots' own setters do not pass the frozen record's `__setattr__`.
    setters = {name: vars(twin)[name].__set__ for name in names}
    lines = [
        "made = twin()",
        *(f"made.{name} = record.{name}" for name in names),
        "for name, value in changes.items():",
        "  setters[name](made, value)",
        "made.__class__ = cls",
        "return made",
    ]
    scope = {"twin": twin, "cls": cls, "setters": setters}
    return _COPIES.setdefault(cls, cast(_Copy, written("copy", ["record", "changes"], lines, scope)))


def twin_of(cls: type) -> type:
    """A class with the slots of `cls`, but not frozen; its objects become frozen by their `__class__`."""
    names = [spec.name for spec in fields(cls)]  # raises TypeError for others
    if hasattr(cls, "__post_init__") or not all(name in vars(cls) for name in names):
        raise TypeError(
            f"{cls.__name__} is no slotted dataclass, or it makes more of its fields than it is given"
        )
    kept = {name: vars(cls)[name] for name in ("__orig_bases__",) if name in vars(cls)}
    return type(cls.__name__, cls.__bases__, {"__slots__": tuple(names), **kept})


def written(name: str, given: list[str], lines: list[str], scope: dict[str, object]) -> FunctionType:
    """The function `name` of these parameters and statements; `scope` has what else they name."""
    exec("\n ".join([f"def {name}({', '.join(given)}):", *lines]), scope)
    made = scope[name]
    assert isinstance(made, FunctionType)
    return made
