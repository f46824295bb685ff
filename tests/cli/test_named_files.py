"""Files that a person names to a command: each is read up to a bound, and a pipe is never waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.cli import approvals
from orchestrator.cli import bundle as bundles
from orchestrator.cli import witness as commands
from orchestrator.cli.invocation import read_named
from orchestrator.rollouts import RolloutError, file_format
from orchestrator.rollouts.bundle_receipts import MOST_TRUST_BYTES, Trust
from orchestrator.rollouts.replay import fold_file
from orchestrator.rollouts.signed_notes import MOST_KEY_BYTES, MOST_NOTE_BYTES, BadNote, read_private_key
from orchestrator.rollouts.verify import audit_file
from orchestrator.rollouts.witnesses import MOST_SEEN_BYTES, MOST_STAMP_BYTES, NotWitnessed, Witness
from orchestrator.terminal.faults import ExitCode, Fault
from orchestrator.views.audit_who import logs_of_export
from tests.rollouts import bundles as b

SETTINGS: Any = SimpleNamespace(receipts=SimpleNamespace(url="memory://named"))


def receipts(**named: Path) -> object:
    given = {"since": None, "at": None, "stamp": None, **named}
    return bundles._receipts(SETTINGS, "", "all", given["since"], given["at"], given["stamp"])


CHECKPOINT = (
    "dendro.example/fleet\n14\nRL1sAYSNPqeHkVI3A+8wrjDbv/idxsOIAk1wpy23oUQ=\n\n"
    "— dendro.example/fleet "
    "HWgtIlP7G3GGehzP3L9IT/Mt6GjAydijNTqrIte2aejJ50zvYQ9TEjNKrla2stEmwKfykBN+B87T4qwVR6UWunYpiwU=\n"
)
"""That of docs/protocol/bundle.md."""


def tsa(file: Path, roots: Path | None = None) -> None:
    """Asks `dendro anchor tsa` whether a file is a time stamp of a checkpoint."""
    (file.parent / "note").write_text(CHECKPOINT)
    commands.tsa(file.parent / "note", file, "", None, roots)


READERS: dict[str, tuple[int, Callable[[Path], object]]] = {
    "verify --trust": (MOST_TRUST_BYTES, bundles.read_trust),
    "verify --receipt": (MOST_TRUST_BYTES, lambda file: bundles._holding(cast(Trust, object()), file)),
    "bundle --since": (MOST_NOTE_BYTES, lambda file: receipts(since=file)),
    "bundle --checkpoint": (MOST_NOTE_BYTES, lambda file: receipts(at=file)),
    "approvals --sign": (MOST_KEY_BYTES, lambda file: approvals._signer(file, "ada")),
    "anchor tsa NOTE": (MOST_NOTE_BYTES, lambda file: commands.tsa(file, file, "", None, None)),
    "anchor tsa --reply": (MOST_STAMP_BYTES, tsa),
    "anchor tsa --roots": (
        commands.MOST_PEM_BYTES,
        lambda file: tsa(file, roots=file),
    ),
}


@pytest.mark.parametrize("name", READERS)
def test_file_that_is_too_large_or_a_pipe_is_refused_in_words(name: str, tmp_path: Path) -> None:
    most, read = READERS[name]
    large, pipe = tmp_path / "large", tmp_path / "pipe"
    with large.open("wb") as file:
        file.truncate(most + 1)
    os.mkfifo(pipe)
    for path, words in ((large, f"more than {most:,} bytes"), (pipe, "Not a regular file")):
        with pytest.raises(Fault, match=words) as told:
            read(path)
        assert told.value.code == ExitCode.USAGE
    with pytest.raises(Fault, match="No such file"):
        read(tmp_path / "none")


def test_file_of_the_whole_bound_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 64)
    assert read_named(tmp_path / "file", 64) == b"x" * 64


def test_key_and_state_of_a_witness_have_bounds(tmp_path: Path) -> None:
    for most in (MOST_KEY_BYTES, MOST_SEEN_BYTES):
        with (tmp_path / f"{most}").open("wb") as file:
            file.truncate(most + 1)
    with pytest.raises(BadNote, match="no private key"):
        read_private_key(tmp_path / f"{MOST_KEY_BYTES}")
    witness = Witness(tmp_path / f"{MOST_SEEN_BYTES}", b.WITNESS, [b.OPERATOR.key])
    with pytest.raises(NotWitnessed, match="no state"):
        witness.size("fleet.example/home")


def test_line_of_an_export_that_no_log_has_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_format, "MOST_LINE_BYTES", 1_000)
    path = tmp_path / "run.jsonl"
    path.write_bytes(b'{"format":"dendro-rollout",' + b" " * 1_000 + b'"version":1}\n')
    readers: list[Callable[[], object]] = [
        lambda: audit_file(path, None, None),
        lambda: fold_file(path, None, None),
        lambda: logs_of_export(path, None),
    ]
    for read in readers:
        with pytest.raises(RolloutError, match="line 1: it has more than 1,000 bytes"):
            read()
