"""Records that go into the broker and come out: plain frozen values, payloads as opaque bytes.

Knows neither Redis nor the protocol's models. Ids of queue entries are texts `<n>-0`; cursors are
such ids, `0-0` before the first. Chain values are 32 raw bytes; `hash8` is the first 8 hex
digits of one. Milliseconds are Redis's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from time import gmtime, strftime
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    Protocol,
    TypedDict,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import orjson

from orchestrator.broker.errors import Corrupt
from orchestrator.config_keys import RedisSettings, WorkerSettings, WorkspaceSettings
from orchestrator.core import CORE_VERSION
from orchestrator.core.chain import payload_digest
from orchestrator.core.commit_parts import TreePart
from orchestrator.core.frozen import record
from orchestrator.core.ids import AgentId, SessionId, TreeId

if TYPE_CHECKING:
    from orchestrator.core.commit_parts import Approval, NewEntry, NewEvent, NewSession, Timer, TreeEvent

# ── tree records ──────────────────────────────────────────────────────────────────────────────────
# Records of what several sessions of a tree share: log, registry, budgets. Plain frozen values.
#
# The broker counts and orders these and never reads their payloads. `agents:<tree>`, the registry's
# projection, is one hash of flat fields:
#
#     root             its session; `tree_seq`, the tree log's end; `last_agent`, the last number reserved
#     wall_from        when its wall clock began
#     turn:<pool>      its last fair turn there
#     a:<id>           what the caller says of the agent (a SubagentSummary), by `summary`
#     d:<id>           the turn of it that its parent has read, by `summary`
#     s:<id>           its session; written at its birth
#     m:<id>  i:<id>   messages and interrupts in its inbox, as of the last commit that changed them
#     u:<id>           what its requests used: tokens, cost, requests
#     cancel:<id>      a cancel flag: commits that name it in `unless_flagged` are refused
#     limit:<name>     how far the counter <name> may go; absent: as far as it likes
#     <name>           a counter, changed by a `Debit`: slots, spawned
#     spent:<kind> held:<kind> guessed:<kind>   a budget: used, reserved, and used by estimate alone
#     r:<session>:<request>                     a reservation: tokens, cost, requests
#     wait:reserved wait:spent                  who waits for room, and by which timer
#     recent           how many requests ended in each of the last twelve five minutes, see `Recent`
#     said:<what>      an event with `once` was written
#     raised:<change>  a change of limits was made


BudgetKind = Literal["tokens", "cost", "requests", "wall"]
BUDGET_KINDS: tuple[BudgetKind, ...] = ("tokens", "cost", "requests", "wall")


@record
class Spend:
    """The cost of model requests: tokens, millionths of the currency, and the number of requests."""

    tokens: int = 0
    cost: int = 0
    requests: int = 0

    def __add__(self, other: Spend) -> Spend:
        return Spend(self.tokens + other.tokens, self.cost + other.cost, self.requests + other.requests)


UNPRICED = -1
"""The cost of a reservation whose price is not known."""


@record
class Reservation:
    """The most that a request of this session may use, by estimate; held until it is settled.

    Refused `budget_unpriced` if the tree limits its cost and this one's is not known, `budget_spent`
    if a budget is used up, `budget_reserved` if only what others hold is in the way. With nothing held
    it is admitted though it may pass the limit: the overshoot is what is in flight. Reserving a request
    again replaces its reservation.
    """

    request: str
    amount: Spend


@record
class Settlement:
    """The request ended. Usage is counted though nothing was reserved for it.

    None counts what was reserved, as an estimate: of a request whose end nobody saw.
    """

    request: str
    used: Spend | None
    model: str = ""
    """For the usage of the day; empty where nobody knows it."""


SPEND_DAYS: Final = 400
"""So many days the usage of a day is kept."""


def day_of(at_ms: int) -> str:
    """The day of a time, in UTC, as `2026-11-28`."""
    return strftime("%Y-%m-%d", gmtime(at_ms / 1000))


@record
class DaySpend:
    """The usage that was settled on one day for one model and person.

    Without model and person it is the rest of a day on which there were too many to keep apart.
    """

    day: str
    namespace: str
    model: str
    who: str
    spend: Spend


@record
class BudgetWait:
    """The session waits until `amount` may fit: `timer`, which it has or sets, is made due then.

    Refused `budget_free` if it fits by now: what was in the way went between two commits. Also if its cost is
    not known and a budget of cost has begun: that is no room to wait for, and refuses the reservation itself.
    """

    amount: Spend
    timer: str


@record
class BudgetPart:
    """The part of a commit that concerns its tree's budgets."""

    settlements: tuple[Settlement, ...] = ()
    """Counted before `reservation` and `wait` are looked at."""
    reservation: Reservation | None = None
    wait: BudgetWait | None = None
    within: bool = False
    """Refused `budget_spent` if a budget of the tree is used up."""


