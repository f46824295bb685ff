"""Golden rollouts: logs as some version wrote them, with the state that their fold must always give.

    python -m tests.core.golden

writes what is missing: a log and a state for every life that has none (never over an
existing one), and the digests of all of them for this core version.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from orchestrator.core import CORE_VERSION
from orchestrator.core.entries import decode_entry
from orchestrator.core.evolve import fold
from orchestrator.core.snapshot import digest, encode
from orchestrator.core.state import State
from tests.core.lives import LIVES

FOLDER = Path(__file__).parent / "golden"
DIGESTS = FOLDER / "digests.json"
EVERY = 8
NAMES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def lines(name: str) -> list[bytes]:
    return (FOLDER / f"{name}.jsonl").read_bytes().splitlines()


def folded(name: str, seq: int | None = None) -> State:
    """The state that today's fold gives of yesterday's log, through entry `seq` if one is named."""
    return fold(State(), map(decode_entry, lines(name)[:seq]), 1)


def digests(name: str) -> dict[str, str]:
    """The state's digest at every few entries, in the middle of tasks too."""
    last = len(lines(name))
    return {str(seq): digest(folded(name, seq)) for seq in (*range(EVERY, last, EVERY), last)}


def recorded(name: str) -> Any:
    """The state as it was when the log was recorded."""
    return orjson.loads((FOLDER / f"{name}.state.json").read_bytes())


def recorded_digests() -> Any:
    return orjson.loads(DIGESTS.read_bytes())


def _record(name: str) -> None:
    log = FOLDER / f"{name}.jsonl"
    if log.exists():
        return
    session = LIVES[name]()
    log.write_bytes(b"\n".join(session.lines) + b"\n")
    pretty = orjson.dumps(orjson.loads(encode(session.state)), option=orjson.OPT_INDENT_2)
    (FOLDER / f"{name}.state.json").write_bytes(pretty + b"\n")


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name in LIVES:
        _record(name)
    names = sorted(path.stem for path in FOLDER.glob("*.jsonl"))
    record = {"core_version": CORE_VERSION, "digests": {name: digests(name) for name in names}}
    DIGESTS.write_bytes(orjson.dumps(record, option=orjson.OPT_INDENT_2) + b"\n")


if __name__ == "__main__":
    main()
