"""Words for the model, read a second time: letters, outputs of stopped and of lost calls, answers, tasks.

Written from `docs/trees.md`, `docs/questions.md` and `docs/instructions.md`: which text stands where, behind
what, and in which order.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from orchestrator.core.decide import mail_delivery
from orchestrator.core.entries import DENDRO, EVENT_MSG, RESPONSE_ITEM, Entry
from sim.agent_cards import awaited_row, unlike
from sim.grammar_calls import CallGrammar
from sim.grammar_terms import (
    CONTEXT,
    OUTPUTS,
    PNG,
    REDACTED,
    Item,
    Wrong,
    check,
    is_marker,
    opens,
    tells_manners,
    text_of,
)

STOPPED = re.compile(r"aborted by user( after \d+\.\d+s)?(; its run in the sandbox gave:\n.*)?", re.DOTALL)
NOT_KEPT = "[a secret answer, not kept]"
TOLD = ("cwd", "approval_policy", "sandbox_mode")
SUMMARY_CHARS = 80
LETTER_BYTES = 2_000
"""Bytes that a letter takes at most in an await's output."""
Mail = Mapping[str, Any]


class ToldGrammar(CallGrammar):
    """The texts of a conversation that the session itself has written."""

    def __init__(self) -> None:
        super().__init__()
        self._recent: list[Item] = []
        """Items since letters were taken last, or a request began."""
        self._untold: list[Mail] = []
        """Letters that were taken, and are to be told by the output that follows."""
        self._said_by: list[tuple[str | None, str | None]] = []
        """The person, or the session, that clients were told of with each of the last words."""

    def is_told(self, entry: Entry, epoch: int) -> None:
        """Takes an entry before anything else is known of it."""
        if entry.type == RESPONSE_ITEM:
            self._recent.append(entry.payload)
            self._item_is_true(entry, epoch)
        elif entry.type == EVENT_MSG and entry.payload["type"] == "user_message":
            self._said_by.append((entry.payload.get("who"), entry.payload.get("from_session")))
        elif entry.type == DENDRO and entry.payload["kind"] == "mail_taken":
            self._taken(entry.payload["keys"])
        elif entry.type == DENDRO and entry.payload["kind"] == "child_changed":
            if entry.payload["changes"].get("status") == "running":
                # New work for a child: what it had done before answers nothing any more.
                self._untold = [mail for mail in self._untold if not _is_result_of(mail, entry.payload)]
        elif entry.type == DENDRO and entry.payload["kind"] == "request_begun":
            self._all_is_told()
            self._recent.clear()

    def _item_is_true(self, entry: Entry, epoch: int) -> None:
        item, task = entry.payload, self.task
        if item.get("type") in OUTPUTS:
            self._output_is_true(item, epoch)
        elif is_marker(entry):
            self._due.append(("the end of an interrupted turn", _interrupted))
        if task is None or item.get("role") != "user":
            return
        if task["steered"] and self.was(item) == self.was(task["steered"][0]):
            left = [id for id, call in task["calls"].items() if not call["output"]]
            check(not left, f"{text_of(item)!r} joins before {left} have their outputs")
        if task["id"].startswith("spawn-") and not task["given"] and not text_of(item).startswith(CONTEXT):
            task["given"] = True
            told = " ".join(text_of(item).split())[:SUMMARY_CHARS]
            summary = self.agent.get("summary") or ""
            check(
                told == summary or summary.endswith("…"), f"an agent is given {told!r}, and told {summary!r}"
            )

    def _event_warning(self, message: Mapping[str, Any], entry: Entry) -> None:
        told = message["message"]
        self.doubted = [name for name in self.doubted if f"{name} " not in told]

    def people_are_warned(self) -> None:
        """People were told of all that a step found in doubt."""
        check(not self.doubted, f"nobody was warned that {self.doubted} are in doubt, or gone")

    # ── letters ───────────────────────────────────────────────────────────────────────────────

    def _taken(self, keys: Sequence[str]) -> None:
        self._all_is_told()
        if self.closing or self.agent.get("canceling"):
            # What reaches an agent that ends is read by nobody.
            return
        mails = [self.mails[key] for key in keys if key in self.mails]
        orders = [mail for mail in mails if self._instructs(mail)]
        groups = _groups(mail for mail in mails if not self._instructs(mail))
        tail = self._recent[-(len(orders) + 2 * len(groups)) :]
        self._recent.clear()
        if (tail and _is_synthetic(tail[-1])) or (orders and not groups):
            self._are_delivered(mails, orders, groups, tail)
        else:
            self._untold = mails

    def _instructs(self, mail: Mail) -> bool:
        """Whether it is a message from above, where people are: it is read as a user's."""
        content = mail["content"]
        ancestors = str(self.facts.get("agent_path", "0")).split("/")[:-1]
        above = mail["kind"] == "message" and str(mail["sender"]["agent_id"]) in ancestors
        return bool(content.get("person")) or (above and not content.get("watchdog"))

    def _are_delivered(
        self,
        mails: Sequence[Mail],
        orders: Sequence[Mail],
        groups: Sequence[Sequence[Mail]],
        tail: list[Item],
    ) -> None:
        """Letters reach the model at a boundary: what instructs first, and interrupts before all else."""
        if self.task is not None:
            left = [id for id, call in self.task["calls"].items() if not call["output"]]
            check(not left, f"letters are told before {left} have their outputs")
        waiting = [self.mails[key] for key in self.inbox]
        autosubmit = (self.facts.get("tree_rules") or {}).get("autosubmit", True)
        by_themselves = [mail for mail in waiting if autosubmit or mail["kind"] == "message"]
        if self.task is not None and self.owes_compaction(self.task):
            # No summary stands for what nobody else has read.
            by_themselves = [mail for mail in by_themselves if self._instructs(mail)]
        by_themselves.sort(key=lambda mail: not mail["interrupt"])
        first = [mail["key"] for mail in by_themselves[: len(mails)]]
        check([mail["key"] for mail in mails] == first, f"{first} are next, and told are {mails}")
        shown = self._said_by[-len(orders) :] if orders else []
        for mail, item, (who, of) in zip(orders, tail, shown, strict=False):
            prompt, told = mail["content"]["prompt"], text_of(item)
            check(not isinstance(prompt, str) or told == prompt, f"{prompt!r} is told as {told!r}")
            person = mail["content"].get("person")
            named = (person, None) if person else (None, mail["sender"]["session_id"])
            check((who, of) == named, f"{mail['key']} is shown as said by {who or of}, not {named}")
        self._said_by.clear()
        told_by = tail[len(orders) :]
        for group, call, output in zip(groups, told_by[::2], told_by[1::2], strict=True):
            wanted = f"await-{self.facts['agent_id']}-{group[0]['n']}"
            ids = {call.get("call_id"), output.get("call_id")}
            check(ids == {wanted}, f"letters from {group[0]['n']} on are told by {ids}")
            told = output["output"]
            if isinstance(told, str) and told != REDACTED:
                result = orjson.loads(told)
                check(result["injected"] and not result["timed_out"], f"nobody called {wanted}: {told}")
                self._are_told([group], result["ready"])

    def _all_is_told(self) -> None:
        """Letters that left the inbox were told, or their agent is off the list."""
        for mail in self._untold:
            check(self._is_void(mail), f"the letter {mail['key']} was taken, and is told to nobody")
        self._untold = []

    def _is_void(self, mail: Mail) -> bool:
        """Whether it is the end of an agent that was taken off the list, or of a helper."""
        child = self.children.get(mail["sender"]["agent_id"], {})
        return mail["kind"] == "completion" and bool(child.get("pruned") or child.get("helper"))

    def _are_told(self, groups: Sequence[Sequence[Mail]], ready: Sequence[Mapping[str, Any]]) -> None:
        check(len(groups) == len(ready), f"{len(ready)} agents are told of, and {len(groups)} have written")
        for group, told in zip(groups, ready, strict=True):
            done: Mapping[str, Any] = next(
                (mail["content"] for mail in group if mail["kind"] == "completion"), {}
            )
            child = self.children.get(group[0]["sender"]["agent_id"])
            messages = [_message(mail, self.facts["agent_id"]) for mail in group if mail["kind"] == "message"]
            same = len(messages) == len(told["messages"]) and all(
                one == other or not isinstance(one["prompt"], str)
                for one, other in zip(messages, told["messages"], strict=True)
            )
            check(same, f"{messages} are told as {told['messages']}")
            for name in ("completion", "completion_status"):
                same = told[name] == done.get(name) or "$blob" in str(done.get(name))
                check(same, f"{name} {done.get(name)} is told as {told[name]}")
            metadata, own = told["metadata"], awaited_row(child, group[0]["sender"], self.facts)
            if own["status"] == "idle" and metadata["status"] == "ready" and done:
                # With this output its result is read.
                own["status"] = "ready"
            shown = {**metadata, "started_at_ms": told["started_at_ms"]}
            if wrong := unlike(shown, own):
                raise Wrong(f"of agent {own['agent_id']} {wrong}")
            check(told["session_id"] == own["session_id"], f"{own} is told under {told['session_id']}")
            wanted = done.get("status", own["status"])
            check(told["lifecycle_status"] == wanted, f"{wanted} is told as {told['lifecycle_status']}")

    # ── outputs ───────────────────────────────────────────────────────────────────────────────

    def _output_is_true(self, item: Item, epoch: int) -> None:
        output, asked = item["output"], self.asked.get(item["call_id"], {})
        call = self.task["calls"].get(item["call_id"]) if self.task is not None else None
        if call is None:
            return
        if isinstance(output, str) and output.startswith("aborted by user"):
            stopped = STOPPED.fullmatch(output)
            check(stopped, f"a call that was stopped is told as {output!r}")
            ran = call["phase"] == "running" or (stopped and stopped[2])
            check(ran or (stopped and not stopped[1]), f"{item['call_id']} never ran: {output!r}")
        elif isinstance(output, str) and output.startswith("in doubt"):
            began = call.get("epoch", 0)
            check(0 < began < epoch, f"{item['call_id']} of epoch {began} is in doubt under {epoch}")
            self.doubted.append(item["call_id"])
        elif call["kind"] in ("question", "user_input") and str(output).startswith('{"answers"'):
            _are_answers(call, orjson.loads(str(output))["answers"])
        elif call["kind"] == "client_tool" and not isinstance(output, str):
            self._is_of_client(item["call_id"], output)
        if asked.get("name") == "subagent_await" and isinstance(output, str) and output.startswith("{"):
            result = orjson.loads(output)
            if not result["injected"]:
                taken, self._untold = [mail for mail in self._untold if not self._is_void(mail)], []
                self._are_told(_groups(taken), result["ready"])
                self._brings_all(item["call_id"], taken, len(output))

    # ── letters that begin a turn ─────────────────────────────────────────────────────────────

    def begins_turn(self, keys: Iterable[str]) -> bool:
        """Whether one of these letters begins a turn of an idle session: an order does, and a result if that
        is wanted and the last task has completed; so does what agents write to a root."""
        wanted = (self.facts.get("tree_rules") or {}).get("autosubmit", True)
        results = wanted and self._ended.get("outcome") == "completed"
        mails = [self.mails[key] for key in keys]
        own = bool(self.facts.get("agent_id"))
        return any(
            mail["interrupt"]
            or mail["content"].get("person")
            or (mail["kind"] == "message" and own)
            or results
            for mail in mails
        )

    @property
    def has_completed(self) -> bool:
        """Whether the last task was not stopped, and has not failed."""
        return bool(self._ended.get("outcome", "completed") == "completed")

    # ── awaits ────────────────────────────────────────────────────────────────────────────────

    def _brings_all(self, call_id: str, taken: Sequence[Mail], size: int) -> None:
        """An await brings all that is there, as far as it carries it: interrupts first, and as they came."""
        ordered = sorted(taken, key=lambda mail: (not mail["interrupt"], mail["n"]))
        first = [mail["key"] for group in _groups(ordered) for mail in group]
        told = [mail["key"] for mail in taken]
        check(told == first, f"{call_id} brings {told}, and they came as {first}")
        left = self.awaited_of(call_id)
        full = size + LETTER_BYTES * len(left) > mail_delivery.MOST_BYTES
        check(not left or full, f"{call_id} brings {told}, and leaves {left}")

    @property
    def awaiting(self) -> str | None:
        """The call that waits for agents; None while nothing does, or what waits is stopped."""
        task = self.task
        if task is None or task["stopping"]:
            return None
        waiting = (id for id, call in task["calls"].items() if call["phase"] == "waiting")
        return next((id for id in waiting if self.asked[id].get("name") == "subagent_await"), None)

    def awaited_of(self, call_id: str) -> list[str]:
        """The letters in the inbox that an await brings: none that instructs, and of those that it names."""
        named = self._named_by(call_id)
        return [
            key
            for key in self.inbox
            if not self._instructs(mail := self.mails[key])
            and (not named or (id := mail["sender"]["agent_id"]) in named or id not in self.children)
        ]

    def orders(self) -> list[str]:
        """The letters in the inbox that instruct."""
        return [key for key in self.inbox if self._instructs(self.mails[key])]

    def to_come(self, call_id: str) -> list[int]:
        """The agents at work whose letters an await waits for."""
        named = self._named_by(call_id)
        return [
            id
            for id, child in self.children.items()
            if child["status"] in ("queued", "running") and not child["pruned"] and (not named or id in named)
        ]

    def _named_by(self, call_id: str) -> list[int]:
        return list(orjson.loads(self.asked[call_id]["arguments"]).get("agent_ids") or ())

    def _is_of_client(self, call_id: str, parts: Sequence[Item]) -> None:
        """The parts of a client's answer, as every person of a simulation gives them."""
        words, *pictures = parts
        named = (call_id, self._task["id"])
        check(words.get("text") in named, f"the client's words for {call_id} are told as {words}")
        for picture in pictures:
            shown = picture.get("image_url", "")
            check(shown.endswith(PNG), f"the client's picture for {call_id} is told as {shown[:40]!r}")

    # ── a request ─────────────────────────────────────────────────────────────────────────────

    def knows_where_it_is(self) -> None:
        """A request begins with what its model works under."""
        said = [self.was(item) for item in self.conversation]
        first = said[0] if said else {}
        begins = opens(first) or tells_manners(first) or first.get("type") == "inherited"
        lost = REDACTED in map(text_of, _messages(said))
        check(begins or lost, f"a conversation begins with {first}")
        texts = [text_of(item) for item in said if item.get("role") == "user"]
        context = "".join(text for text in texts if text.startswith(CONTEXT[0]))
        inherits = any(item.get("type") == "inherited" for item in self.conversation)
        lacking = [name for name in TOLD if f"<{name}>" not in context]
        check(inherits or not lacking or lost, f"a model is not told of {lacking}")


