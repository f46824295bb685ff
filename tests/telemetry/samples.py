"""The figures of a page of metrics, as a monitoring system reads them."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

Figures = dict[tuple[str, ...], float]
"""Values by the sample's name and its labels' values, in the order of their names."""


def figures(page: bytes) -> Figures:
    """Every sample of a page, but for the times when it was made."""
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if not sample.name.endswith("_created")
    }