@record
class Account:
    """A budget of a tree. `wall` is in milliseconds, and only time spends it."""

    kind: BudgetKind
    spent: int
    held: int
    limit: int | None
    guessed: int = 0
    """How much of `spent` is estimates."""


@record
class LimitChange:
    """More (or less) of some limits of a tree, once per `change` id.

    A budget that the tree did not have begins at what is used by now; other missing limits stay missing.
    """

    change: str
    add: Mapping[str, int]
    """Amounts by name: slots, spawned, or a budget's kind."""
    event: TreeEvent | None = None
    """Its only possible target is the root."""


@record
class LimitsRaised:
    """The limits as they are now; False if this change was made before."""

    limits: Mapping[str, int]
    fresh: bool
    woken: int
    """How many agents waited for room in a budget and look again."""
    now_ms: int


@record
class InboxDepth:
    """Messages enqueued and not yet given to the model."""

    session: SessionId
    regular: int
    interrupts: int


@record
class TreeEntry:
    """An entry of the tree log, with what only Redis knew when it was written."""

    tree_seq: int
    payload: bytes
    session: SessionId
    seq: int
    head: bytes
    depths: tuple[InboxDepth, ...]
    at_ms: int
    about: bytes = b""
    salt: bytes = b""
    """Of its digest in the log's Merkle tree; empty where no notary was named when it was written."""


@record
class RegisteredAgent:
    """An agent in the accounts of its tree. `core.registry` reads what it says of itself."""

    session: SessionId
    used: Spend


@record
class Registry:
    """The projection of a tree at one moment, as of `tree_seq`."""

    tree: TreeId
    tree_seq: int
    agents: Mapping[AgentId, RegisteredAgent]
    counters: Mapping[str, int]
    """`slots`, `spawned` and whatever else was drawn from."""
    limits: Mapping[str, int]
    budget: Mapping[BudgetKind, Account]
    reserved: Mapping[str, Spend]
    """Reservations by `<session>:<request>`."""
    waiting: Mapping[SessionId, str]
    """The sessions that wait for a budget: because it is `spent`, or `reserved` by others."""


@record
class ClaimState:
    """Where a session of a tree stood when its claim was to be taken.

    `free`: nobody held it. `held`: its holder was heard from too lately, and goes on. `revoked`: the
    claim is over; the session is due, or will be when its holder has stopped. `gone`: there is no such
    session. `saved`: unsaved changes were to be given up, and there are none.
    """

    session: SessionId
    state: Literal["free", "held", "revoked", "gone", "saved"]
    epoch: int
    worker: str | None


# ── records ───────────────────────────────────────────────────────────────────────────────────────


Release = Literal["keep", "park", "yield"]
START = "0-0"
"""The cursor before the first entry."""
NO_TREE_PART, NO_BUDGET_PART = TreePart(), BudgetPart()
_REDIS, _WORKER, _WORKSPACE = RedisSettings(), WorkerSettings(), WorkspaceSettings()


