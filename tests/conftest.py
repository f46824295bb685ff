"""Rules of every test: no example has a deadline, and what a file leaves unclosed is found there."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests import compiled, probed
from tests.commit_seed import examples
from tests.costs import Costs

probed.once()

# A busy machine is no defect, but hypothesis takes an example that came late for one.
settings.register_profile("dendro", deadline=None, max_examples=examples(100))
settings.load_profile("dendro")


def _leave_repositories() -> None:
    """Puts temporary folders where no folder above has a `.git`.

    In a git repository commands may write, and the folder's mark stands in its `.git`: tests that make a
    folder of their own expect that it is in none.
    """
    own = tempfile.gettempdir()
    places = (place for place in (own, "/tmp", "/var/tmp", "/dev/shm") if os.access(place, os.W_OK))
    free = next((place for place in places if not _has_repository_above(Path(place).resolve())), own)
    if free != own:
        os.environ["TMPDIR"] = tempfile.tempdir = free


def _has_repository_above(place: Path) -> bool:
    return any((folder / ".git").exists() for folder in (place, *place.parents))


_leave_repositories()

# What is imported and collected stays; to look through it again and again takes a tenth of the time.
gc.disable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Returns twice the number of cores and one more: most of its time a test waits, as for leases.

    With three times the number it took no less, and leases ran out here and there.
    """
    return 2 * (os.cpu_count() or 1) + 1


def pytest_configure(config: pytest.Config) -> None:
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    config.pluginmanager.register(Costs(workers), "dendro-costs")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes() -> None:
    compiled.compile_all()
    compiled.fill_cache_of_hypothesis()


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    compiled.import_tests(session.config)


def pytest_collection_finish() -> None:
    """Freezes imported objects: no collection needs to look at them again."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _nothing_left_unclosed() -> Iterator[None]:
    """Collects behind each file.

    A connection or a loop that was not closed warns when it is collected; without this the
    warning, which is an error, lands in whatever test runs then. What is left is of use later, and is not
    looked through behind each of the next files.
    """
    yield
    gc.collect()
    gc.freeze()
