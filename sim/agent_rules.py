"""Agents of a tree, as their calls tell of them and as those above them know them.

What one log tells of others is held here against the logs of those others: lists of agents, cancels, helpers'
ends, letters of people and of watchdogs, and what an agent counts on while it waits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson

from orchestrator.core.decide import agent
from orchestrator.core.entries import DENDRO, EVENT_MSG, RESPONSE_ITEM, Entry
from orchestrator.core.registry import RegistryView
from sim.agent_cards import (
    AT_WORK,
    OF_CANCEL,
    PASSED_ON,
    Order,
    Rows,
    child_row,
    order_of,
    record,
    unlike,
    untrue_letter,
    untrue_order,
)
from sim.grammar_terms import ADDED, OUTPUTS, REDACTED
from sim.queued import Waiting

if TYPE_CHECKING:
    from sim.seen import Seen
    from sim.watch import Watch

BARK = "watchdog:"
CANCELS = "subagent_cancel"
OUTCOMES = {"completed": "completed", "failed": "failed"}
HIDDEN = frozenset({"agent_path", "reasoning_header"})
"""Names that lists tell of agents, and outputs of calls about one do not."""


class AgentRules:
    """The rules `counts_on` and `listed`, and a part of `awaited`, `kin` and `registry`."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._there: dict[str, frozenset[int]] = {}
        """The agents of its tree when a session's last request began: what it calls is carried out later."""
        self._words: dict[tuple[str, str], Mapping[str, Any]] = {}
        """Words of people to agents, by the tree and the key of the letter that they become."""
        self._tokens: dict[str, int] = {}
        """The tokens that each helper has told of last."""
        self._marked: set[int] = set()
        """Agents that the commit that is read marks as cancelled."""
        self._deleted: set[str] = set()
        """Those that it takes off the list."""
        self._pruning: set[str] | None = None
        """Those that its calls say that they take off; None without such a call."""
        self._rows = Rows()
        self._sent: list[tuple[str, Waiting]] = []
        """Letters that the commit that is read has sent, and to whom."""
        self._ordered: dict[str, list[Order]] = {}
        """The orders that the last step of a session has read."""
        self._renamed: set[str] = set()
        """Sessions that were given a name by the commit that is read."""
        self._in_pieces: set[str] = set()
        """Sessions that the commit that is read has tell some of many agents of their end."""
        self._put_off: dict[str, list[Order]] = {}
        """The orders behind which each session has had many agents to tell of their end."""
        self._canceling: set[int] | None = None
        """Those that its calls say that they cancel; None without such a call."""
        self._inboxes: dict[str, tuple[str, ...]] = {}
        """The letters that each session had not read behind its last step."""
        self._named: dict[str, str] = {}
        """The label that each agent was given last."""

    def went_back(self) -> None:
        """All logs are read anew."""
        self._there.clear()
        self._named.clear()
        self._inboxes.clear()
        self._canceling = self._pruning = None
        self._rows.went_back()
        self._sent.clear()
        self._put_off.clear()

    def _broken(self, rule: str, seen: str) -> None:
        self._watch.broken(rule, seen)

    # ── what is read ──────────────────────────────────────────────────────────────────────────

    def queued(self, session: str, seen: Seen, entry: Waiting) -> None:
        """An entry of a submission queue."""
        if entry.op == "message_agent":
            self._words[seen.tree, f"person:{entry.client}:{entry.id}"] = entry.said
        if entry.kind == "mail" and not self._watch.reads_anew:
            # Behind a step back its sender's log may have gone on since.
            self._sent.append((session, entry))

    def entry(self, session: str, seen: Seen, entry: Entry) -> None:
        """An entry of a log, behind which `seen` stands."""
        fact = entry.payload
        if entry.type == DENDRO and fact["kind"] == "request_begun":
            view = self._watch.trees.get(seen.tree)
            self._there[session] = frozenset(view[0].agents if view is not None else ())
            self._rows.asks(session, seen.tree)
        elif entry.type == DENDRO and fact["kind"] == "mail":
            self._letter(session, seen, fact["mail"])
        elif entry.type == DENDRO and fact["kind"] in ("to_end", "told_to_end"):
            self._in_pieces.add(session)
        elif entry.type == EVENT_MSG and fact["type"] == "sub_agent_tool_call_end":
            self._helper_ended(session, seen, fact)
        elif entry.type == RESPONSE_ITEM and fact.get("type") in OUTPUTS:
            output = fact["output"]
            call = seen.grammar.asked.get(fact["call_id"], {})
            if isinstance(output, str) and output.startswith("{") and not self._watch.reads_anew:
                self._output(session, seen, call, output)

    def _output(self, session: str, seen: Seen, call: Mapping[str, Any], output: str) -> None:
        name = str(call.get("name"))
        if not name.startswith("subagent_"):
            return
        given, told = orjson.loads(call["arguments"]), orjson.loads(output)
        if name == "subagent_list":
            self._list(session, seen, given, told["sessions"])
        elif name == CANCELS:
            self._canceling = (self._canceling or set()) | set(told["canceling"])
            self._are_below(session, seen, name, [told["session_id"]])
            self._is_described(session, seen, given["agent_id"], told, OF_CANCEL)
        elif name == "subagent_send_message":
            self._is_described(session, seen, given["agent_id"], told)
        elif name == "subagent_prune":
            self._are_below(session, seen, name, [*told["pruned"], *told["skipped_active"]])
            self._pruning = (self._pruning or set()) | set(told["pruned"])
        elif name == "subagent_watchdog" and told.get("action") in ("started", "replaced"):
            of = seen.grammar.watchdogs[told["agent_id"]]["session"]
            if told["agent_id"] not in (0, seen.state.facts.agent_id):
                self._are_below(session, seen, name, [of])

    # ── who is told of whom ───────────────────────────────────────────────────────────────────

    def _are_below(self, session: str, seen: Seen, name: str, agents: Sequence[str]) -> None:
        """An agent has power over its descendants alone."""
        for one in agents:
            other = self._watch.sessions.get(one)
            if other is not None and seen.state.facts.agent_id not in other.state.facts.ancestors:
                self._broken("kin", f"{session}: {name} is carried out on {one}, which is not below it")

    def _list(
        self, session: str, seen: Seen, given: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
    ) -> None:
        """A list has every agent that was there when it was asked for, and is there still; in their order."""
        view = self._watch.trees.get(seen.tree)
        if view is None or session not in self._there or self._watch.parted is not None:
            return
        there, me = view[0].agents, seen.state.facts.agent_id
        wanted = {
            id
            for id in self._there[session] & there.keys()
            if given.get("all") or there[id].record["parent_agent_id"] == me
        }
        listed = [row["agent_id"] for row in rows]
        if wanted:
            self._watch.reach.saw("listed")
        if lacking := wanted - set(listed):
            self._broken("listed", f"{session}: {sorted(lacking)} of its tree are not in the list {listed}")
        if len(listed) != len(set(listed)):
            self._broken("listed", f"{session}: an agent is listed twice: {listed}")
        for row in rows:
            if row not in (known := self._rows.of(session, seen.tree, row["agent_id"])):
                last = unlike(row, known[-1]) if known else "it is unknown"
                self._broken("listed", f"{session}: {row['agent_id']} is listed as it never was: {last}")
        born = [row["started_at_ms"] for row in rows]
        if born != sorted(born):
            self._broken("listed", f"{session}: {listed} is not the order in which they were made")
        for row in rows:
            if not given.get("all") and row["parent_session_id"] != session:
                self._broken("listed", f"{session}: {row['agent_id']} is listed, and is no agent of its own")
            other = self._watch.sessions.get(row["session_id"])
            if other is not None and other.state.facts.agent_id != row["agent_id"]:
                self._broken("listed", f"{session}: {row} is listed, and is another agent")

    def _is_described(
        self, session: str, seen: Seen, id: int, told: Mapping[str, Any], names: Sequence[str] = ()
    ) -> None:
        """Holds what a call tells of the agent that it is about: it was so since the call was asked for."""
        rows = self._rows.of(session, seen.tree, id)
        child = seen.grammar.children.get(id)
        if not (rows and id) or self._watch.reads_anew or self._watch.parted is not None:
            return
        shown = {name: told.get(name) for name in names or told}
        self._watch.reach.saw("described")
        wrong = ""
        for row in reversed(rows):
            known = {name: value for name, value in row.items() if name not in HIDDEN}
            if child is not None:
                known |= child_row(child, seen.grammar.facts)
                if child["status"] in AT_WORK and row["status"] in AT_WORK:
                    known["status"] = row["status"]
            wrong = unlike(shown, {name: known.get(name) for name in names or known})
            if not wrong:
                return
        self._broken("listed", f"{session}: agent {id} is told of otherwise: {wrong}")

    def marked(self, agent_id: int) -> None:
        """The tree's log says that a step has marked an agent as cancelled."""
        self._marked.add(agent_id)

    def changed(self, tree: str, before: RegistryView, view: RegistryView) -> None:
        """A commit told something of a tree: what it says of each agent is what that one's log says."""
        self._rows.changed(tree, before, view)
        if self._watch.reads_anew:
            return
        for id, known in view.agents.items():
            its = self._watch.sessions.get(known.session)
            if before.agents.get(id) is known or its is None or its.instead:
                continue
            if wrong := unlike(known.record, record(its.grammar)):
                self._broken("registry", f"agent {id} of {tree}: {wrong}")

    def logged(self, session: str) -> None:
        """Called when the tree's log was read that the step has written."""
        told, self._canceling = self._canceling, None
        marked, self._marked = self._marked, set()
        pruned, self._pruning = self._pruning, None
        deleted, self._deleted = self._deleted, set()
        if pruned is not None and not self._watch.reads_anew:
            if pruned:
                self._watch.reach.saw("taken_off")
            if pruned != deleted:
                wrong = f"says that it takes {sorted(pruned)} off the list, and takes off {sorted(deleted)}"
                self._broken("listed", f"{session} {wrong}")
        # Where more are cancelled than a step tells, the word goes down from one to the next.
        if told is None or len(told) > agent.MOST_TOLD or self._watch.reads_anew:
            return
        if told != marked:
            self._broken(
                "listed", f"{session} says that it cancels {sorted(told)}, and marks {sorted(marked)}"
            )

    # ── letters ───────────────────────────────────────────────────────────────────────────────

    def _letter(self, session: str, seen: Seen, mail: Mapping[str, Any]) -> None:
        """A person's letter says what was said; one of an agent stops those alone that are below it."""
        key, content = mail["key"], mail["content"]
        prompt = content.get("prompt")
        said = self._words.get((seen.tree, key))
        if said is not None and isinstance(prompt, str) and REDACTED not in prompt:
            told = prompt, mail["interrupt"]
            if told != (said["text"], said.get("interrupt", False)):
                self._broken("kin", f"{session}: a person said {dict(said)}, and {key} says {told}")
        stops = mail["kind"] == "message" and mail["interrupt"] and not content.get("person")
        if stops and mail["sender"]["agent_id"] not in seen.state.facts.ancestors:
            self._broken("kin", f"{session} is interrupted by {mail['sender']}, which is not above it")
        if key.startswith(BARK):
            self._bark(session, seen, mail)

    def _bark(self, session: str, seen: Seen, mail: Mapping[str, Any]) -> None:
        """A watchdog's letter is for the agent that it is set on, and says what it is to say."""
        sender = self._watch.sessions.get(mail["sender"]["session_id"])
        dog = sender and sender.grammar.dogs.get(int(mail["key"].rpartition(":")[2]))
        if not dog:
            return
        told = seen.state.facts.agent_id, mail["content"].get("prompt")
        wanted = dog["agent_id"], dog["message"]
        if told != wanted and isinstance(told[1], str) and isinstance(wanted[1], str):
            self._broken("kin", f"{session}: {mail['key']} is to tell {wanted}, and tells {told}")

    # ── helpers ───────────────────────────────────────────────────────────────────────────────

    def told(self, by: str, message: Mapping[str, Any]) -> None:
        """An event that a session has put into its tree's log."""
        if message.get("type") == "sub_agent_tool_call_tokens":
            self._tokens[by] = message["tokens"]
        if message.get("event") == "deleted":
            self._deleted.add(message["session_id"])
        budget, seen = message.get("budget"), self._watch.sessions.get(by)
        if budget is None or message.get("type") != "warning" or seen is None or self._watch.reads_anew:
            return
        if budget["agent_id"] != seen.state.facts.agent_id or budget["used"] * 5 < budget["limit"] * 4:
            self._broken(
                "warned", f"{by} is agent {seen.state.facts.agent_id}, and people are told {message}"
            )

    def _helper_ended(self, session: str, seen: Seen, message: Mapping[str, Any]) -> None:
        """The end of a helper is told as it ended, with what it has used."""
        helpers = [
            (its.state.facts.agent_id, name, its)
            for name, its in self._watch.members[seen.tree].items()
            if its.state.facts.helper_call == message["call_id"] and its.state.facts.parent_session == session
        ]
        if not helpers or message["outcome"] not in OUTCOMES or self._watch.reads_anew:
            return
        _, name, its = max(helpers, key=lambda one: one[0])
        end = its.grammar.ends.get(max(its.grammar.ends, default=0))
        wanted = OUTCOMES.get(end["outcome"], "cancelled") if end is not None else "nothing"
        if message["outcome"] != wanted:
            self._broken("kin", f"{session}: the helper {name} {wanted}, and is told as {message['outcome']}")
        assert end is not None
        self._watch.reach.saw("helper_ended")
        if (message.get("tokens") or 0) != end["used"]:
            self._broken(
                "kin", f"{session}: {message.get('tokens')} tokens are told of {end['used']} of {name}"
            )
        if wanted == "completed" and self._tokens.get(name, 0) != end["used"]:
            told = self._tokens.get(name)
            self._broken("kin", f"{session}: {name} told of {told} tokens last, and used {end['used']}")

    # ── behind each step ──────────────────────────────────────────────────────────────────────

    def stepped(self, session: str, seen: Seen, consumed: Sequence[Waiting]) -> None:
        """Called behind each step of a session, with what it took from the queue."""
        if any(one.label for one in consumed):
            # What it sent before it was renamed says what it was called then.
            self._renamed.add(session)
        orders = map(order_of, consumed)
        self._ordered[session] = [order for order in orders if order is not None]
        if session in self._in_pieces:
            self._put_off.setdefault(session, []).extend(self._ordered[session])
        if self._watch.reads_anew:
            return
        tree = seen.state.tree
        for one in consumed:
            if one.label and not (tree.canceling or tree.pruned or seen.state.closing or seen.state.closed):
                self._named[session] = one.label
        label = self._named.get(session)
        if label is not None and tree.label != label:
            self._broken("kin", f"{session} was called {label!r}, and is called {tree.label!r}")
        self._waits_in_vain(session, seen)
        self._begins(session, seen)
        self._helps_nobody(session, seen)

    def _helps_nobody(self, session: str, seen: Seen) -> None:
        """A helper is at work while its call waits for it, or until it has ended as it was told."""
        task, helpers = seen.state.task, [one for one in seen.state.tree.children.values() if one.helper]
        works = [one.agent_id for one in helpers if one.active and not (one.pruned or one.ending)]
        to_end = seen.state.tree.to_end
        if not works:
            return
        awaited: set[int] = set()
        for call in task.calls.begun if task is not None else ():
            of_call = getattr(call.work, "agent_ids", (getattr(call.work, "agent_id", -1),))
            awaited.update(of_call if call.phase == "waiting" else ())
        if left := set(works) - awaited - set(to_end):
            self._broken("awaited", f"{session}: the helpers {sorted(left)} work, and no call waits for them")

    def _begins(self, session: str, seen: Seen) -> None:
        """A letter that comes to an idle session begins a turn if it is an order, or a wanted result.

        Where input waits for the turn that it goes on from, its turn is the next one, and reads the letter.
        """
        log, before = seen.grammar, self._inboxes.get(session, ())
        self._inboxes[session] = tuple(log.inbox)
        over = seen.state.tree.canceling or seen.state.tree.pruned or log.closing or log.closed
        if log.task is not None or over or log.looks_back or not log.has_completed:
            return
        new = [key for key in log.inbox if key not in before]
        if log.begins_turn(new):
            self._broken("awaited", f"{session}: {new} came, and nothing begins")

    def _waits_in_vain(self, session: str, seen: Seen) -> None:
        """An await ends when there is something to read, an order came, or nothing is to come any more."""
        log = seen.grammar
        call_id = log.awaiting
        if call_id is None or log.closing or log.agent.get("canceling"):
            return
        self._watch.reach.saw("awaited")
        if there := log.awaited_of(call_id):
            self._broken("awaited", f"{session}: {call_id} waits, and could read {there}")
        if orders := log.orders():
            self._broken("awaited", f"{session}: {call_id} waits, and {orders} tell it what to do")
        if said := [item for item in log.task["steered"] if ADDED not in item] if log.task else []:
            self._broken("awaited", f"{session}: {call_id} waits, and a person has said {said}")
        if not log.to_come(call_id):
            self._broken("awaited", f"{session}: {call_id} waits, and nothing is to come")

    def settled(self, touched: Sequence[str]) -> None:
        """Called when all that a script has written was read: who knows what of whom."""
        sent, self._sent = self._sent, []
        if not self._watch.reads_anew:
            for to, one in sent:
                self._was_sent(to, one)
        self._in_pieces.clear()
        self._renamed.clear()
        if self._watch.reads_anew:
            return
        for session in touched:
            seen = self._watch.sessions.get(session)
            if seen is None:
                continue
            above = self._watch.sessions.get(str(seen.state.facts.parent_session))
            if above is not None:
                self._counts_on(above, session, seen)
            for child in seen.state.tree.children.values():
                below = self._watch.sessions.get(child.session)
                if below is not None and child.session not in touched:
                    self._counts_on(seen, child.session, below)

    def _was_sent(self, to: str, one: Waiting) -> None:
        """A letter says what its sender's log says, and who asked for what it passes on."""
        sender, receiver = self._watch.sessions.get(one.sender), self._watch.sessions.get(to)
        if sender is None or receiver is None or sender.instead or one.sender in self._renamed:
            return
        if wrong := untrue_letter(one.mail, sender.grammar, receiver.grammar):
            self._broken("kin", f"{one.sender} sends {to} {one.id}: {wrong}")
        known = self._put_off if one.sender in self._in_pieces else self._ordered
        orders = known.get(one.sender, [])
        if one.letter not in PASSED_ON or not orders:
            return
        if any(order.by for order in orders):
            self._watch.reach.saw("passed_on_late" if known is self._put_off else "passed_on")
        if untrue_order(one.mail, orders):
            self._broken("kin", f"{one.sender} sends {to} {one.id}: {one.mail}, and was told {orders}")

    def _counts_on(self, above: Seen, session: str, seen: Seen) -> None:
        """An agent knows which of its own are at work, when nothing is on its way to it or to them."""
        known = above.state.tree.children.get(seen.state.facts.agent_id)
        tree = seen.state.tree
        if known is None or known.pruned or tree.canceling or tree.pruned or tree.status is None:
            return
        if any(one.kind == "mail" for one in (*above.queue, *seen.queue)) or above.state.closed:
            return
        works = tree.status in AT_WORK
        if works and not known.active:
            self._broken("counts_on", f"{session} is {tree.status}, and {known.status} to the one above it")
        if known.active and not works and not tree.inbox:
            self._broken("counts_on", f"{session} is {tree.status}, and {known.status} to the one above it")
        if works and known.turn:
            self._watch.reach.saw("counts_on")