@record
class BrokerConfig:
    """Bounds and durations of one deployment; every process of it should agree."""

    prefix: str = _REDIS.prefix
    shards: int = _REDIS.shards
    core_version: int = CORE_VERSION
    """The core version that this process's `evolve` can fold; newer workers serve sessions that need more."""
    lease_s: float = _WORKER.lease_s
    watch_s: float = 0.0
    """Seconds for which a process watches Redis's clock before it takes a session whose lease has run out: a
    lease, where clocks may be set. 0 believes whatever Redis says."""
    max_tries: int = 5
    """The claim without progress that quarantines a session."""
    quarantine_event: bytes = b"{}"
    """The `error` event that a quarantined session's followers get, as stored bytes."""
    sq_max_entries: int = 1_000
    sq_max_bytes: int = 32 << 20
    eq_keep: int = 10_000
    eq_ttl_s: float = 3_600.0
    seen_keep: int = 1_024
    seen_keep_s: float = 86_400.0
    page: int = 32
    """Queue entries that a claim's answer carries."""
    machine: str = ""
    """The machine of this process's copies of portable folders; empty if it has none."""
    leave_s: float = _WORKSPACE.leave_s
    """Seconds for which a portable session is left to the machine that has its copy."""
    salted: bool = False
    """Whether entries of trees' logs get salts: a notary states these logs."""


@record
class Claim:
    """A worker's right to write one session, until another worker is given it."""

    session: SessionId
    tree: TreeId
    worker: str
    claim_id: str
    epoch: int
    pool: str


@record
class Claimant:
    """A worker that asks for sessions of a pool, and the id of the claim that it would get."""

    pool: str
    worker: str
    claim_id: str
    roomless: bool = False
    """It leaves portable sessions to others."""
    core: int | None = None
    """The core version of the claim, if it is not this process's."""
    attends: bool = False
    """It wants to be told alone of sessions that it had last."""


@dataclass(slots=True)
class Successor:
    """A session that a commit may wake, and that its sender claims in the same breath."""

    session: SessionId
    who: Claimant
    asked_s: float
    """When the claim was first sent, by CLOCK_BOOTTIME, or before that."""
    claimed: Claimed | None = None
    """The claim, once Redis has given it."""


@record
class SqEntry:
    """An entry of a session's queue, to be decided in the order of arrival."""

    id: str
    kind: str
    payload: bytes
    client: str
    submission: str
    """The submission's id; of mail its key; of a timer the timer's id."""
    sender: str
    seq: int
    """The session's `seq` when this was enqueued: an answer cannot mean what was recorded later."""
    at_ms: int
    generation: int = 0
    interrupt: bool = False
    by: bytes = b""
    """The sender of a submission as the door knew them, as JSON; empty from who says nothing of it."""

    @property
    def place(self) -> str:
        """Its id, and what tells it from an entry that got the same id when Redis had lost this one."""
        return f"{self.id}@{self.at_ms}:{self.submission}"


@record
class Claimed:
    """All that a worker needs to know to load the session and go on."""

    claim: Claim
    seq: int
    head: bytes
    cursor: str
    sq_tip: str
    snapshot_seq: int
    agent_id: AgentId
    now_ms: int
    claims_without_progress: int
    eq_n: int
    first: tuple[SqEntry, ...]
    after: SessionId | None = None
    """The session of the shard that could be claimed next; None if there is none."""
    last_commit: str = ""
    """The id of the session's last commit; empty before the first."""
    abandoned: str = ""
    """The person who gave the unsaved changes of its folder up; empty if nobody has."""


Source = Literal["cli", "exec", "agent"]
"""The program that a session began by: people talk in it, it runs a prompt, or another session made it."""


@record
class Labels:
    """Where lists show a tree, and who may see it; its agents have the same namespace."""

    namespace: str = ""
    """Empty for the machine's user; clients of another one do not see the tree."""
    source: Source = "cli"
    who: str = ""
    """The principal that created it."""
    ephemeral: bool = False
    """In no list."""


UNLABELLED = Labels()