def _are_answers(call: Mapping[str, Any], answers: Mapping[str, Any]) -> None:
    """Answers to questions stand in the order of those, each under its own."""
    names = [one.get("id") or one["header"] for one in call["spec"]["questions"]]
    secret = {one.get("id") for one in call["spec"]["questions"] if one.get("isSecret")}
    # Who answers in a simulation says something to a question, or names one that nobody has asked.
    unsaid = [name for name, given in answers.items() if isinstance(given, Mapping) and not given["answers"]]
    check(not unsaid or len(unsaid) < len(answers), f"the questions {unsaid} are answered with nothing")
    check([name for name in names if name in answers] == [*answers], f"{names} are answered as {answers}")
    for name, given in answers.items():
        for text in given["answers"] if isinstance(given, Mapping) else (given,):
            own = text == NOT_KEPT if name in secret else text.endswith(f"-{name}")
            check(own, f"the question {name} is answered with {text!r}")


def _groups(mails: Iterable[Mail]) -> list[list[Mail]]:
    """Letters by their senders, with one result each, in the order in which each group begins."""
    found: dict[tuple[int, int], list[Mail]] = {}
    results: dict[int, int] = {}
    for mail in mails:
        sender = mail["sender"]["agent_id"]
        found.setdefault((sender, results.get(sender, 0)), []).append(mail)
        results[sender] = results.get(sender, 0) + (mail["kind"] == "completion")
    return list(found.values())


def _message(mail: Mail, recipient: int) -> dict[str, Any]:
    return {
        "sender_agent_id": mail["sender"]["agent_id"],
        "recipient_agent_id": recipient,
        "interrupt": mail["interrupt"],
        "prompt": mail["content"].get("prompt"),
        "timestamp_ms": mail["at_ms"],
    }


def _is_result_of(mail: Mail, fact: Mapping[str, Any]) -> bool:
    return bool(mail["kind"] == "completion" and mail["sender"]["agent_id"] == fact["agent_id"])


def _is_synthetic(item: Item) -> bool:
    return item.get("type") in OUTPUTS and str(item.get("call_id")).startswith("await-")


def _interrupted(entry: Entry) -> bool:
    message = entry.payload
    return (
        entry.type == EVENT_MSG and message["type"] == "turn_aborted" and message["reason"] == "interrupted"
    )


def _messages(items: Iterable[Item]) -> Iterator[Item]:
    return (item for item in items if item.get("type") == "message")
