"""Findings of `dendro doctor`, for people and for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal
from urllib.parse import urlsplit

from orchestrator.core.frozen import record

Level = Literal["ok", "warn", "missing"]


@record
class Finding:
    """A finding of a check. `missing`: Dendro does not work like this; `warn`: it does, at a risk."""

    name: str
    level: Level
    detail: str
    remedy: str = ""


def exit_code(findings: Sequence[Finding]) -> int:
    """2 if something needed is missing."""
    return 2 if any(finding.level == "missing" for finding in findings) else 0


def as_json(findings: Sequence[Finding]) -> str:
    """The same for programs."""
    return json.dumps([asdict(finding) for finding in findings], ensure_ascii=False, indent=2)


def without_credentials(url: str) -> str:
    """A URL as it may be shown: user, password and query left out."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
