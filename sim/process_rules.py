"""Processes, read a second time: what a log says of them, and what the kernel did and people asked for.

It reads facts, events and items by their names, keeps its own account of who lives, who is being stopped and
how far each process was read, and shares nothing with the product's fold. What Redis lost by going back is
excused: then a worker goes by a branch that no log has.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from orchestrator.core.entries import DENDRO, EVENT_MSG, RESPONSE_ITEM, Entry
from orchestrator.tools.exec import worker_processes as live
from sim.grammar_terms import MEANT, only_plans, text_of
from sim.ledger import Ledger, Run
from sim.observer import Observer
from sim.processes import KILLED
from sim.queued import Waiting
from sim.seen import Seen

SLACK_S = 45.0
"""The time by which a worker that stands still may be late to end what nobody looks at."""
MOST_KEPT = 10_000
"""Characters of last words that are kept whole."""
MOST_UNREAD = 16
"""Ended processes whose last words are kept."""
GONE = "<process_gone>"
UNSEEN = "killed: nobody looked"
KILLING = ("interrupted", "canceled")
CAUSES = frozenset({"interrupt", "shutdown", "configure_session", "exec_approval", "patch_approval"})
"""Ops that may stop processes; so may letters: an interrupt, a cancel, an answer from the root."""
_LOOK = re.compile(
    r"(?P<not>not typed: [^\n]*\n)?Wall time: \d+\.\d seconds\n"
    r"Process (?:running with session ID (?P<number>\d+)|exited with code (?P<code>-?\d+))\n"
    r"Output:\n(?P<said>.*)",
    re.DOTALL,
)
_CUT = re.compile(r"\n\[\.\.\. omitted \d+ of (\d+) bytes \.\.\.\]\n")


@dataclass(slots=True)
class _Process:
    number: int
    call_id: str
    epoch: int
    policies: Any
    tty: bool
    sandboxed: bool
    run: Run | None
    read: int = 0
    """Characters of what it wrote that the model has read."""
    stopping: bool = False


@dataclass(slots=True)
class _Start:
    """A call that began a command which may go on."""

    number: int
    tokens: int
    policies: Any
    sandboxed: bool


@dataclass(slots=True)
class _Look:
    number: int
    tokens: int
    chars: str


@dataclass(slots=True)
class _Known:
    """A session's processes, as far as its log was read."""

    living: dict[int, _Process] = field(default_factory=dict)
    over: dict[int, _Process] = field(default_factory=dict)
    """Those that a call of this very step has read to their end."""
    unread: dict[int, tuple[int, str]] = field(default_factory=dict)
    reading: tuple[int, int, str] | None = None
    """An ended process's number, exit code and last words, which the next output is to tell."""
    starts: dict[str, _Start] = field(default_factory=dict)
    looks: dict[str, _Look] = field(default_factory=dict)
    said: dict[str, int] = field(default_factory=dict)
    """Words that the log says are typed, and to which process."""
    end: Mapping[str, Any] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    """Lost ones of which the model has not been told."""
    stops: set[int] = field(default_factory=set)
    """Those that this step stops, and that lived before it."""
    born: set[int] = field(default_factory=set)
    configured: set[str] = field(default_factory=set)
    canceling: bool = False
    task: str = ""
    """The task that held the session before this step."""
    replaced: bool = False
    """Whether the task was being replaced behind the last step."""
    before: tuple[int, ...] = ()


