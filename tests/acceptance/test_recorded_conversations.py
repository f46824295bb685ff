"""Every recorded conversation, held again with the program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.acceptance.allowances import decided
from tests.acceptance.comparator import compare_events, compare_requests, compare_rollout
from tests.acceptance.conversation import hold, scene
from tests.acceptance.recordings import FOLDERS, TRANSCRIPTS, read
from tests.acceptance.wires import expected, over

NEW_PYTHON = "exec_auto"
"""The conversation whose processes start as users start them."""


@pytest.mark.slow
@pytest.mark.parametrize(("wire", "name"), over([folder.name for folder in FOLDERS]))
async def test_a_recorded_client_is_served_as_the_peer_served_it(
    wire: str, name: str, tmp_path: Path
) -> None:
    folder = TRANSCRIPTS / name
    recorded = decided(read(folder))
    async with scene(tmp_path, (folder / "config.toml").read_text(), recorded.model, wire) as place:
        bindings = place.setup.bindings()
        async with place.proto(preloaded=name != NEW_PYTHON) as proto:
            exit_code = await hold(proto, recorded.lines, bindings)
    held = place.held
    found = compare_events(recorded.events(), held.events, bindings)
    asked = expected(recorded.requests, wire, recorded.model)
    found += compare_requests(asked, held.requests, bindings)
    found += compare_rollout(recorded.rollout, held.rollout, bindings)
    assert not found, "\n".join([*map(str, found), held.told()])
    assert exit_code == 0