@record
class NewTree:
    """A root session with what its tree starts with."""

    root: NewSession
    summary: Mapping[str, bytes] = field(default_factory=dict)
    labels: Labels = UNLABELLED
    announced_ms: int = 0
    """When Redis was told that packs are stored for it; 0 where there are none."""
    texts: tuple[str, ...] = ()
    """The hashes of large texts that were stored for it."""
    min_core: int = 0
    """The core version that its holders need, if that is more than its maker's."""


@record
class Submit:
    """A submission from one client; (client, submission) is its idempotency key.

    `secret` is what its payload says nothing of: it stands beside the queue until a task needs it no more.
    """

    session: SessionId
    client: str
    submission: str
    payload: bytes
    kind: str = "submission"
    sender: str = ""
    secret: bytes = field(default=b"", repr=False)
    by: bytes = b""
    """The sender as the door knew them, as JSON."""


@record
class Submitted:
    """Acknowledged: the submission is in the queue, now or since the first time it was sent."""

    sq_id: str
    duplicate: bool
    holder: str | None
    quarantined: bool
    now_ms: int
    shelved: bool = False
    """Whether the session was put away from lists."""


@record
class OpenApproval:
    """An approval that waits for an answer."""

    session: SessionId
    key: str
    payload: bytes
    opened_ms: int


@record
class FolderPlace:
    """The machine of a portable session's copy, by which workers of others leave the session to it."""

    machine: str = ""
    """Empty where no copy is known."""
    unsaved: bool = False
    """The copy has changes that the store has not got: no other machine may take the session."""
    failed_on: str = ""
    """The machine that could not make the folder just now; it lets others try."""
    settled: bool = True
    """Nothing that a person gave up before concerns what is unsaved now."""


@record
class CommitRequest:
    """Everything that one step of a session does. Equal requests are equal commits: see `commit_id`."""

    claim: Claim
    commit_id: str
    expect_seq: int
    expect_head: bytes
    expect_commit: str
    """The commit before this one. Under a step without entries `seq` and `head` stand still, and only this
    keeps a copy of an earlier commit that arrives late from being accepted again."""
    entries: tuple[NewEntry, ...] = ()
    events: tuple[NewEvent, ...] = ()
    cursor: str | None = None
    """The last entry of the queue that this step consumes: its id, or its place, which is compared."""
    timers_set: tuple[Timer, ...] = ()
    timers_clear: tuple[str, ...] = ()
    approvals_open: tuple[Approval, ...] = ()
    approvals_close: tuple[str, ...] = ()
    status: str | None = None
    meta: bytes | None = None
    name: str | None = None
    """The session's new name for people; lists show it at once."""
    min_core: int | None = None
    folder: FolderPlace | None = None
    """The place of the session's folder from here on; None if it stays, or the session has none."""
    ended_seq: int | None = None
    """The last of its entries that ends a turn; None if none does."""
    texts: tuple[str, ...] = ()
    """The hashes of the large texts that were stored for this step; without one of them it is not written."""
    tree: TreePart = NO_TREE_PART
    budget: BudgetPart = NO_BUDGET_PART
    release: Release = "keep"
    redacted: tuple[RedactedEntry, ...] = ()
    """Entries that lose their text: with it go the session's snapshot and its queue of events."""
    redacting: tuple[str, ...] = ()
    """Words that say what the redaction owes behind this commit."""


@record
class Committed:
    """The step is visible, whole. `released` answers `release`: a park may have met a new entry."""

    seq: int
    head: bytes
    sq_tip: str
    eq_n: int
    released: bool
    tree_seq: int
    """The last entry of the tree log, of any session."""
    now_ms: int
    last_commit: str
    """The id of this commit: what the next one of the session is built on."""
    depths: tuple[InboxDepth, ...] = ()
    """The depths of every inbox that this commit put messages into or took messages from."""
    budget: tuple[Account, ...] = ()
    """The accounts after this commit, if it concerned a budget."""


@record
class Fenced:
    """The claim is over, or the log is not the one that the step was built on; nothing was written."""

    holder_epoch: int
    reason: str


