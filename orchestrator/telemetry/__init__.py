"""Telemetry: what operators see of a process, beside its logs.

    observer     the moments that the runtime reports;  observers: several that receive each of them
    catalogue    every metric: name, labels, text
    metrics      the metrics of one process, counted
    work_metrics  the observer that counts what workers do
    fleet        what a scrape asks of Redis: queues, open requests
    health       the answers to `/healthz`, `/readyz` and `/metrics`
    listener     these answers on a port of their own
    spans        the spans of a session, as a fold over its log;  tracing: these, by OpenTelemetry
    page         `docs/metrics.md`, from the catalogue

Nothing here decides anything, and nothing of a session depends on it. No text of a person or a model, and no
session's id, is ever a label of a metric.
"""
