"""The documentation page says what the models say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from orchestrator.protocol import events, ops, reference

DOCS = Path(__file__).parent.parent.parent / "docs" / "protocol"


def test_the_page_is_not_stale() -> None:
    page = (DOCS / "reference.md").read_text()
    assert page == reference.page(), (
        "run: python -m orchestrator.protocol.reference > docs/protocol/reference.md"
    )


def test_a_reader_gets_the_page_from_the_command_line() -> None:
    command = [sys.executable, "-m", "orchestrator.protocol.reference"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == reference.page()


def test_the_page_has_a_section_for_every_operation_and_event() -> None:
    headings = set(re.findall(r"^### `(\w+)`$", reference.page(), re.MULTILINE))
    assert headings >= set(ops.OPS) | set(events.EVENTS)


def test_every_type_says_what_it_is() -> None:
    described = re.findall(r"^(.*) \*\((.+)\)\*$", reference.page(), re.MULTILINE)
    assert len(described) > 200
    assert [sentence for sentence, _ in described if not sentence.endswith((".", "?"))] == []


def test_the_sources_name_every_document_that_the_page_cites() -> None:
    sources = (DOCS / "sources.md").read_text()
    cited = set(re.findall(r"\*\((.+)\)\*$", reference.page(), re.MULTILINE))
    assert {name for name in cited if f"**{name}**" not in sources} <= {"Dendro"}
