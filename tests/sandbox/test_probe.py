"""The probe of the machine's mechanisms, and the choice among them."""

from pathlib import Path

import pytest

from orchestrator.sandbox.bubblewrap import Bubblewrap
from orchestrator.sandbox.landlock import Landlock
from orchestrator.sandbox.launch import Unconfined
from orchestrator.sandbox.policy_paths import Confinement
from orchestrator.sandbox.probe import NoConfinement, SandboxSupport, choose, probe

BOTH = SandboxSupport(bubblewrap="/usr/bin/bwrap", landlock_abi=7, why=())
NEITHER = SandboxSupport(bubblewrap=None, landlock_abi=0, why=("bubblewrap: no bwrap on PATH",))
READ_ONLY = Confinement(mode="read-only", cwd=Path("/"))


def test_bubblewrap_comes_first_and_landlock_second() -> None:
    only_landlock = SandboxSupport(bubblewrap=None, landlock_abi=7, why=())
    assert isinstance(choose(BOTH, READ_ONLY), Bubblewrap)
    assert isinstance(choose(BOTH, READ_ONLY, "landlock"), Landlock)
    assert isinstance(choose(only_landlock, READ_ONLY), Landlock)


def test_a_machine_without_confinement_refuses_and_names_the_remedy() -> None:
    with pytest.raises(NoConfinement, match=r"no bwrap on PATH.*Install bubblewrap"):
        choose(NEITHER, READ_ONLY)


def test_a_preference_is_not_quietly_replaced() -> None:
    only_landlock = SandboxSupport(bubblewrap=None, landlock_abi=7, why=())
    with pytest.raises(NoConfinement, match="bubblewrap is asked for"):
        choose(only_landlock, READ_ONLY, "bubblewrap")


def test_full_access_needs_no_mechanism() -> None:
    danger = Confinement(mode="danger-full-access", cwd=Path("/"), network=True)
    assert isinstance(choose(NEITHER, danger), Unconfined)


def test_an_old_landlock_names_its_gaps() -> None:
    old = SandboxSupport(bubblewrap=None, landlock_abi=2, why=(), can_mount=False)
    told = " ".join(choose(old, READ_ONLY).gaps)
    for word in (".git", "signalled", "truncated"):
        assert word in told


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\necho 'no user namespaces here' >&2\nexit 1\n", "no user namespaces here"),
        # Pretends to confine and does not: runs what stands after the --.
        ('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n', "the trial ended with 1"),
    ],
)
def test_a_bubblewrap_that_does_not_confine_is_not_believed(
    script: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = tmp_path / "bwrap"
    fake.write_text(script)
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("DENDRO_PROGRAMS", str(tmp_path))
    support = probe()
    assert support.bubblewrap is None
    assert any(reason in why for why in support.why)
