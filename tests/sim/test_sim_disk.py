"""Faults of a simulated keeper's disk: each way to change it may be where its work ends."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sim.disk import Fault, Killed, faulty

CHANGES: dict[str, Callable[[Path], object]] = {
    "open": lambda there: open(there / "new", "w"),  # noqa: PTH123, SIM115
    "append": lambda there: open(there / "old", mode="ab"),  # noqa: PTH123, SIM115
    "write_bytes": lambda there: (there / "new").write_bytes(b""),
    "touch": lambda there: (there / "new").touch(),
    "os.open": lambda there: os.open(there / "new", os.O_WRONLY | os.O_CREAT),
    "fdopen": lambda there: os.fdopen(1, "w", closefd=False),
    "mkstemp": lambda there: tempfile.mkstemp(dir=there),
    "makedirs": lambda there: os.makedirs(there / "a" / "b"),  # noqa: PTH103
    "symlink": lambda there: (there / "new").symlink_to("old"),
    "link": lambda there: os.link(there / "old", there / "new"),
    "rename": lambda there: (there / "old").rename(there / "new"),
    "replace": lambda there: os.replace(there / "old", there / "new"),  # noqa: PTH105
    "unlink": lambda there: (there / "old").unlink(),
    "remove": lambda there: os.remove(there / "old"),  # noqa: PTH107
    "rmdir": lambda there: (there / "empty").rmdir(),
    "truncate": lambda there: os.truncate(there / "old", 0),
}


def _laid_out(there: Path) -> list[tuple[str, bytes | None]]:
    return sorted((str(at), at.read_bytes() if at.is_file() else None) for at in there.rglob("*"))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_keeper_dies_of_a_fault_before_the_change_is_made(
    tmp_path: Path, change: Callable[[Path], object]
) -> None:
    (tmp_path / "old").write_bytes(b"text")
    (tmp_path / "empty").mkdir()
    before = _laid_out(tmp_path)
    with pytest.raises(Killed), faulty(Fault(0, kills=True), str(tmp_path)):
        change(tmp_path)
    assert _laid_out(tmp_path) == before


def test_disk_without_room_takes_no_file_and_lets_one_go(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"text")
    with faulty(Fault(0, kills=False), str(tmp_path)):
        (tmp_path / "old").unlink()
        with pytest.raises(OSError, match="No space left"):
            (tmp_path / "new").write_bytes(b"")
    (tmp_path / "new").write_bytes(b"")


def test_what_is_read_or_lies_elsewhere_meets_no_fault(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"text")
    fault = Fault(0, kills=True)
    with faulty(fault, str(tmp_path / "root")):
        assert (tmp_path / "old").read_bytes() == b"text"
        (tmp_path / "new").write_bytes(b"")
        os.close(os.open(tmp_path / "old", os.O_RDONLY))
    assert not fault.met


HOOKED = """
import sys
from sim.disk import Fault, faulty
sys.addaudithook = lambda hook: sys.exit("a hook stays for as long as the process lasts")
with faulty(Fault(1, kills=True), "/nowhere"):
    open("/dev/null", "w").close()
"""


def test_fault_of_a_disk_leaves_no_audit_hook_behind() -> None:
    """The interpreter would call it for each record that is made."""
    subprocess.run([sys.executable, "-c", HOOKED], check=True, timeout=60)
