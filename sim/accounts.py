"""A tree's counters and budgets, held against the logs of its sessions after every write.

The broker counts slots, spawns, letters and money in flat fields. Everything that is counted there
can be told from the sessions themselves: from their states, and from the letters that lie in
their queues. So each count has a second, independent one here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from orchestrator.broker.redis_keys import Keys
from orchestrator.config_keys import ModelPrice, ModelSettings
from orchestrator.core.blobs import is_reference
from orchestrator.core.commit_parts import BUDGET_TIMER
from orchestrator.core.tokens import Usage
from orchestrator.runtime.request_costs import Accounting
from sim.double import Double
from sim.grammar_terms import OTHER_MODEL, PICTURE_BYTES
from sim.reach import Reach

if TYPE_CHECKING:
    from sim.seen import Seen

KINDS = ("tokens", "cost", "requests")
_SPENT, _HELD, _LIMITS = (
    [f"{name}:{kind}".encode() for kind in KINDS] for name in ("spent", "held", "limit")
)
"""The fields of each kind."""
_OF_MONEY = frozenset((b"r:", b"u:", b"li"))
"""How the names of other fields begin: reservations, uses, limits."""
PRICE = ModelPrice(input=1.25, cached_input=0.125, output=10.0)
MODEL_SETTINGS = ModelSettings(prices={"gpt-5": PRICE}, max_output_tokens=100)
ACCOUNTING = Accounting(MODEL_SETTINGS.model_copy(update={"prices": {"gpt-5": PRICE, OTHER_MODEL: PRICE}}))
"""Accounting that every simulated worker uses; clients are not offered the other model."""

Amount = tuple[int, int, int]
"""Tokens, millionths of the currency, requests."""
NOTHING: Amount = (0, 0, 0)
NEAR_PERCENT = 80
NEAR = f":{NEAR_PERCENT}".encode()
"""The end of the name under which a tree keeps that people were told of a budget that is nearly used up."""


@dataclass(frozen=True, slots=True)
class Money:
    """A tree's budgets as Redis has them."""

    spent: Amount
    held: Amount
    limits: tuple[int | None, ...]
    reserved: Mapping[str, Amount]
    """By `<session>:<request>`."""
    used: Amount
    """By all agents together."""
    bounds: Mapping[str, int]
    """Every limit of the tree, by its name."""

    @classmethod
    def of(cls, fields: Mapping[bytes, bytes]) -> Money:
        reserved, used, bounds = {}, [], {}
        for name, text in fields.items():
            kind = name[:2]
            if kind not in _OF_MONEY:
                continue
            if kind == b"r:":
                reserved[name[2:].decode()] = _amount(text)
            elif kind == b"u:":
                used.append(_amount(text))
            elif name[:6] == b"limit:":
                bounds[name[6:].decode()] = int(text)
        return cls(
            _counts(fields, _SPENT),
            _counts(fields, _HELD),
            tuple([_limit(fields, name) for name in _LIMITS]),
            reserved,
            _sum(used),
            bounds,
        )