@record
class Refused:
    """The step may not be; nothing was written, the claim stands, `decide` chooses what to do instead."""

    reason: str
    detail: str
    budget: tuple[Account, ...] = ()
    """The accounts that a budget's refusal was decided on; `detail` is the kind then."""


@record
class Unstored:
    """Redis lost texts that the step names, and nothing was written: store them again, then send it again."""

    digests: tuple[str, ...]


@record
class Renewed:
    """The claim stands for another lease; `sq_tip` shows whether something waits."""

    sq_tip: str
    now_ms: int


@record
class Emitted:
    """The events are in the EQ, the last of them under `eq_n`."""

    eq_n: int
    sq_tip: str
    now_ms: int


class LogPlace(Protocol):
    """The end of a log, for a process that has read the log or written to it."""

    @property
    def seq(self) -> int: ...

    @property
    def head(self) -> bytes: ...


@record
class Released:
    """The claim was given back; `parked` is false if the session is due."""

    parked: bool
    now_ms: int


@record
class Stored:
    """A snapshot, seal or archive was accepted."""

    now_ms: int


@record
class Fired:
    """A timer became an entry of the session's queue."""

    session: SessionId
    timer: str
    generation: int
    sq_id: str


@record
class StoredEntry:
    """A rollout entry as Redis keeps it."""

    seq: int
    epoch: int
    payload: bytes
    salt: bytes
    chain: bytes
    digest: bytes = b""
    """Of an entry that was redacted: what the chain covers. Its payload is what stands instead."""

    @property
    def covered(self) -> bytes:
        """The digest of salt and payload, by which the chain goes on."""
        return self.digest or payload_digest(self.salt, self.payload)


@record
class RedactedEntry:
    """An entry of a session's log that loses its text with a commit, and what stands instead."""

    seq: int
    epoch: int
    digest: bytes
    chain: bytes
    payload: bytes

    def encode(self) -> bytes:
        """As Redis keeps it."""
        place = {"e": self.epoch, "d": self.digest.hex(), "h": self.chain.hex()}
        return orjson.dumps(place) + b"\n" + self.payload

    @classmethod
    def decode(cls, seq: int, stored: bytes) -> RedactedEntry:
        """Raises `ValueError` or `KeyError` for what is none."""
        head, _, payload = stored.partition(b"\n")
        place = orjson.loads(head)
        return cls(seq, place["e"], bytes.fromhex(place["d"]), bytes.fromhex(place["h"]), payload)

    @property
    def entry(self) -> StoredEntry:
        """As readers of the log get it."""
        return StoredEntry(self.seq, self.epoch, self.payload, b"", self.chain, self.digest)


@record
class StoredEvent:
    """An EQ entry: number, payload, and the rollout entry it belongs to."""

    n: int
    payload: bytes
    seq: int
    hash8: str
    tree_seq: int = 0
    """Of an event of the tree log, its place there; 0 for the session's own."""
    at_ms: int = 0
    """Its entry's time, or that of its commit; 0: an earlier version wrote it."""


AT_REST: Final = frozenset({"idle", "closed"})
"""The statuses of a session that no task runs in."""


TIP_FIELDS: Final = ("tree", "seq", "head", "status", "namespace")


@record
class Tip:
    """The end of a session's log, and what is to be known of the session beside it."""

    tree: TreeId
    seq: int
    head: bytes
    status: str
    namespace: str


