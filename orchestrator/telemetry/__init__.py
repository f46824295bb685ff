"""Telemetry: what operators see of a process, beside its logs.

    observer     the moments that the runtime reports;  observers: several that hear each of them
    catalogue    every metric: name, labels, text
    metrics      the metrics of one process, counted
    work         the observer that counts what workers do
    fleet        what a scrape asks of Redis: queues, open requests
    health       the answers to `/healthz`, `/readyz` and `/metrics`
    listener     these answers on a port of their own
    page         `docs/metrics.md`, from the catalogue

Nothing here decides anything, and nothing of a session depends on it: no text of a person or a model, and no
session's id, is ever a label.
"""