class Accounts:
    """The rules of one simulation's counters."""

    def __init__(
        self,
        double: Double,
        keys: Keys,
        broken: Callable[[str, str], None],
        reach: Reach,
    ) -> None:
        self._reach = reach
        self._double = double
        self._keys = keys
        self._broken = broken
        self._amounts: dict[str, Amount] = {}
        """The amount last reserved for each request; requests that Redis lost are reserved anew."""
        self._spent: dict[str, Amount] = {}
        self._reserved: dict[str, Mapping[str, Amount]] = {}
        self._limits: dict[str, dict[str, int]] = {}
        """Each tree's limits, as those who raised them are to find them."""
        self._raised: set[str] = set()
        """Changes of limits that have counted."""
        self._days: set[str] = set()
        """The hashes of days that usage was ever counted on."""
        self._by_day: dict[str, Amount] = {}
        self._by_tree: dict[str, Amount] = {}
        """The usage of each model on all days, and that of each tree, when they were looked at last."""
        self._by_model: defaultdict[str, dict[str, Amount]] = defaultdict(dict)
        """By tree, of each model: what requests have used that ended since the tree was looked at last."""
        self._read_anew: set[str] = set()
        """Trees whose logs were read anew since they were looked at last."""
        self._hours: dict[str, tuple[tuple[int, ...], int]] = {}
        """Each tree's requests of the last hour, and all of its requests, when they were looked at last."""
        self._near: dict[str, set[tuple[str, int]]] = {}
        """By claim: the budgets that a commit of it was told to be nearly used up, and their limits."""
        self._known: dict[str, tuple[Mapping[bytes, bytes], Money]] = {}
        """Each tree's fields and money as last read."""

    def went_back(self) -> None:
        """All logs are read anew."""
        self._hours.clear()
        self._near.clear()
        self._spent, self._reserved, self._limits = {}, {}, {}
        self._raised.clear()
        self._by_day = self._used_by_day()
        self._read_anew = set(self._by_tree)
        self._by_tree = {
            tree: _spent_of(self._double.hash(self._keys.agents(tree))) for tree in self._by_tree
        }

    def request_ended(self, session: str, tree: str, model: str, fact: Mapping[str, Any]) -> None:
        """A log says that a request of a model ended: what it used is spent from here on."""
        used, others = self._used(f"{session}:{fact['n']}", fact), self._by_model[tree]
        self._spent[tree] = _sum((self._spent.get(tree, NOTHING), used))
        others[model] = _sum((others.get(model, NOTHING), used))
        told = (fact.get("price") or {}).get("cost_micro")
        if fact.get("usage") and model in MODEL_SETTINGS.prices and told != used[1]:
            self._broken("budget", f"{session}: {fact['usage']} cost {told}, and {used[1]} by the prices")

    def _used(self, request: str, fact: Mapping[str, Any]) -> Amount:
        if not fact.get("usage"):
            if fact["outcome"] == "waiting":
                return NOTHING
            if fact.get("served") is False:
                # Turned away: a request, and no token of it.
                return 0, 0, 1
            self._reach.saw("budget")
            return self._amounts.get(request, NOTHING)
        usage = Usage.of(fact["usage"])
        return usage.total_tokens, cost_of(usage), 1

    def raised(self, tree: str, args: Sequence[Any]) -> None:
        """A change of limits counts: once, whatever is sent again."""
        change, _, _, count, *rows = [str(word) for word in args[3 + int(args[2]) :]]
        if change in self._raised:
            self._broken("raised", f"{tree}: the change {change} of its limits counted twice")
        self._raised.add(change)
        self._reach.saw("raised")
        limits = self._limits.get(tree, {})
        for kind, amount in zip(rows[0 : 2 * int(count) : 2], rows[1 : 2 * int(count) : 2], strict=True):
            if kind in limits:
                limits[kind] = max(0, limits[kind] + int(amount))

    # ── after every write ─────────────────────────────────────────────────────────────────────

    def committed(self, args: Sequence[Any]) -> None:
        """A commit was answered OK: the day that its usage is counted on is one of its keys."""
        keys = map(_word, args[3 : 3 + int(args[2])])
        self._days.update(key for key in keys if "}:spend:" in key)

    def answered(self, tree: str, claim: str, reply: Any) -> None:
        """A commit was answered OK: if it gives the claim back, people were told what its holder knew."""
        near = self._near.setdefault(claim, set())
        if not reply["released"]:
            near.update(
                (_word(kind), most) for kind, spent, _, most, _ in reply["accounts"] if _is_near(spent, most)
            )
            return
        del self._near[claim]
        fields = self._double.hash(self._keys.agents(tree))
        for kind, limit in sorted(near):
            self._reach.saw("warned")
            name, most = kind.encode(), _limit(fields, f"limit:{kind}".encode())
            if most == limit and b"said:" + name + NEAR not in fields and kind in KINDS:
                self._broken("warned", f"{tree}: nobody was told that {kind} are nearly used up, of {limit}")

    def _used_by_day(self) -> dict[str, Amount]:
        used: dict[str, Amount] = {}
        for day in self._days:
            for user, amount in self._double.hash(day).items():
                if user != b"n":
                    _, model, _ = user.decode().split("\n")
                    used[model] = _sum((used.get(model, NOTHING), _amount(amount)))
        return used

    def _adds_up_by_day(self, tree: str, spent: Amount) -> None:
        """The days have grown by what the tree has spent since it was looked at, for each model."""
        known, before = self._by_tree.get(tree, NOTHING), self._by_day
        self._by_tree[tree] = spent
        by_model = self._by_model.pop(tree, {})
        if spent == known:
            return
        self._by_day = now = self._used_by_day()
        grown = {model: _difference(used, before.get(model, NOTHING)) for model, used in now.items()}
        more, wanted = _sum(grown.values()), _difference(spent, known)
        if more != wanted:
            self._broken(
                "by_day", f"{tree}: it has spent {wanted} more, and all days together have {more} more"
            )
        asked = {model: used for model, used in by_model.items() if used != NOTHING}
        had = {model: used for model, used in grown.items() if used != NOTHING}
        if had != asked and tree not in self._read_anew:
            self._broken("by_day", f"{tree}: by its logs models used {asked} more, and by all days {had}")
        self._read_anew.discard(tree)
        if before:
            self._reach.saw("by_day")

    def _hour(self, tree: str, fields: Mapping[bytes, bytes], requests: int) -> None:
        """Requests that ended since the last look count in the newest five minutes, the rest is as it was."""
        now = tuple(map(int, fields.get(b"recent", b"").split()))
        before, known = self._hours.get(tree, (now, requests))
        self._hours[tree] = now, requests
        if now == before and requests == known:
            return
        passed = now[0] - before[0] if now and before else 12
        behind = (0,) * passed + before[1:] if abs(passed) < 12 else ()
        grown = [one - was for one, was in zip_longest(now[1:], behind[:12], fillvalue=0)]
        if len(now) > 13 or -12 < passed < 0 or grown[:1] != [requests - known] or any(grown[1:]):
            told = f"{before} became {now}"
            self._broken("hour", f"{tree}: {requests - known} more requests have ended, and {told}")
        if sum(behind):
            self._reach.saw("hour")

    def inbox(self, session: str, seen: Seen, told: tuple[int, int]) -> None:
        """The depths are those of the letters that wait, in the queue and in the state."""
        depths = [0, 0]
        for entry in seen.queue:
            depths[entry.lane] += entry.counted
        for mail in seen.state.tree.inbox:
            depths[mail.interrupt] += 1
        if told != tuple(depths):
            self._broken("inbox", f"{session}: {told} are told, {tuple(depths)} wait")

    def look(self, tree: str, members: Mapping[str, Seen]) -> None:
        """Everything that is counted for one tree."""
        fields = self._double.hash(self._keys.agents(tree))
        if not fields:
            return
        money = self._money(tree, fields)
        self._limited(tree, money)
        self._slots(tree, fields, members)
        self._spawned(tree, fields, members)
        self._adds_up(tree, money, members)
        self._adds_up_by_day(tree, money.spent)
        self._hour(tree, fields, money.spent[2])
        self._within(tree, fields, money, members)
        self._waiting(tree, fields, money, members)

    def _money(self, tree: str, fields: Mapping[bytes, bytes]) -> Money:
        """Returns the money that a tree's fields state; unchanged fields give the same object."""
        known, money = self._known.get(tree, (None, None))
        if known is not fields or money is None:
            money = Money.of(fields)
            self._known[tree] = fields, money
        return money

    def _limited(self, tree: str, money: Money) -> None:
        found = dict(money.bounds)
        known = self._limits.setdefault(tree, found)
        if other := {kind: most for kind, most in known.items() if found.get(kind) != most}:
            self._broken("raised", f"{tree}: its limits are {found}, and were to be {other}")
        self._limits[tree] = found

    def _slots(self, tree: str, fields: Mapping[bytes, bytes], members: Mapping[str, Seen]) -> None:
        held = sum(seen.state.tree.slot for seen in members.values())
        paid = sum(entry.slot for seen in members.values() for entry in seen.queue)
        counted = int(fields.get(b"slots", b"0"))
        if counted != held + paid:
            self._broken(
                "slots", f"{tree}: {counted} are counted, {held} held by agents and {paid} by letters"
            )

    def _spawned(self, tree: str, fields: Mapping[bytes, bytes], members: Mapping[str, Seen]) -> None:
        counted, limit = int(fields.get(b"spawned", b"0")), fields.get(b"limit:spawned")
        made = len(members) - 1
        if counted != made or (limit is not None and made > int(limit)):
            self._broken("spawned", f"{tree}: {counted} are counted, {made} were made, {limit!r} may be")

    def _adds_up(self, tree: str, money: Money, members: Mapping[str, Seen]) -> None:
        self._amounts.update(money.reserved)
        in_flight = {
            f"{session}:{seen.state.task.request.n}"
            for session, seen in members.items()
            if seen.state.task is not None and seen.state.task.request is not None
        }
        if money.reserved.keys() != in_flight:
            told = f"reserved for {sorted(money.reserved)}, in flight are {sorted(in_flight)}"
            self._broken("budget", f"{tree}: {told}")
        held, spent = _sum(money.reserved.values()), self._spent.get(tree, NOTHING)
        if money.held != held:
            self._broken("budget", f"{tree}: {money.held} are held, {held} reserved")
        if not money.spent == money.used == spent:
            told = f"{money.spent} are spent, {money.used} by agents, {spent} by the logs"
            self._broken("budget", f"{tree}: {told}")

    def _within(
        self, tree: str, fields: Mapping[bytes, bytes], money: Money, members: Mapping[str, Seen]
    ) -> None:
        """New reservations fit the budget; a reservation that is alone may exceed what is left of it."""
        # After Redis went back, what is reserved then is nothing new.
        known = self._reserved.get(tree, money.reserved)
        self._reserved[tree] = money.reserved
        for request in money.reserved.keys() - known.keys():
            amount = money.reserved[request]
            for kind, spent, held, limit, own in zip(
                KINDS, money.spent, money.held, money.limits, amount, strict=True
            ):
                over = limit is not None and (spent >= limit or (held > own and spent + held > limit))
                if over:
                    told = f"{request} begins with {spent} {kind} spent and {held} held of {limit}"
                    self._broken("overshoot", f"{tree}: {told}")
            self._is_enough(tree, request, amount, members)
            if self._wall_is_over(fields):
                self._broken("overshoot", f"{tree}: {request} begins when the tree's time is over")

    def _is_enough(self, tree: str, request: str, amount: Amount, members: Mapping[str, Seen]) -> None:
        """A request reserves a full answer and its input, four bytes a token, at the prices of its model."""
        session, _, _ = request.rpartition(":")
        seen, answer = members.get(session), MODEL_SETTINGS.max_output_tokens
        if seen is None or seen.state.task is None:
            return
        rules = seen.state.facts.tree_rules
        if {"tokens", "cost"} & rules.budgets.keys():
            pinned = seen.state.task.pinned
            said = [*seen.grammar.conversation, *([pinned] if pinned else [])]
            least, most = (
                sum(count(item) for item in said) // 4 + answer for count in (texts_in, written_in)
            )
        else:
            least, most = answer, seen.grammar.last_used + answer
        tokens, price, _ = amount
        if not least <= tokens <= most:
            self._broken("overshoot", f"{tree}: {request} reserves {tokens} tokens, of {least} to {most}")
        if price != cost_of(Usage(tokens - answer, 0, answer)):
            self._broken("overshoot", f"{tree}: {request} reserves {price} for {tokens} tokens")

    def _wall_is_over(self, fields: Mapping[bytes, bytes]) -> bool:
        limit_ms = _limit(fields, b"limit:wall")
        now_ms = int(self._double.now_s() * 1000)
        return limit_ms is not None and now_ms - int(fields[b"wall_from"]) > limit_ms + 1

    def _waiting(
        self, tree: str, fields: Mapping[bytes, bytes], money: Money, members: Mapping[str, Seen]
    ) -> None:
        """Sessions that sleep for room are on a list that will be woken, or are being woken."""
        by_reserved = fields.get(b"wait:reserved", b"").decode().split()
        by_spent = fields.get(b"wait:spent", b"").decode().split()
        if by_reserved and not money.reserved:
            self._broken("room", f"{tree}: {by_reserved} wait for room, and nothing is reserved")
        for session, seen in members.items():
            listed = f"{session}:{BUDGET_TIMER}" in (*by_reserved, *by_spent)
            spent = seen.state.tree.paused == "budget_spent" and f"{session}:{BUDGET_TIMER}" in by_spent
            if spent and not any(name.startswith(b"said:") and name.endswith(b":100") for name in fields):
                self._broken("warned", f"{session} is paused, and nobody was told that the budget is spent")
            if not seen.state.tree.paused or listed:
                continue
            self._reach.saw("room")
            if not self._woken(session, seen):
                self._broken("room", f"{session} sleeps for {seen.state.tree.paused} and nobody will wake it")

    def _woken(self, session: str, seen: Seen) -> bool:
        timers = self._keys.timers(self._keys.shard_of(session))
        due_ms = self._double.scored(timers, f"{session}:{BUDGET_TIMER}")
        fired = any(entry.kind == "timer" and entry.id == BUDGET_TIMER for entry in seen.queue)
        now_ms = (self._double.now_s() + self._double.put_back_s) * 1000
        return fired or (due_ms is not None and due_ms <= now_ms + 1)


