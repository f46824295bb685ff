"""The documentation page says what the models say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from orchestrator.protocol import events, ops
from tests.protocol_page import page

DOCS = Path(__file__).parent.parent.parent / "docs" / "protocol"


def test_the_page_is_not_stale() -> None:
    kept = (DOCS / "reference.md").read_text()
    assert kept == page(), "run: python -m tests.protocol_page > docs/protocol/reference.md"


def test_a_reader_gets_the_page_from_the_command_line() -> None:
    command = [sys.executable, "-m", "tests.protocol_page"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == page()


def test_the_page_has_a_section_for_every_operation_and_event() -> None:
    headings = set(re.findall(r"^### `(\w+)`$", page(), re.MULTILINE))
    assert headings >= set(ops.OPS) | set(events.EVENTS)


def test_every_type_says_what_it_is() -> None:
    described = re.findall(r"^(.*) \*\((.+)\)\*$", page(), re.MULTILINE)
    assert len(described) > 200
    assert [sentence for sentence, _ in described if not sentence.endswith((".", "?"))] == []


def test_the_sources_name_every_document_that_the_page_cites() -> None:
    sources = (DOCS / "sources.md").read_text()
    cited = set(re.findall(r"\*\((.+)\)\*$", page(), re.MULTILINE))
    assert {name for name in cited if f"**{name}**" not in sources} <= {"Dendro"}
