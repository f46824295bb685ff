"""Records of what several sessions of a tree share: log, registry, budgets. Plain frozen values.

The broker counts and orders these and never reads their payloads. `agents:<tree>`, the
registry's projection, is one hash of flat fields:

    root             its session; `tree_seq`, the tree log's end; `last_agent`, the last number reserved
    wall_from        when its wall clock began
    turn:<pool>      its last fair turn there
    a:<id>           what the caller says of the agent (a SubagentSummary), by `summary`
    d:<id>           the turn of it that its parent has read, by `summary`
    s:<id>           its session; written at its birth
    m:<id>  i:<id>   messages and interrupts in its inbox, as of the last commit that changed them
    u:<id>           what its requests used: tokens, cost, requests
    cancel:<id>      a cancel flag: commits that name it in `unless_flagged` are refused
    limit:<name>     how far the counter <name> may go; absent: as far as it likes
    <name>           a counter, changed by a `Debit`: slots, spawned
    spent:<kind> held:<kind> guessed:<kind>   a budget: used, reserved, and used by estimate alone
    r:<session>:<request>                     a reservation: tokens, cost, requests
    wait:reserved wait:spent                  who waits for room, and by which timer
    said:<what>      an event with `once` was written
    raised:<change>  a change of limits was made
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal

from orchestrator.core.frozen import record
from orchestrator.core.ids import AgentId, SessionId, TreeId

if TYPE_CHECKING:
    from orchestrator.core.commit_parts import TreeEvent

BudgetKind = Literal["tokens", "cost", "requests", "wall"]
BUDGET_KINDS: tuple[BudgetKind, ...] = ("tokens", "cost", "requests", "wall")


@record
class Spend:
    """The cost of model requests: tokens, millionths of the currency, and the number of requests."""

    tokens: int = 0
    cost: int = 0
    requests: int = 0


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


@record
class BudgetWait:
    """The session waits until `amount` may fit: `timer`, which it has or sets, is made due then.

    Refused `budget_free` if it fits by now: what was in the way went between two commits.
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
