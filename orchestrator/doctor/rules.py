"""Findings about the rule files of a worker that is started here."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Finding
from orchestrator.settings import Settings
from orchestrator.tools.rules.library import CommandRules


def judge_rules(settings: Settings) -> Iterator[Finding]:
    """A warning for each file that is left out; a line that counts the rules, if there are any."""
    rules = CommandRules(settings.home, trust_projects=settings.tools.trust_project_rules)
    found = rules.of(settings.session_defaults.cwd)
    for problem in found.problems:
        yield Finding("rules", "warn", problem, "correct the line, then run `dendro doctor` again")
    if found.rules:
        yield Finding("rules", "ok", f"{len(found.rules)} rules about commands")