def texts_in(value: Any) -> int:
    """The bytes of the texts that a request shows, at the least: a picture counts for nothing here."""
    if isinstance(value, str):
        return len(value)
    if is_reference(value):
        return int(value["bytes"])
    if isinstance(value, Mapping):
        return 0 if value.get("type") == "input_image" else sum(map(texts_in, value.values()))
    return sum(map(texts_in, value)) if isinstance(value, Sequence) else 0


def written_in(value: Any) -> int:
    """The same at the most: all that is written, and for each picture what a provider makes of it."""
    if is_reference(value):
        return int(value["bytes"])
    if isinstance(value, Mapping):
        if value.get("type") == "input_image":
            return PICTURE_BYTES + 100
        return sum(len(name) + written_in(part) for name, part in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return sum(map(written_in, value))
    return len(str(value).encode())


def cost_of(usage: Usage) -> int:
    """Millionths of a dollar, rounded up: what was cached costs a tenth, and what was said eight times as
    much as what was new."""
    eighths = 10 * (usage.input_tokens - usage.cached_input_tokens) + usage.cached_input_tokens
    return -(-(eighths + 80 * usage.output_tokens) // 8)


def _counts(fields: Mapping[bytes, bytes], names: Sequence[bytes]) -> Amount:
    tokens, cost, requests = [int(fields.get(name, b"0")) for name in names]
    return tokens, cost, requests


def _is_near(spent: int, limit: int | bytes) -> bool:
    return isinstance(limit, int) and limit * 100 > spent * 100 >= limit * NEAR_PERCENT


def _limit(fields: Mapping[bytes, bytes], name: bytes) -> int | None:
    limit = fields.get(name)
    return None if limit is None else int(limit)


@lru_cache(maxsize=1_000)
def _amount(text: bytes) -> Amount:
    tokens, cost, requests = map(int, text.split())
    return tokens, cost, requests


def _spent_of(fields: Mapping[bytes, bytes]) -> Amount:
    return _counts(fields, _SPENT)


def _word(word: Any) -> str:
    return word.decode() if isinstance(word, bytes) else str(word)


def _difference(amount: Amount, less: Amount) -> Amount:
    return amount[0] - less[0], amount[1] - less[1], amount[2] - less[2]


def _sum(amounts: Iterable[Amount]) -> Amount:
    total = [0, 0, 0]
    for amount in amounts:
        for place, part in enumerate(amount):
            total[place] += part
    return total[0], total[1], total[2]
