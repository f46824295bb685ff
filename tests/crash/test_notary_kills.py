"""A notary that is killed at any write signs one root for each size, of one history."""

from __future__ import annotations

from pathlib import Path

from tests.commit_seed import NIGHT, base_seed
from tests.crash.notary_kills import run


def test_notary_that_is_killed_at_any_write_never_signs_two_roots_of_a_size(tmp_path: Path) -> None:
    kills, sizes = run(tmp_path, 500 if NIGHT else 9, base_seed())
    assert kills >= 9
    assert sizes > 0
