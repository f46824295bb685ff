"""Golden rollouts: `evolve` gains cases and never changes one."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import orjson
import pytest

from orchestrator.core import CORE_VERSION
from orchestrator.core.entries import decode_entry
from orchestrator.core.evolve import fold
from orchestrator.core.snapshot import decode, digest, encode
from orchestrator.core.state import State
from tests.core.golden import NAMES, digests, folded, lines, recorded, recorded_digests
from tests.core.lives import LIVES


def test_every_life_has_a_golden_rollout() -> None:
    assert set(LIVES) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_old_log_still_folds_to_the_state_that_it_had(name: str) -> None:
    now = orjson.loads(encode(folded(name)))
    assert kept(recorded(name), now) == recorded(name)


def kept(before: Any, now: Any) -> Any:
    """Returns `now` without the fields that newer versions added."""
    if isinstance(before, dict) and isinstance(now, dict):
        return {name: kept(before[name], value) for name, value in now.items() if name in before}
    if isinstance(before, list) and isinstance(now, list) and len(before) == len(now):
        return [kept(old, new) for old, new in zip(before, now, strict=True)]
    return now


@pytest.mark.parametrize("name", NAMES)
def test_digest_changes_only_with_the_core_version(name: str) -> None:
    """A snapshot of before is used while the version is the same: then it has to be what a fold gives."""
    golden = recorded_digests()
    if golden["core_version"] == CORE_VERSION:
        assert digests(name) == golden["digests"][name], "CORE_VERSION has to grow, or evolve changed"


@pytest.mark.parametrize("name", NAMES)
def test_fold_from_a_snapshot_at_any_place_gives_the_same_state(name: str) -> None:
    entries = [decode_entry(line) for line in lines(name)]
    for place in range(0, len(entries), 7):
        middle = decode(encode(fold(State(), entries[:place], 1)))
        assert digest(fold(middle, entries[place:], place + 1)) == digest(folded(name))


@pytest.mark.parametrize("name", sorted(LIVES))
def test_live_session_and_its_replay_agree(name: str) -> None:
    session = LIVES[name]()
    assert digest(session.replayed()) == session.digest


def test_state_with_a_mapping_of_another_kind_is_written_as_one_with_a_dict() -> None:
    limits = {"primary": {"used_percent": 7.0}, "secondary": None}
    plain, proxied = State(rate_limits=limits), State(rate_limits=MappingProxyType(limits))
    assert encode(proxied) == encode(plain)
    assert decode(encode(proxied)) == plain
