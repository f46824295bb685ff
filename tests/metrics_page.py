"""Writes `docs/metrics.md` from the catalogue: `python -m tests.metrics_page > docs/metrics.md`."""

from __future__ import annotations

from orchestrator.telemetry import metric_names
from orchestrator.telemetry.metric_names import Metric

INTRODUCTION = """\
# Metrics and health

This page is generated: `python -m tests.metrics_page > docs/metrics.md`.

A worker with `worker.metrics_port` answers three paths on that port, on loopback unless `worker.metrics_host`
says otherwise:

| path | answer |
|---|---|
| `/healthz` | 200 while the process's event loop turns; no answer means that it should be restarted |
| `/readyz` | 200, or 503 with the reason in words: it drains, or Redis does not answer |
| `/metrics` | all of the metrics below, in Prometheus's text format |

```sh
dendro -c worker.metrics_port=9464 worker
curl http://127.0.0.1:9464/metrics
```

A gateway (`dendro serve`, `dendro app-server --listen`) does the same with `gateway.metrics_port` and
`gateway.metrics_host`. Its own port answers `/healthz` and `/readyz`, too, for those that balance its load.

A [notary](notary.md) does so with `receipts.metrics_port`, on loopback alone. An alarm is
`dendro_notary_logs_refused` above 0, or a `dendro_notary_looked_timestamp_seconds` that is minutes ago.

Nobody is asked who they are: whoever reaches the port reads how much work there is, which models are asked
and what they cost, and nothing of any session. Put it on an address that only your monitoring reaches. Port 0
takes a free port, which is printed; a port that is taken is a warning, and the process goes on without.

Every label has few values: names of pools and models come from settings and sessions, and beyond the first
hundred they are `other`. A session's id, a person's name or a model's text is never one. Durations are
measured within one worker: what was begun by a worker that is lost is counted, and its duration is not.
Without the setting nothing is counted.
[ops/prometheus](../ops/prometheus) has a configuration and alerts, and
[ops/grafana](../ops/grafana/dendro.json) a dashboard; [tracing](tracing.md) is the view of single sessions.
"""
SECTIONS: tuple[tuple[str, str, tuple[Metric, ...]], ...] = (
    (
        "Workers",
        "Each worker counts what it does itself.",
        tuple(metric for metric in metric_names.ALL if metric in metric_names.WORKERS),
    ),
    (
        "Deployment",
        "Asked of Redis when somebody scrapes; all that serve a pool tell the same: take the maximum.",
        (metric_names.QUEUE_DEPTH, metric_names.QUEUE_AGE, metric_names.LEASED, metric_names.OPEN_REQUESTS),
    ),
    (
        "Doors",
        "Each gateway counts its own connections.",
        (metric_names.CONNECTIONS, metric_names.CONNECTED),
    ),
    (
        "The notary",
        "of a process with `receipts.metrics_port`",
        (metric_names.STATED, metric_names.REFUSED, metric_names.LOOKED),
    ),
    ("All", "", (metric_names.BUILD,)),
)


def metrics_page() -> str:
    """The whole page."""
    parts = [INTRODUCTION]
    for title, about, metrics in SECTIONS:
        parts.append(f"\n## {title}\n\n" + (f"{about}\n\n" if about else ""))
        parts.append("| metric | kind | labels | what it is |\n|---|---|---|---|\n")
        parts += [_row(metric) for metric in metrics]
    return "".join(parts)


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.sample}` | {metric.kind} | {labels} | {metric.text} |\n"


if __name__ == "__main__":
    print(metrics_page(), end="")
