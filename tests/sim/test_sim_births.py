"""Births that carry packs, in a simulation: announced, given up, refused and removed."""

from __future__ import annotations

import pytest

from sim.births import DAY_S
from sim.campaign import run_batch
from sim.double import opened
from sim.invariants import Broken
from sim.unborn import Unborn
from sim.world import World

ANNOUNCE = ("EVALSHA", "sha", 1, "d:{0}:unborn", "s1")
CREATE = ("EVALSHA", "sha", 1, "d:{0}:session:s1")
PACK = "s1/workspaces/s1/0-0-ab.pack"


def test_births_are_given_up_and_their_packs_removed_in_a_simulation() -> None:
    (outcome,), _ = run_batch([3], "births")
    assert outcome.violation is None
    wanted = (
        "case unborn",
        "reply announce OK",
        "reply give_up OK",
        "reply create GIVEN_UP",
        "reply create OK",
    )
    assert [case for case in wanted if not outcome.reach[case]] == []


@pytest.mark.parametrize(
    ("told", "stored_s", "is_held_against"),
    [
        ([(ANNOUNCE, b"OK")], 10.0, True),
        ([], 10.0, True),
        ([(ANNOUNCE, b"OK")], 1.1 * DAY_S, False),
        ([(ANNOUNCE, b"OK"), (CREATE, b"GIVEN_UP")], 1.1 * DAY_S, True),
        ([(CREATE, b"GIVEN_UP")], 10.0, True),
    ],
)
def test_pack_without_a_session_counts_where_redis_was_told_of_it(
    told: list[tuple[tuple[object, ...], bytes]], stored_s: float, is_held_against: bool
) -> None:
    with opened() as double:
        world = World(0, double, "births")
        assert world.site.watch.folders is not None
        unborn: Unborn = world.site.watch.folders.unborn
        for args, code in told:
            unborn.wrote("announce" if args is ANNOUNCE else "create", args, [code])
        world.loop.skip(stored_s)
        world.site.objects.put(PACK, b"{}")
        if is_held_against:
            with pytest.raises(Broken, match="s1 was"):
                unborn.at_rest()
        else:
            unborn.at_rest()
