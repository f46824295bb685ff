"""Values that are kept for a while: within their bounds, those that were used last."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from orchestrator.recent import Recent
from tests.broker.doubles import FakeClock


def recent(*, most: int = 9, newest_stays: bool = False, clock: FakeClock | None = None) -> Recent[str, str]:
    clock = clock or FakeClock()
    return Recent(100, most=most, seconds=60.0, newest_stays=newest_stays, clock=clock.monotonic)


def put(kept: Recent[str, str], names: str, size: int) -> None:
    for name in names:
        kept.put(name, name.upper(), size)


def names_of(kept: Recent[str, str]) -> str:
    return "".join(name for name in "abcdef" if kept.get(name) == name.upper())


def test_bytes_beyond_the_bound_push_out_what_was_not_used_for_longest() -> None:
    kept = recent()
    put(kept, "abc", 33)
    assert (kept.use("a"), kept.get("b"), kept.use("none")) == ("A", "B", None)
    put(kept, "d", 34)
    assert (names_of(kept), len(kept), kept.bytes) == ("acd", 3, 100)


def test_value_that_is_put_again_counts_once_with_its_new_size() -> None:
    kept = recent()
    put(kept, "ab", 40)
    put(kept, "a", 60)
    assert (names_of(kept), kept.bytes) == ("ab", 100)
    put(kept, "a", 61)
    assert (names_of(kept), kept.bytes) == ("a", 61)


def test_value_that_is_taken_counts_no_more() -> None:
    kept = recent()
    put(kept, "ab", 50)
    assert (kept.take("a"), kept.take("a")) == ("A", None)
    put(kept, "c", 50)
    assert (names_of(kept), kept.bytes) == ("bc", 100)


def test_values_beyond_the_number_push_out_what_was_not_used_for_longest() -> None:
    kept = recent(most=2)
    put(kept, "abc", 0)
    assert (names_of(kept), len(kept)) == ("bc", 2)


def test_value_that_nobody_used_for_a_while_is_dropped_at_the_next_use_of_another() -> None:
    clock = FakeClock()
    kept = recent(clock=clock)
    put(kept, "a", 1)
    clock.advance(40)
    put(kept, "b", 1)
    clock.advance(20)
    kept.use("b")
    assert names_of(kept) == "ab", "60 s are not beyond the bound"
    clock.advance(1)
    kept.use("b")
    assert (names_of(kept), kept.bytes) == ("b", 1)
    clock.advance(3_600)
    assert kept.use("b") == "B", "nothing else was used since"


def test_value_that_is_larger_than_all_may_be_is_not_kept_and_pushes_out_none() -> None:
    clock = FakeClock()
    kept = recent(clock=clock)
    put(kept, "ab", 50)
    put(kept, "c", 101)
    assert (names_of(kept), kept.bytes) == ("ab", 100)
    put(kept, "b", 101)
    assert (names_of(kept), kept.bytes) == ("a", 50), "nor is the value before it"
    clock.advance(61)
    put(kept, "c", 101)
    assert (len(kept), kept.bytes) == (0, 0)


def test_newest_value_stays_where_it_may_until_there_is_another() -> None:
    kept = recent(newest_stays=True)
    put(kept, "ab", 50)
    put(kept, "c", 101)
    assert (names_of(kept), kept.bytes) == ("c", 101)
    put(kept, "d", 1)
    assert (names_of(kept), kept.bytes) == ("d", 1)


SOME = st.tuples(st.sampled_from("abcdef"), st.sampled_from(["put", "use", "take"]), st.integers(0, 120))


@given(st.lists(st.tuples(SOME, st.integers(0, 40)), max_size=30))
def test_bounds_hold_behind_each_use(uses: list[tuple[tuple[str, str, int], int]]) -> None:
    clock, sizes, used = FakeClock(), dict[str, int](), dict[str, float]()
    kept = recent(most=3, clock=clock)
    for (name, what, size), pause_s in uses:
        clock.advance(pause_s)
        was_kept = kept.get(name) is not None
        if what == "put":
            kept.put(name, name.upper(), size)
            sizes[name] = size
        else:
            assert (getattr(kept, what)(name) is not None) == was_kept
        used[name] = clock.monotonic()
        assert kept.bytes == sum(sizes[name] for name in names_of(kept)) <= 100
        assert len(kept) == len(names_of(kept)) <= 3
        if what == "put" or (what == "use" and was_kept):
            assert all(clock.monotonic() - used[name] <= 60 for name in names_of(kept))