class ProcessRules:
    """The rules of processes; see `sim/invariants_of_processes.py`."""

    def __init__(self, watch: Observer, ledger: Ledger) -> None:
        self._watch, self._ledger = watch, ledger
        self._known: dict[str, _Known] = {}
        self._typed: set[tuple[str, str]] = set()
        """Words that were typed, by session."""
        ledger.typed = self._is_typed

    def went_back(self) -> None:
        """All logs are read anew."""
        self._known.clear()

    # ── entry by entry ────────────────────────────────────────────────────────────────────────

    def entry(self, session: str, seen: Seen, entry: Entry, epoch: int) -> None:
        """Called when the second reading of the log has taken the entry."""
        if not seen.grammar.facts.get("unified_exec"):
            return
        known = self._known.get(session)
        if known is None:
            known = self._known[session] = _Known()
        payload = entry.payload
        if entry.type == DENDRO:
            self._fact(session, seen, known, payload, epoch)
        elif entry.type == EVENT_MSG and payload["type"] == "exec_command_end":
            known.end = payload
        elif entry.type == EVENT_MSG and payload["type"] == "terminal_interaction":
            self._types(session, seen, known, payload)
        elif entry.type == EVENT_MSG and payload["type"] == "session_configured":
            known.configured.add(entry.id)
        elif entry.type == RESPONSE_ITEM and payload.get("type") == "function_call_output":
            self._output(session, seen, known, payload["call_id"], payload["output"])
        elif entry.type == RESPONSE_ITEM:
            self._says(known, payload)

    def _fact(self, session: str, seen: Seen, known: _Known, fact: Mapping[str, Any], epoch: int) -> None:
        match fact["kind"]:
            case "call" if fact["phase"] == "running":
                self._begins(session, seen, known, fact)
            case "process":
                start = known.starts[fact["call_id"]]
                if fact["number"] != start.number or fact.get("sandboxed", True) is not start.sandboxed:
                    self._broken("typed", session, f"process {fact['number']} is kept as {dict(fact)}")
                known.living[start.number] = _Process(
                    start.number,
                    fact["call_id"],
                    epoch,
                    start.policies,
                    fact.get("tty", False),
                    start.sandboxed,
                    self._run(session, fact["call_id"], start.number),
                )
                known.born.add(start.number)
            case "processes_stopping":
                for number in fact["numbers"]:
                    known.living[number].stopping = True
                known.stops.update(set(fact["numbers"]) - known.born)
            case "process_over":
                self._ends(session, known, fact, epoch)
            case "process_read":
                known.reading = (fact["number"], *known.unread.pop(fact["number"]))
            case "agent" if "canceling" in fact["changes"]:
                known.canceling = bool(fact["changes"]["canceling"])
            case "steered":
                self._says(known, fact["item"])
            case _:
                pass

    def _begins(self, session: str, seen: Seen, known: _Known, fact: Mapping[str, Any]) -> None:
        spec, settings = fact.get("spec", {}), seen.grammar.task and seen.grammar.task["settings"]
        policies = settings and (settings["approval_policy"], settings["sandbox_policy"])
        if spec.get("kind") == "exec" and spec.get("lasting"):
            lasting = spec["lasting"]
            known.starts[fact["call_id"]] = _Start(
                lasting["number"], lasting["max_tokens"], policies, spec["sandboxed"]
            )
        elif spec.get("kind") == "stdin":
            living = known.living.get(spec["number"])
            if living is None or living.stopping or spec["number"] in known.unread:
                self._broken("typed", session, f"{fact['call_id']} looks at process {spec['number']}")
            known.looks[fact["call_id"]] = _Look(spec["number"], spec["max_tokens"], spec["chars"])

    def _types(self, session: str, seen: Seen, known: _Known, message: Mapping[str, Any]) -> None:
        number = int(message["process_id"])
        process = known.living.get(number)
        if process is None or not process.tty or self._differs(seen, process):
            self._broken("typed", session, f"something is typed to process {number} of other policies")
        known.said[message["stdin"]] = number

    def _differs(self, seen: Seen, process: _Process) -> bool:
        """Whether the running task may not type to the process."""
        grammar = seen.grammar
        task = grammar.task
        assert task is not None
        settings = task["settings"]
        now = settings["approval_policy"], settings["sandbox_policy"]
        reads = only_plans(settings) or grammar.aside is not None or grammar.facts.get("helper_call")
        return bool(now != process.policies or (reads and not process.sandboxed))

    # ── what the model reads ──────────────────────────────────────────────────────────────────

    def _output(self, session: str, seen: Seen, known: _Known, call_id: str, output: Any) -> None:
        if not isinstance(output, str):
            return
        start, look = known.starts.get(call_id), known.looks.get(call_id)
        told = _LOOK.fullmatch(output)
        if known.reading is not None:
            self._reads_last(session, seen, known, call_id, output)
        elif start is not None:
            self._first(session, known, call_id, start, told)
        elif look is not None:
            self._looks(session, known, call_id, look, told)
        elif seen.grammar.asked.get(call_id, {}).get("name") == "write_stdin":
            self._refused(session, seen, known, call_id, output)

    def _first(
        self, session: str, known: _Known, call_id: str, start: _Start, told: re.Match[str] | None
    ) -> None:
        """The output of a call that began a command."""
        process = known.living.get(start.number)
        if process is not None and process.call_id != call_id:
            process = None
        if told is None:
            if process is not None:
                self._broken("process_said", session, f"{call_id} goes on, and the model is not told so")
            return
        if (told["number"] is not None) is not (process is not None):
            self._broken("process_said", session, f"{call_id} is told as {told[0][:80]!r}")
        if process is None:
            run = self._run(session, call_id, start.number)
            process = _Process(start.number, call_id, 0, None, False, False, run)
        self._takes(session, process, told, start.tokens, start.number)

    def _looks(
        self, session: str, known: _Known, call_id: str, look: _Look, told: re.Match[str] | None
    ) -> None:
        """The output of a call that looked at a process, or typed to it."""
        if told is None:
            return
        process = known.living.get(look.number) or known.over.pop(look.number, None)
        if process is None:
            self._broken("process_said", session, f"{call_id} tells of process {look.number}, which is over")
            return
        if told["code"] is not None and look.number in known.living:
            self._broken(
                "process_ended", session, f"{call_id} has read the end of {look.number}, which lives"
            )
        self._takes(session, process, told, look.tokens, look.number)
        if look.chars and told["code"] is None and not self._excused(process.run):
            typed = (session, look.chars) in self._typed
            if typed is bool(told["not"]):
                self._broken("typed", session, f"{look.chars!r} was typed: {typed}; told is {told[0][:40]!r}")

    def _takes(self, session: str, process: _Process, told: re.Match[str], tokens: int, number: int) -> None:
        """A look tells what the process has said since the last one, and that it lives or how it ended."""
        run = process.run
        if told["number"] is not None and int(told["number"]) != number:
            self._broken("process_said", session, f"process {number} is told as {told['number']}")
        if run is None or self._excused(run):
            return
        said, left = told["said"], run.wrote[process.read :]
        cut = _CUT.search(said)
        length = int(cut[1]) if cut is not None else len(said)
        if said != _shortened(left[:length], 4 * tokens):
            told_of = f"process {number} said {left[:length]!r}"
            self._broken("process_said", session, f"{told_of}, and the model reads {said!r}")
        process.read += length
        if told["code"] is not None:
            if process.read != len(run.wrote):
                self._broken("process_said", session, f"the model never reads {run.wrote[process.read :]!r}")
            self._is_true_end(session, run, int(told["code"]), number)

    def _reads_last(self, session: str, seen: Seen, known: _Known, call_id: str, output: str) -> None:
        """The last words of a process that ended while nobody looked."""
        assert known.reading is not None
        number, code, unread = known.reading
        known.reading = None
        said = _shortened(unread, 400)
        wanted = f"Wall time: 0.0 seconds\nProcess exited with code {code}\nOutput:\n{said}"
        if _asked(seen, call_id)["number"] != number or output != wanted:
            self._broken("process_said", session, f"{call_id} reads {output!r}, not {wanted!r}")
        self._watch.reach.saw("process_said")

    def _refused(self, session: str, seen: Seen, known: _Known, call_id: str, output: str) -> None:
        """A call that was not to look or to type: for a reason that holds."""
        number, process = _asked(seen, call_id)["number"], known.living.get(_asked(seen, call_id)["number"])
        lives = process is not None and not process.stopping
        if output.startswith("no process"):
            holds = not lives and number not in known.unread
        elif "has no terminal" in output:
            holds = lives and process is not None and not process.tty
        elif "under other policies" in output:
            holds = lives and process is not None and self._differs(seen, process)
            self._watch.reach.saw("typed")
        elif (told := _LOOK.fullmatch(output)) is not None and told["code"] is not None:
            # The last words that are kept are read by the log's word, once.
            self._broken(
                "process_said", session, f"{call_id} reads the end of {number}, and the log does not"
            )
        else:
            return
        if not holds:
            self._broken("typed", session, f"{call_id} is refused, and need not be: {output!r}")

    def _says(self, known: _Known, item: Mapping[str, Any]) -> None:
        """The model may be told which processes are gone."""
        if not (known.gone or known.over) or item.get("role") != "user":
            return
        told = text_of(item)
        for number in [*known.gone, *known.over] if told.startswith(GONE) else ():
            if f"process {number} (" in told:
                known.gone.discard(number)
                known.over.pop(number, None)

    # ── ends ──────────────────────────────────────────────────────────────────────────────────

    def _ends(self, session: str, known: _Known, fact: Mapping[str, Any], epoch: int) -> None:
        number, code = fact["number"], fact.get("exit_code")
        process = known.living.pop(number)
        run, lost = process.run, process.epoch != epoch
        if lost:
            self._watch.reach.saw("process_ended")
            known.gone.add(number)
            if known.end.get("exit_code") != -1:
                self._broken("process_ended", session, f"process {number} was lost, and ends as {known.end}")
            return
        if run is not None and not self._excused(run):
            self._is_true_end(session, run, known.end.get("exit_code"), number)
            said = known.end.get("aggregated_output")
            if isinstance(said, str) and said != run.wrote:
                self._broken("process_ended", session, f"process {number} ends with {said!r}")
        if code is None:
            # Read by a call, which tells of it next, or gone with a worker that leaves.
            known.over[number] = process
            return
        unread = fact.get("unread", "")
        known.unread[number] = (code, unread)
        if len(known.unread) > MOST_UNREAD:
            del known.unread[next(iter(known.unread))]
        if run is None or self._excused(run):
            return
        if unread.startswith(UNSEEN):
            unread = unread.partition("\n")[2]
            self._watch.reach.saw("unseen")
            if (seen_s := run.ended_s - run.looked_s) < live.UNSEEN_S - 0.001:
                self._broken("unseen", session, f"process {number} was looked at {seen_s:.1f} s before")
        elif run.ended_s - run.looked_s > live.UNSEEN_S + SLACK_S:
            self._broken("unseen", session, f"nobody looked at process {number}, and it lived")
        left = run.wrote[process.read :]
        if len(left) <= MOST_KEPT and unread != left:
            self._broken("process_said", session, f"{left!r} of process {number} is kept as {unread!r}")
        if code != known.end.get("exit_code"):
            self._broken("process_ended", session, f"process {number} ended twice otherwise: {code}")

    def _is_true_end(self, session: str, run: Run, code: Any, number: int) -> None:
        if run.state == "running":
            self._broken("process_ended", session, f"process {number} has ended in the log, and runs")
        wanted = run.exit_code if run.state == "finished" else KILLED
        if code != wanted:
            self._broken("process_ended", session, f"process {number} ended with {wanted}, told is {code}")

    # ── step by step ──────────────────────────────────────────────────────────────────────────

    def stepped(self, session: str, seen: Seen, consumed: Sequence[Waiting]) -> None:
        """Called behind each step of a session, with what it took from the queue."""
        known = self._known.get(session)
        if known is None:
            return
        task = seen.grammar.task
        if not self._watch.reads_anew:
            self._all_stop(session, seen, known)
            self._all_looked_at(session, known)
            for entry in consumed:
                self._heard(session, known, entry, task)
            caused = known.canceling or any(one.op in CAUSES or one.kind == "mail" for one in consumed)
            if known.stops and not caused:
                self._broken("processes_stopped", session, f"processes {known.stops} are stopped for nothing")
            if untold := known.gone | set(known.over):
                self._broken("process_ended", session, f"the model is not told of the ends of {untold}")
        known.stops.clear()
        known.born.clear()
        known.over.clear()
        known.configured.clear()
        known.task = task["id"] if task is not None else ""
        known.replaced = task is not None and task["stopping"] == "replaced"
        known.before = tuple(known.living)

    def _all_stop(self, session: str, seen: Seen, known: _Known) -> None:
        """Where everything ends, every process is being stopped, or is over."""
        grammar = seen.grammar
        task = grammar.task
        why = (
            ("its agent is cancelled" if known.canceling else "")
            or ("the session is being closed" if grammar.closing else "")
            or ("its task is stopped" if task is not None and task["stopping"] in KILLING else "")
        )
        left = [number for number, one in known.living.items() if not one.stopping]
        if why and left:
            self._broken("processes_stopped", session, f"{why}, and processes {left} live on")

    def _all_looked_at(self, session: str, known: _Known) -> None:
        """No process lives on at which nobody looked for so long that its worker cannot have been held up."""
        for number, process in known.living.items():
            run = process.run
            if run is None or process.stopping or run.state != "running" or self._excused(run):
                continue
            if self._watch.now_s - max(run.looked_s, run.began_s) > live.UNSEEN_S + SLACK_S:
                self._broken("unseen", session, f"nobody looks at process {number}, and it lives on")

    def _heard(self, session: str, known: _Known, entry: Waiting, task: Mapping[str, Any] | None) -> None:
        """Somebody wanted an end: of the task that ran, or of all that went on."""
        if entry.id in known.configured and entry.op == "configure_session":
            self._stop(session, known, "a new configuration")
        interrupts = entry.op == "interrupt" or (entry.kind == "mail" and entry.lane == 1)
        if not interrupts or not known.task or task is None:
            # One that came when its task was over stops nothing.
            return
        if MEANT in entry.id and not task["id"] == known.task == entry.id.partition(MEANT)[2]:
            return
        if known.before and known.replaced:
            self._watch.reach.saw("processes_stopped")
        self._stop(session, known, f"an interrupt of {known.task}")

    def _stop(self, session: str, known: _Known, why: str) -> None:
        lives = [n for n in known.before if n in known.living and not known.living[n].stopping]
        if lives:
            self._broken("processes_stopped", session, f"{why} was taken, and processes {lives} live on")

    # ── what the kernel did ───────────────────────────────────────────────────────────────────

    def _is_typed(self, run: Run, words: str) -> None:
        """Words arrive at a terminal: those of a call of its own session, once."""
        session = run.session
        if self._excused(run):
            return
        known = self._known.get(session, _Known())
        if known.said.get(words) != run.lasting:
            self._broken("typed", session, f"{words!r} is typed to process {run.lasting}; nobody said so")
        if (session, words) in self._typed:
            self._broken("typed", session, f"{words!r} is typed twice")
        self._typed.add((session, words))

    def _excused(self, run: Run | None) -> bool:
        watch = self._watch
        return run is None or run.lost or watch.reads_anew or watch.went_back_s > 0

    def _run(self, session: str, call_id: str, number: int) -> Run | None:
        runs = [run for run in self._ledger.by_call.get((session, call_id), ()) if run.lasting == number]
        return runs[-1] if runs else None

    def _broken(self, rule: str, session: str, seen: str) -> None:
        self._watch.broken(rule, f"{session}: {seen}")


def _asked(seen: Seen, call_id: str) -> Mapping[str, Any]:
    given: Mapping[str, Any] = orjson.loads(seen.grammar.asked[call_id]["arguments"])
    return given


def _shortened(text: str, most: int) -> str:
    """The beginning and the end of a text that is longer than a look may tell; simulated texts are ASCII."""
    if len(text) <= most:
        return text
    head, tail = text[: most // 2], text[len(text) - (most - most // 2) :]
    return f"{head}\n[... omitted {len(text) - most} of {len(text)} bytes ...]\n{tail}"