@record
class SessionHead:
    """The state of a session that can be read without its log."""

    session: SessionId
    tree: TreeId
    pool: str
    agent_id: AgentId
    parent: SessionId | None
    seq: int
    head: bytes
    cursor: str
    sq_tip: str
    eq_n: int
    epoch: int
    holder: str | None
    status: str
    meta: bytes
    snapshot_seq: int
    sealed_seq: int
    manifest: bytes
    min_core: int
    claims_without_progress: int
    pending_messages: int
    pending_interrupts: int
    quarantined: bool
    archived: bool
    created_ms: int
    name: str = ""
    """Its name for people, as soon as it has one; empty in what an earlier version named."""
    labels: Labels = UNLABELLED
    recency_ms: int = 0
    """Its last use, by which lists are ordered; 0: it is not in the fleet's index."""
    shelved: bool = False
    """Whether people have put it away from their lists."""
    git_note: bytes = b""
    """The repository as a client has told of it: JSON over what its log says."""
    copy_on: str = ""
    """The machine of the last copy of a portable session's folder; empty for any other session."""
    unsaved_on: str = ""
    """The machine that alone has the last changes of its folder, and nobody has given them up; else empty."""
    ended_seq: int = 0
    """The entry that ended its last turn; 0: none has, or an earlier version wrote the end."""
    portable: bool = False
    """Whether its folder goes along with it from machine to machine."""
    states: str = ""
    """Of a root, what the agents of its tree are at (`AgentStates`); empty where nobody has counted them."""

    @property
    def summary(self) -> Summary:
        """The session in a few facts; raises `Corrupt` where they cannot be read."""
        try:
            return read_summary(self.meta)
        except ValueError as error:
            raise Corrupt(self.session, f"the summary of this session cannot be read: {error}") from error

    @property
    def git(self) -> Mapping[str, Any] | None:
        """The repository as a client has told of it, else as its log says; raises `Corrupt`."""
        if not self.git_note:
            return self.summary.get("git")
        try:
            return read_git(self.git_note)
        except ValueError as error:
            why = f"what clients told of its repository cannot be read: {error}"
            raise Corrupt(self.session, why) from error

    @property
    def title(self) -> str:
        """The name that people gave it, as soon as they have; else its first words."""
        meta = self.summary
        return self.name or meta.get("name") or meta.get("title") or ""

    @property
    def has_unread(self) -> bool:
        """Whether it was handed something that no worker has read yet."""
        return self.sq_tip != self.cursor

    @property
    def at_rest(self) -> bool:
        """Whether no task runs in it, and nothing that it was handed waits for a worker."""
        return self.status in AT_REST and not self.has_unread

    @property
    def parked(self) -> bool:
        """Whether no worker holds it, and nothing that it was handed waits for one."""
        return self.holder is None and not self.has_unread

    @property
    def let_go(self) -> bool:
        """Whether it is at rest, and no worker holds it any more."""
        return self.at_rest and self.holder is None


class Summary(TypedDict, total=False):
    """A session in a few facts, as of its last rest, or of its birth: then it has few of them.

    `orchestrator.rollouts.session_summary` writes it and says what they are; others are of a later version.
    """

    name: str | None
    title: str
    preview: str
    cwd: str
    model: str
    model_provider: str
    effort: str | None
    git: dict[str, Any] | None
    outcome: str
    blended_total: int
    context_left: float | int | None
    updated_ms: int
    forked_from: str | None
    rollout_path: str
    seq: int
    state_sha256: str
    change: dict[str, Any]
    children: int
    processes: int
    unspoken: bool


def _kinds(hint: Any) -> tuple[type, ...]:
    """The types that a value may have which is described so."""
    alternatives = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    return tuple(get_origin(one) or one for one in alternatives)


_KINDS = {name: _kinds(hint) for name, hint in get_type_hints(Summary).items()}


def read_summary(stored: bytes) -> Summary:
    """Reads the field `meta` of a session's hash; raises ValueError for anything that no version writes."""
    found = orjson.loads(stored or b"{}")
    if not isinstance(found, dict):
        raise ValueError("it is no object")
    for name, kinds in _KINDS.items():
        if name in found and type(found[name]) not in kinds:
            raise ValueError(f"{name} is of a type that it cannot have")
    if any(type(count) is not int for count in found.get("change", {}).values()):
        raise ValueError("change has something that is no number")
    return cast(Summary, found)


def read_git(stored: bytes) -> Mapping[str, Any]:
    """Reads the field `note:git` of a session's hash; raises ValueError for what no client can have told."""
    found = orjson.loads(stored)
    if not isinstance(found, dict):
        raise ValueError("the repository is no object")
    return found


