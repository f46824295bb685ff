"""The recorded conversations, as values."""

from __future__ import annotations

import json
from pathlib import Path

from tests.acceptance.allowances import Message, Recording

TRANSCRIPTS = Path(__file__).parents[1] / "transcripts"
FOLDERS = sorted(path.parent for path in TRANSCRIPTS.glob("*/sq_eq.ndjson"))


def read(folder: Path) -> Recording:
    """A folder as recorded."""

    def lines(name: str) -> tuple[Message, ...]:
        return tuple(json.loads(line) for line in (folder / name).read_text().splitlines())

    model = json.loads((folder / "model.json").read_text())
    return Recording(
        lines("sq_eq.ndjson"), lines("model_requests.ndjson"), lines("rollout.jsonl"), tuple(model)
    )
