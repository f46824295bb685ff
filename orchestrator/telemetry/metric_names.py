"""Every metric, named and told once: `metrics` makes them, `page` writes them down.

The values of each label are bounded. A `model` or a `pool` is one that settings or sessions name, `other`
from the hundredth on; every other label takes its values from a list in the code.
"""

from __future__ import annotations

from typing import Literal

from orchestrator.core.frozen import record

Kind = Literal["counter", "gauge", "histogram"]
FAST = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
"""Seconds of what should take milliseconds."""
SLOW = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 900.0)
"""Seconds of what models and commands take."""


@record
class Metric:
    """A metric: its name, its labels, and what it counts."""

    kind: Kind
    name: str
    text: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def sample(self) -> str:
        """The name as a query has it."""
        return f"{self.name}_total" if self.kind == "counter" else self.name


def _counter(name: str, text: str, *labels: str) -> Metric:
    return Metric("counter", f"dendro_{name}", text, labels)


def _gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric("gauge", f"dendro_{name}", text, labels)


def _seconds(name: str, text: str, *labels: str, slow: bool = False) -> Metric:
    return Metric("histogram", f"dendro_{name}_seconds", text, labels, SLOW if slow else FAST)


CLAIMS = _counter("claims", "Sessions that this worker took.", "pool")
CLAIMS_ENDED = _counter(
    "claims_ended", "Claims that are over: `parked`, `yielded`, `lost`, `handed on`.", "how"
)
PARKED = _counter(
    "sessions_parked",
    "Sessions that were given back because nothing can go on: `idle`, `closed`, or what they wait for "
    "(`awaiting_approval`, `awaiting_answer`, `waiting` for agents, `retrying`, `paused` by a budget).",
    "status",
)
TAKEOVERS = _counter("takeovers", "Sessions whose worker was lost in the middle of their work.")
HELD = _gauge("sessions_held", "Sessions that this worker holds now.")
ROOM = _gauge("worker_concurrency", "Sessions that this worker runs at once (`worker.concurrency`).")
RENEWALS = _counter(
    "renewals",
    "Renewals of claims: `renewed`; `lost`, the claim is over; `unanswered`, Redis did not answer.",
    "outcome",
)
SUBMIT_TO_CLAIM = _seconds(
    "submit_to_claim", "From a submission's arrival in Redis to the claim that finds it first.", "pool"
)
CLAIM_TO_REQUEST = _seconds(
    "claim_to_request", "From a claim to the commit that begins its first model request."
)
COMMIT = _seconds("commit", "From the sending of a commit to its answer.")
ENTRIES = _counter("rollout_entries", "Entries that were committed to rollouts.")
TASKS_BEGUN = _counter(
    "tasks_begun", "Tasks that began: `user`, `compact`, `plan`, `review`, `shell`.", "kind"
)
TASKS_ENDED = _counter(
    "tasks_ended",
    "Tasks that ended: `completed`, `failed`, `interrupted`, `replaced`, `canceled`.",
    "kind",
    "outcome",
)
TURNS = _counter("turns", "Turns: model requests that were answered to their end.", "purpose")
REQUEST = _seconds(
    "model_request",
    "From the sending of a model request to its end: `completed`, `retry`, `waiting` for a rate limit, "
    "`failed`, `stopped`.",
    "model",
    "outcome",
    slow=True,
)
FIRST_TOKEN = _seconds(
    "first_token", "From the sending of a model request to the first event of its answer.", "model", slow=True
)
RESPONSE_TO_COMMIT = _seconds("response_to_commit", "From the last event of an answer to its commit.")
TOKENS = _counter(
    "model_tokens",
    "Tokens as providers bill them: `input` (without those cached), `cached_input`, `output` (with "
    "reasoning); and `reasoning_output`, which is in `output` too.",
    "model",
    "kind",
)
COST = _counter("model_cost_dollars", "Cost of model requests, by the prices of the settings.", "model")
RETRIES = _counter(
    "model_retries",
    "Model requests that are sent again: `retry` after a fault, `waiting` for a limit.",
    "kind",
)
CALLS = _seconds(
    "tool_call",
    "From the commit that begins a tool call to the commit that ends it: commands (`exec`, `stdin`), patches "
    "(`patch`), tools of MCP servers (`mcp`) and of programs (`custom`), and the others by their kind.",
    "kind",
    slow=True,
)
ERRORS = _counter("errors", "`error` events, by the kind that they name (`codex_error_info`).", "kind")
KILLS = _counter(
    "supervisor_kills",
    "Commands that the supervisor killed: `timeout`, or `killed` by a stop, a lost claim or a drain.",
    "why",
)
QUEUE_DEPTH = _gauge("queue_depth", "Sessions that are due in the pool and that no worker holds.", "pool")
QUEUE_AGE = _gauge(
    "queue_age_seconds", "Age of the oldest submission of the sessions that are next in turn.", "pool"
)
LEASED = _gauge("sessions_leased", "Sessions of the pool that workers hold, of all workers.", "pool")
OPEN_REQUESTS = _gauge("open_requests", "Approvals and questions that wait for a person, in the deployment.")
CONNECTIONS = _gauge(
    "door_connections", "Connections of clients that are open: `app-server`, `sq-eq`, `window`.", "door"
)
CONNECTED = _counter("door_connections_opened", "Connections of clients that were accepted.", "door")
STATED = _counter("notary_statements", "Statements that the notary has signed.")
REFUSED = _gauge(
    "notary_logs_refused",
    "Logs about which nothing is stated, because their past is not what was stated: `rewound`, `changed`, "
    "`vanished`, `missing`, `head`, `unreadable`.",
    "kind",
)
LOOKED = _gauge("notary_looked_timestamp_seconds", "Unix time of the last look that went to its end.")
BUILD = _gauge("build_info", "1, with the version of the program.", "version")

ALL: tuple[Metric, ...] = (
    CLAIMS,
    CLAIMS_ENDED,
    PARKED,
    TAKEOVERS,
    HELD,
    ROOM,
    RENEWALS,
    SUBMIT_TO_CLAIM,
    CLAIM_TO_REQUEST,
    COMMIT,
    ENTRIES,
    TASKS_BEGUN,
    TASKS_ENDED,
    TURNS,
    REQUEST,
    FIRST_TOKEN,
    RESPONSE_TO_COMMIT,
    TOKENS,
    COST,
    RETRIES,
    CALLS,
    ERRORS,
    KILLS,
    QUEUE_DEPTH,
    QUEUE_AGE,
    LEASED,
    OPEN_REQUESTS,
    CONNECTIONS,
    CONNECTED,
    STATED,
    REFUSED,
    LOOKED,
    BUILD,
)
WORKERS = frozenset(ALL[: ALL.index(QUEUE_DEPTH)])
NOTARY = (STATED, REFUSED, LOOKED)
"""Those of a notary's process, which nobody else tells."""