@record
class AgentStates:
    """The sessions of a tree by their status, the root among them."""

    first: tuple[tuple[int, int | None, str], ...]
    """Of those that were born first: the number, the maker's, the status."""
    counts: Mapping[str, int]
    """How many of all have each status."""

    @classmethod
    def of(cls, states: str) -> AgentStates:
        """Reads the field of a root's hash, which `_states.lua` describes."""
        shape, _, counts = states.partition("|")
        rows = (one.split(":") for one in shape.split())
        pairs = (one.rpartition("=") for one in counts.split())
        return cls(
            tuple((int(agent), int(parent) if parent else None, status) for agent, parent, status in rows),
            {status: int(number) for status, _, number in pairs if number != "0"},
        )


@record
class Deleted:
    """The end of a session that was deleted."""

    at_ms: int
    namespace: str
    who: str
    """Empty: nobody did, its time was over."""

    @classmethod
    def of(cls, stored: bytes) -> Deleted:
        """Reads a field of `deleted_by`, which `delete.lua` describes."""
        at, namespace, who = stored.decode("utf-8", "replace").split("\n", 2)
        return cls(int(at), namespace, who)


@record
class PoolQueue:
    """The sessions of a pool that are due, those that workers hold, and how long work has waited."""

    due: int
    leased: int
    age_ms: int
    """The age of the oldest entry unread by the sessions that are next in turn, one of each shard."""


@record
class Unserved:
    """Sessions that no worker serves, and that owe something."""

    lost: Mapping[SessionId, int] = field(default_factory=dict)
    """Those whose worker was lost, and since when."""
    due: frozenset[SessionId] = frozenset()


RECENT_MS = 300_000
RECENT_SLOTS = 12


@record
class Recent:
    """How many model requests of a tree ended in each of twelve times of five minutes, the last one first."""

    from_ms: int
    """When the last of them begins."""
    requests: tuple[int, ...]

    @classmethod
    def of(cls, stored: bytes) -> Recent:
        """Reads the field `recent` of `agents:<tree>`, which `_budget.lua` describes."""
        slot, *requests = map(int, stored.split())
        return cls(slot * RECENT_MS, (*requests, *[0] * RECENT_SLOTS)[:RECENT_SLOTS])


@record
class TreeAccount:
    """The usage of a tree, and its limits."""

    used: Spend
    limits: Mapping[str, int] = field(default_factory=dict)
    recent: Recent | None = None
    """None where no request has ended since a version that counts them so."""


@record
class Heard:
    """A worker's last heartbeat: its state as it was sent (`worker_state`), and when, by Redis's clock."""

    worker: str
    state: bytes
    heard_ms: int


@record
class Notices:
    """Why a wait ended: shards to poll, held sessions to poll. Neither is a promise."""

    shards: tuple[int, ...]
    notified: tuple[SessionId, ...]
    cursors: Mapping[str, str]
    """To be given to the next wait."""
    named: Mapping[int, SessionId] = field(default_factory=dict)
    """The session of each shard that the first notice named: worth a guess."""
    jobs: bool = True
    """Whether jobs may wait in the pool."""
    alone: tuple[tuple[str, SessionId], ...] = ()
    """Sessions of pools that became due, and of which no other worker was told."""


@record
class Look:
    """Where a look at pools found something to poll for. No promise."""

    claimable: tuple[tuple[str, int], ...] = ()
    """Pools and shards with a session that is due, or whose lease ran out."""
    timed: tuple[int, ...] = ()
    """Shards with a timer that is due."""
    jobs: bool = False
    errors: tuple[Exception, ...] = ()
    """Errors of servers that were not looked at."""

    def with_(self, other: Look) -> Look:
        """This look and another one, at other shards."""
        return Look(
            (*self.claimable, *other.claimable),
            (*self.timed, *other.timed),
            self.jobs or other.jobs,
            (*self.errors, *other.errors),
        )


@record
class Place:
    """Where a session's keys are: facts that do not change while it lives."""

    session: SessionId
    tree: TreeId
    pool: str
