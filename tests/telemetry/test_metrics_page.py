"""Texts about metrics: the page, the alerts and the dashboard name what exists."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.telemetry import metric_names
from tests.metrics_page import SECTIONS, metrics_page

REPOSITORY = Path(__file__).parent.parent.parent
ALERTS = REPOSITORY / "ops/prometheus/alerts.yaml"
DASHBOARD = REPOSITORY / "ops/grafana/dendro.json"
_NAME = re.compile(r"\bdendro_\w+")
_SUFFIXES = ("_bucket", "_sum", "_count")


def samples() -> set[str]:
    """The names of all samples that a process may tell."""
    names = set()
    for metric in metric_names.ALL:
        suffixes = _SUFFIXES if metric.kind == "histogram" else ("",)
        names |= {metric.sample + suffix for suffix in suffixes}
    return names


def test_page_of_metrics_is_up_to_date() -> None:
    page = (REPOSITORY / "docs/metrics.md").read_text()
    assert page == metrics_page(), "run: python -m tests.metrics_page > docs/metrics.md"


def test_every_metric_is_in_one_section_of_the_page() -> None:
    shown = [metric for _, _, metrics in SECTIONS for metric in metrics]
    assert sorted(metric.name for metric in shown) == sorted(metric.name for metric in metric_names.ALL)
    declared = [each for each in vars(metric_names).values() if isinstance(each, metric_names.Metric)]
    assert set(declared) == set(metric_names.ALL)


def alerts() -> list[dict[str, Any]]:
    found = yaml.safe_load(ALERTS.read_text())
    return [rule for group in found["groups"] for rule in group["rules"]]


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_alert_has_what_prometheus_wants_and_names_metrics_that_exist(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert re.fullmatch(r"Dendro[A-Za-z]+", rule["alert"])
    assert re.fullmatch(r"\d+[smh]", rule["for"])
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"]["summary"]
    assert "runbook.md#" in rule["annotations"]["runbook_url"]
    names = set(_NAME.findall(rule["expr"]))
    assert names
    assert names <= samples()
    assert rule["expr"].count("(") == rule["expr"].count(")")


def test_alerts_point_at_headings_of_the_run_book() -> None:
    headings = re.findall(r"(?m)^#+ (.+)$", (REPOSITORY / "ops/runbook.md").read_text())
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    named = {rule["annotations"]["runbook_url"].partition("#")[2] for rule in alerts()}
    assert named <= anchors


def test_dashboard_asks_for_metrics_that_exist() -> None:
    dashboard = json.loads(DASHBOARD.read_text())
    queries = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
    assert len(queries) >= 8
    for query in queries:
        assert set(_NAME.findall(query)) <= samples(), query
    places = [(p["gridPos"]["x"], p["gridPos"]["y"]) for p in dashboard["panels"]]
    assert len(set(places)) == len(places)
