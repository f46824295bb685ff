"""Scenario files: a list of steps, answered request by request.

The file is a JSON list of steps, or an object `{"steps", "agents", "per_session", "after_end"}`. By
default each session walks its steps with a cursor of its own, so that one server serves many
sessions at once. Agents of a tree may have parts of their own: `agents` says which, and the
others walk `steps`. The only script with a memory: the cursors, and who has which part.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import orjson
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from orchestrator.stub import answers


class ScenarioError(ValueError):
    """The file is not a scenario; the message names file, place and what is wrong there."""


@dataclass(frozen=True, slots=True)
class Part:
    """The steps of some agents: those that match every field that is given here."""

    steps: tuple[answers.Step, ...]
    agent: Annotated[int, Field(ge=0)] | None = None
    """Its number in the tree; 0 is the root."""
    label: str | None = None
    """The label that it was made with."""
    prompt: str | None = None
    """A text that the agent's first task contains."""
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    def fits(self, conversation: answers.StubConversation) -> bool:
        """Whether these steps are for the agent of the conversation."""
        who = conversation.agent
        return (
            self.agent in (None, who.number)
            and self.label in (None, who.label)
            and (self.prompt or "") in conversation.task
        )


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """The object form of a file."""

    steps: tuple[answers.Step, ...]
    agents: tuple[Part, ...] = ()
    """The first one that fits a session's first request is that session's for good."""
    per_session: bool = True
    after_end: Literal["repeat_last", "error"] = "error"
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")


_FILE = TypeAdapter(ScenarioFile)
_DEFAULT_USAGE = answers.Usage()


class Scenario:
    """A script that walks a file's steps."""

    name = "scenario"

    def __init__(self, file: ScenarioFile) -> None:
        self._file = file
        self._parts: dict[str, int] = {}
        """Which of `agents` a session is, from 1; 0 for the steps of everybody else."""
        self._cursors: dict[tuple[int, str], int] = {}

    @classmethod
    def read(cls, path: Path) -> Scenario:
        """Loads a file; raises `ScenarioError`."""
        try:
            return cls.parse(orjson.loads(path.read_bytes()))
        except OSError as error:
            raise ScenarioError(f"scenario {path}: {error.strerror}") from error
        except (orjson.JSONDecodeError, ScenarioError) as error:
            raise ScenarioError(f"scenario {path}: {error}") from error

    @classmethod
    def parse(cls, wire: Any) -> Scenario:
        """Checks decoded JSON; raises `ScenarioError`."""
        try:
            return cls(_FILE.validate_python({"steps": wire} if isinstance(wire, list) else wire))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            if unknown := _unknown_item(first):
                raise ScenarioError(unknown) from error
            place = ".".join(str(part) for part in first["loc"])
            raise ScenarioError(f"{place}: {first['msg']}") from error

    def answer(self, request: answers.StubRequest) -> answers.Answer:
        """The step at the session's cursor, which moves on."""
        part = self._part(request) if self._file.agents else 0
        cursor = (part, request.session if self._file.per_session else "")
        number = self._cursors[cursor] = self._cursors.get(cursor, 0) + 1
        # A fork has its parent's calls in its conversation: its own must not have their names.
        prefix = f"{part}_{number}" if part else str(number)
        return answers.Answer(self._step(part, number), number, prefix)

    def _part(self, request: answers.StubRequest) -> int:
        known = self._parts.get(request.session)
        if known is None:
            conversation = answers.StubConversation.of(request.body)
            fitting = (at for at, part in enumerate(self._file.agents, 1) if part.fits(conversation))
            known = self._parts[request.session] = next(fitting, 0)
        return known

    def _step(self, part: int, number: int) -> answers.Step:
        steps = self._file.agents[part - 1].steps if part else self._file.steps
        if number > len(steps) and not (steps and self._file.after_end == "repeat_last"):
            whose = f"part {part} of the scenario" if part else "the scenario"
            message = f"{whose} has {len(steps)} steps; this is request {number}"
            return answers.Step(status=400, body={"error": {"code": "scenario_ended", "message": message}})
        step = steps[min(number, len(steps)) - 1]
        completes = step.failed is None and step.incomplete is None
        return replace(step, usage=_DEFAULT_USAGE) if completes and not step.usage else step


def _unknown_item(error: ErrorDetails) -> str:
    """The message about an item of none of the kinds, of which each would want something else; else empty."""
    *place, kind, _ = error["loc"] if len(error["loc"]) > 1 else ("", "")
    given = error["input"]
    if kind != answers.Text.__name__ or not isinstance(given, dict) or ITEM_KEYS & set(given):
        return ""
    where, has = ".".join(str(part) for part in place), ", ".join(given) or "nothing"
    return f"{where}: an item is one of {', '.join(sorted(ITEM_KEYS))}, and this one has {has}"


ITEM_KEYS = {"text", "reasoning", "call", "custom_call", "item"}
"""Each kind of an item has one of them."""


# ── behaviours ────────────────────────────────────────────────────────────────────────────────────
# The stub's built-in behaviours: answers computed from the request alone.
#
# A repeated request, or one taken over by another worker, gets a consistent answer, because
# nothing is remembered between requests; and no figure is ever answered that the request does
# not carry. `survey` has a module of its own.


_INSTANT = answers.Step(items=(answers.Text("All done."),))


class UnknownBehaviour(ValueError):
    """No built-in behaviour has this name; the message lists those that there are."""


class Behaviour:
    """A script that is a function of the conversation."""

    def __init__(self, name: str, step: Callable[[answers.StubConversation], answers.Step]) -> None:
        self.name = name
        self._step = step

    def answer(self, request: answers.StubRequest) -> answers.Answer:
        """The step for this conversation; ids derive from the request's bytes."""
        conversation = answers.StubConversation.of(request.body)
        return answers.Answer(self._step(conversation), conversation.turn, request.digest)


def behaviour(name: str) -> answers.Script:
    """The behaviour of this name: `echo`, `survey`, `tree`, `instant`, or `shell:N`.

    Raises `UnknownBehaviour`.
    """
    fixed = {"echo": _echo, "survey": survey_step, "instant": _instant, "tree": tree_step}
    if name in fixed:
        return Behaviour(name, fixed[name])
    kind, _, count = name.partition(":")
    if kind == "shell" and count.isdecimal():
        return Behaviour(name, lambda conversation: _shell(conversation, int(count)))
    raise UnknownBehaviour(
        f"the model stub has no behaviour {name!r}; choose echo, survey, tree, instant or shell:N"
    )


def _echo(conversation: answers.StubConversation) -> answers.Step:
    return answers.Step(items=(answers.Text(conversation.task or "Nothing was said."),))


def _instant(conversation: answers.StubConversation) -> answers.Step:
    return _INSTANT


def _shell(conversation: answers.StubConversation, count: int) -> answers.Step:
    done = len(conversation.calls)
    if done >= count:
        return answers.Step(items=(answers.Text(f"Ran {done} commands."),))
    return answers.Step(
        items=(answers.Call("shell", {"command": ["bash", "-c", f"echo {done + 1} of {count}"]}),)
    )


# ── tree ──────────────────────────────────────────────────────────────────────────────────────────
# The `tree` behaviour: a root that divides a repository among agents and merges what they say.
#
#     root ── a surveyor for each large folder ── the first of them has a reader of its own
#          ├─ a fork, which knows what the root has seen
#          ├─ one that asks for permission
#          ├─ one that waits, and is interrupted with other orders
#          └─ one that fails
#
# If the root's task says "ask me", the one that asks has a question first, and the fork has its plan
# approved. If it says that each has a folder of its own, surveyors write what they found, and the root
# merges it.
#
# Every agent recognises its part by the first word of its task, and derives its next step from its
# conversation alone, as `survey` does. No figure in a report is not a command's.


_FOLDERS = "git ls-files | grep / | cut -d/ -f1 | sort | uniq -c | sort -rn | head -n 3"
_SIZE = "git ls-files | wc -l"
_TIMEOUT_MS = 20_000
_WAIT_MS = 600_000
_MAX_LINES = 12
_QUESTION = "Ask first what of it matters."
_PLAN = "Propose a plan first."
_OWN = "folder of its own"
_NOTES = "Write it to"


def tree_step(conversation: answers.StubConversation) -> answers.Step:
    """The next step of the agent that this conversation belongs to."""
    word = conversation.task.split(" ", 1)[0].rstrip(":").lower()
    return _PARTS.get(word, _root)(conversation)


# ── the root ──────────────────────────────────────────────────────────────────────────────────────


def _root(conversation: answers.StubConversation) -> answers.Step:
    folders = _output(conversation, _FOLDERS)
    if folders is None:
        return _run("**Dividing the work**: which folders hold the most files?", _FOLDERS)
    if not _named(conversation, "subagent_spawn"):
        thought = answers.Reasoning("**Spawning** one agent for each folder, and a few for the rest.")
        asking, own = "ask me" in conversation.task, _OWN in conversation.task
        return answers.Step(items=(thought, *_spawns(_folder_names(folders), asking, own), _fork(asking)))
    if _output(conversation, _SIZE) is None:
        return _run("**Measuring** the whole, while they begin.", _SIZE)
    waiter = _agent_of(conversation, "waiter")
    if waiter is not None and not _named(conversation, "subagent_send_message"):
        order = {"agent_id": waiter, "interrupt": True, "prompt": "Count the test files instead of waiting."}
        return answers.Step(
            items=(
                answers.Reasoning("**Redirecting** the one that waits."),
                answers.Call("subagent_send_message", order),
            )
        )
    if _still_waiting(conversation):
        return answers.Step(items=(answers.Call("subagent_await", {}),))
    if merges := _merges(conversation):
        return answers.Step(
            items=(answers.Reasoning("**Taking over** what they wrote in their folders."), *merges)
        )
    done = written(conversation)
    if done is None:
        thought = answers.Reasoning("**Merging** what the agents reported.")
        return answers.Step(items=(thought, patch_call(conversation, _report(conversation))))
    results = _results(conversation)
    return answers.Step(
        items=(answers.Text(f"{len(results)} agents reported; {report_path(conversation.task)} has it all."),)
    )


def _spawns(folders: Sequence[str], asking: bool, own: bool) -> list[answers.OutputItem]:
    spawned: list[answers.OutputItem] = []
    for place, folder in enumerate(folders):
        helper = " with a reader of your own" if place == 0 else ""
        notes = f" {_NOTES} `survey/{folder}.md`." if own else ""
        spawned.append(_spawn(folder, f"Survey the folder `{folder}`{helper}.{notes}"))
    asks = "Ask for permission to look at the object store, and say what it holds."
    asks += f" {_QUESTION}" if asking else ""
    waits = "Wait for orders."
    fails = "Fail: this one shows what a failure looks like."
    return [*spawned, _spawn("asker", asks), _spawn("waiter", waits), _spawn("failing", fails)]


def _spawn(label: str, prompt: str) -> answers.Call:
    return answers.Call("subagent_spawn", {"label": label, "prompt": prompt})


def _fork(asking: bool) -> answers.Call:
    prompt = "History: what was done here last?" + (f" {_PLAN}" if asking else "")
    return answers.Call("subagent_fork", {"label": "historian", "prompt": prompt})


def _folder_names(listing: str) -> list[str]:
    return [line.split(maxsplit=1)[1] for line in listing.splitlines() if line.strip()]


def _agent_of(conversation: answers.StubConversation, label: str) -> int | None:
    for made in _decoded(_named(conversation, "subagent_spawn")):
        if made.get("label") == label:
            return int(made["agent_id"])
    return None


def _merges(conversation: answers.StubConversation) -> list[answers.OutputItem]:
    """Merges of the agents that wrote something, but those that are done."""
    if _OWN not in conversation.task:
        return []
    wrote = {
        label
        for call in _named(conversation, "subagent_spawn")
        if _NOTES in (asked := orjson.loads(call.arguments))["prompt"] and (label := asked["label"])
    }
    done = {
        orjson.loads(call.arguments)["agent_id"]
        for call in _named(conversation, "subagent_merge")
        if call.output is not None and not call.output.in_doubt
    }
    made = _decoded(_named(conversation, "subagent_spawn"))
    owed = [one["agent_id"] for one in made if one["label"] in wrote and one["agent_id"] not in done]
    return [answers.Call("subagent_merge", {"agent_id": agent}) for agent in owed]


def _still_waiting(conversation: answers.StubConversation) -> bool:
    """Whether agents are at work, by the last await."""
    awaits = _decoded(_named(conversation, "subagent_await"))
    return not awaits or bool(awaits[-1].get("waiting"))


def _results(conversation: answers.StubConversation) -> list[Mapping[str, Any]]:
    """The results that came by an await, asked for or not."""
    awaits = _decoded(_named(conversation, "subagent_await"))
    return [ready for answer in awaits for ready in answer.get("ready", ()) if ready["completion"]]


def _report(conversation: answers.StubConversation) -> list[str]:
    lines = ["# What the agents found", "", f"Asked for: {conversation.task.splitlines()[0]}", ""]
    lines += [f"The repository tracks {_output(conversation, _SIZE)} files.", ""]
    for result in sorted(_results(conversation), key=lambda ready: ready["metadata"]["agent_id"]):
        about = result["metadata"]
        lines += [f"## {about['label'] or 'agent'} (agent {about['agent_id']})", ""]
        lines += [*_outcome(result["completion"]), ""]
    return lines[:-1]


def _outcome(completion: Mapping[str, Mapping[str, Any]]) -> list[str]:
    ((kind, content),) = completion.items()
    text = next(iter(content.values())) or "nothing"
    shown = [f"    {line}".rstrip() for line in str(text).splitlines()[:_MAX_LINES]]
    return shown if kind == "Completed" else [f"It ended early ({kind.lower()}):", "", *shown]


# ── the agents ────────────────────────────────────────────────────────────────────────────────────


def _survey(conversation: answers.StubConversation) -> answers.Step:
    folder = _quoted_in(conversation.task)
    count = f"git ls-files {folder} | wc -l"
    longest = f"git grep -I -c '' -- {folder} | sort -t: -k2 -rn | head -n 3"
    for thought, script in ((f"**Counting** in {folder}", count), (f"**Weighing** {folder}", longest)):
        if _output(conversation, script) is None:
            return _run(thought, script)
    if _NOTES in conversation.task and _output(conversation, notes := _notes(folder, count, longest)) is None:
        return _run("**Writing** it down, in my own folder", notes)
    heaviest = (_output(conversation, longest) or "").partition("\n")[0].rpartition(":")[0]
    if "reader" in conversation.task and heaviest:
        if not _named(conversation, "subagent_spawn"):
            return answers.Step(items=(_spawn("reader", f"Read how `{heaviest}` begins."),))
        if _still_waiting(conversation):
            return answers.Step(items=(answers.Call("subagent_await", {}),))
    read = [str(next(iter(r["completion"].values()))["last_message"]) for r in _results(conversation)]
    said = [
        f"{folder}: {_output(conversation, count)} files; the longest:",
        _output(conversation, longest) or "",
    ]
    return answers.Step(items=(answers.Text("\n".join([*said, *read])),))


def _notes(folder: str, count: str, longest: str) -> str:
    heading = f"printf '# %s\\n\\nFiles: %s\\n\\n' '{folder}' \"$({count})\""
    return f"mkdir -p survey && {{ {heading}; {longest} | sed 's/^/- /'; }} > survey/{folder}.md"


def _read(conversation: answers.StubConversation) -> answers.Step:
    return _report_of(conversation, "**Reading**", f"head -n 3 {_quoted_in(conversation.task)}")


def _history(conversation: answers.StubConversation) -> answers.Step:
    if _PLAN in conversation.task and not _named(conversation, "approve_plan"):
        steps = ("Read the last commits", "Say what they did")
        plan = {"plan": [{"step": step, "status": "pending"} for step in steps]}
        proposal = {"title": "What was done here last", "summary": "It only reads.", "plan": plan}
        return answers.Step(
            items=(
                answers.Reasoning("**Planning** first."),
                answers.Call("approve_plan", {"proposal": proposal}),
            )
        )
    return _report_of(conversation, "**Looking back**", "git log --oneline -n 3")


def _count(conversation: answers.StubConversation) -> answers.Step:
    return _report_of(conversation, "**Counting tests**", "git ls-files | grep -c test")


def _wait(conversation: answers.StubConversation) -> answers.Step:
    command = {"command": ["sleep", "600"], "timeout_ms": _WAIT_MS}
    return answers.Step(items=(answers.Reasoning("**Waiting** for orders."), answers.Call("shell", command)))


def _ask(conversation: answers.StubConversation) -> answers.Step:
    if _QUESTION in conversation.task and not _named(conversation, "ask_user_question"):
        options = [
            {"label": "Objects", "description": "how many there are, and how large they are"},
            {"label": "Nothing", "description": "leave the object store alone"},
        ]
        question = {"question": "What of the object store?", "header": "Store", "options": options}
        return answers.Step(items=(answers.Call("ask_user_question", {"questions": [question]}),))
    command = ["git", "count-objects", "-v"]
    asked = [call for call in _named(conversation, "shell") if call.output is not None]
    if asked and asked[-1].output is not None:
        return answers.Step(items=(answers.Text(asked[-1].output.text),))
    why = {"with_escalated_permissions": True, "justification": "The object store is outside of my reach."}
    return answers.Step(
        items=(answers.Reasoning("**Asking** first."), answers.Call("shell", {"command": command, **why}))
    )


def _fail(conversation: answers.StubConversation) -> answers.Step:
    message = "this agent was made to fail"
    return answers.Step(status=400, body={"error": {"code": "invalid_request", "message": message}})


_PARTS: Mapping[str, Callable[[answers.StubConversation], answers.Step]] = {
    "survey": lambda conversation: (_survey if "folder `" in conversation.task else _root)(conversation),
    "read": _read,
    "history": _history,
    "count": _count,
    "wait": _wait,
    "ask": _ask,
    "fail": _fail,
}


# ── what a conversation says ──────────────────────────────────────────────────────────────────────


def _run(thought: str, script: str) -> answers.Step:
    command = {"command": ["bash", "-c", script], "timeout_ms": _TIMEOUT_MS}
    return answers.Step(items=(answers.Reasoning(thought), answers.Call("shell", command)))


def _report_of(conversation: answers.StubConversation, thought: str, script: str) -> answers.Step:
    said = _output(conversation, script)
    return _run(thought, script) if said is None else answers.Step(items=(answers.Text(said or "nothing"),))


def _output(conversation: answers.StubConversation, script: str) -> str | None:
    """The output of a script; None if the script was not run, or it is unknown whether it was."""
    for call in _named(conversation, "shell"):
        settled = call.output is not None and not call.output.in_doubt
        if settled and call.output is not None and orjson.loads(call.arguments)["command"][-1] == script:
            return call.output.text.strip()
    return None


def _named(conversation: answers.StubConversation, name: str) -> list[answers.MadeCall]:
    return [call for call in conversation.calls if call.name == name]


def _decoded(calls: Sequence[answers.MadeCall]) -> list[dict[str, Any]]:
    """The outputs that are JSON objects; a refusal is a sentence."""
    found = []
    for call in calls:
        try:
            value = orjson.loads(call.output.text if call.output is not None else "")
        except orjson.JSONDecodeError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found


def _quoted_in(task: str) -> str:
    found = re.search(r"`([^`]+)`", task)
    return found[1] if found else "."


# ── survey ────────────────────────────────────────────────────────────────────────────────────────
# The `survey` behaviour: explores a repository with real commands and writes a report.
#
# It works as an agent does: a plan, one command after another, a patch, a closing word. Each step is
# derived from the conversation that the request carries, so that it survives a takeover; a command whose
# fate is in doubt is asked again. The report is composed of the commands' outputs alone: no fact about
# any repository is written here.


_MAX_ATTEMPTS = 3
_SURVEY_LINES = 30
_COMMAND_TIMEOUT_MS = 20_000
_SURVEY_PLAN = ("Read the repository with its own commands", "Write the report", "Say what was found")


@dataclass(frozen=True, slots=True)
class _Question:
    """A question of the survey: why, by which command, and under which heading it is reported."""

    heading: str
    thought: str
    argv: tuple[str, ...]

    @property
    def shown(self) -> str:
        return self.argv[-1] if self.argv[0] == "bash" else " ".join(self.argv)


def _script(text: str) -> tuple[str, ...]:
    return ("bash", "-c", text)


_SURVEY_SIZE = _Question("Size", "**Measuring** how many files are tracked.", _script("git ls-files | wc -l"))
_LONGEST = _Question(
    "Longest files",
    "**Looking for weight**: the longest text files are where most of the work is.",
    _script("git grep -I -c '' | sort -t: -k2 -rn | head -n 8"),
)
_QUESTIONS = (
    _Question(
        "Recent history",
        "**Reading the history** first: it says what people care about.",
        ("git", "log", "--oneline", "-n", "10"),
    ),
    _SURVEY_SIZE,
    _Question(
        "Layout",
        "**Mapping** the top level by number of files.",
        _script("git ls-files | cut -d/ -f1 | sort | uniq -c | sort -rn | head -n 12"),
    ),
    _LONGEST,
    _Question(
        "Open marks",
        "**Searching** for what its authors left open.",
        _script("git grep -I -n -E 'TODO|FIXME|XXX' | head -n 8"),
    ),
)


def survey_step(conversation: answers.StubConversation) -> answers.Step:
    """The next step of the survey that this conversation is in the middle of."""
    if "shell" not in conversation.tools:
        return answers.Step(items=(answers.Text(_spoken_findings(conversation)),))
    plans = _calls_named(conversation, "update_plan")
    planning = "update_plan" in conversation.tools
    if planning and not plans:
        return answers.Step(
            items=(answers.Reasoning("**Planning** the survey before touching anything."), _plan_call(0))
        )
    if question := _next_question(conversation):
        return answers.Step(items=(answers.Reasoning(question.thought), _survey_ask(question)))
    done = written(conversation)
    if done is None:
        thought = answers.Reasoning("**Writing** the report from what the commands printed.")
        progress = (_plan_call(1),) if planning and len(plans) < 2 else ()
        return answers.Step(
            items=(thought, *progress, patch_call(conversation, _survey_report(conversation)))
        )
    if planning and len(plans) < 3:
        return answers.Step(items=(_plan_call(3),))
    return answers.Step(items=(answers.Text(_closing(conversation, done)),))


def _next_question(conversation: answers.StubConversation) -> _Question | None:
    return next((question for question in _questions(conversation) if _open(conversation, question)), None)


def _questions(conversation: answers.StubConversation) -> Iterator[_Question]:
    """The fixed questions, then one that only their answers can pose."""
    yield from _QUESTIONS
    if path := _longest_file(conversation):
        thought = f"**Opening** `{path}`, the longest of them, to see how it begins."
        yield _Question(f"How {path} begins", thought, ("head", "-n", "20", path))


def _longest_file(conversation: answers.StubConversation) -> str | None:
    found = _answer_to(conversation, _LONGEST)
    if found is None or found.exit_code != 0:
        return None
    path, _, count = found.text.partition("\n")[0].rpartition(":")
    return path if count.isdecimal() else None


def _open(conversation: answers.StubConversation, question: _Question) -> bool:
    asked = _asked(conversation, question)
    settled = any(call.output is not None and not call.output.in_doubt for call in asked)
    return not settled and len(asked) < _MAX_ATTEMPTS


def _answer_to(conversation: answers.StubConversation, question: _Question) -> answers.ToolOutput | None:
    outputs = [call.output for call in _asked(conversation, question) if call.output is not None]
    return outputs[-1] if outputs else None


def _asked(conversation: answers.StubConversation, question: _Question) -> list[answers.MadeCall]:
    return [call for call in _calls_named(conversation, "shell") if _command_of(call) == list(question.argv)]


def _calls_named(conversation: answers.StubConversation, name: str) -> list[answers.MadeCall]:
    return [call for call in conversation.calls if call.name == name]


def _command_of(call: answers.MadeCall) -> list[str]:
    try:
        command = orjson.loads(call.arguments)["command"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return []
    return command if isinstance(command, list) else []


def _survey_ask(question: _Question) -> answers.Call:
    return answers.Call("shell", {"command": list(question.argv), "timeout_ms": _COMMAND_TIMEOUT_MS})


def _plan_call(done: int) -> answers.Call:
    statuses = ["completed"] * done + ["in_progress"] + ["pending"] * len(_SURVEY_PLAN)
    plan = [{"step": step, "status": status} for step, status in zip(_SURVEY_PLAN, statuses, strict=False)]
    return answers.Call("update_plan", {"plan": plan})


def patch_call(conversation: answers.StubConversation, report: Sequence[str]) -> answers.OutputItem:
    """The patch that writes a report, in the form that the tools on offer take."""
    patch = _patch(report_path(conversation.task), report)
    match conversation.tools.get("apply_patch"):
        case "custom":
            return answers.CustomCall("apply_patch", patch)
        case "function":
            return answers.Call("apply_patch", {"input": patch})
        case _:
            return answers.Call("shell", {"command": ["apply_patch", patch]})


def written(conversation: answers.StubConversation) -> answers.ToolOutput | None:
    """The output of the last patch, None while the patch has to be tried (again)."""
    patches = [
        call
        for call in conversation.calls
        if call.name == "apply_patch" or (call.name == "shell" and _command_of(call)[:1] == ["apply_patch"])
    ]
    last = patches[-1].output if patches else None
    if last is not None and last.in_doubt and len(patches) < _MAX_ATTEMPTS:
        return None
    return last


def report_path(task: str) -> str:
    """The Markdown file that the task names, `REPORT.md` if it names none inside the workspace."""
    named = re.search(r"(?<![\w./-])\w[\w./-]*\.md\b", task)
    return named[0] if named and ".." not in named[0] else "REPORT.md"


def _patch(path: str, lines: Sequence[str]) -> str:
    body = "".join(f"+{line}\n" for line in lines)
    return f"*** Begin Patch\n*** Add File: {path}\n{body}*** End Patch\n"


def _survey_report(conversation: answers.StubConversation) -> list[str]:
    lines = ["# Survey of this repository", "", f"Asked for: {_first_line(conversation.task)}", ""]
    for question in _questions(conversation):
        lines += [f"## {question.heading}", "", f"`{question.shown}`", ""]
        lines += [*_quoted(_answer_to(conversation, question)), ""]
    return lines[:-1]


def _quoted(output: answers.ToolOutput | None) -> list[str]:
    """An output as an indented block: it may itself contain fences."""
    if output is None or output.in_doubt:
        return ["Not known: the command did not come to an end."]
    printed = output.text.rstrip("\n").splitlines()
    lines = [f"    {line}".rstrip() for line in printed[:_SURVEY_LINES]]
    if len(printed) > _SURVEY_LINES:
        lines.append(f"    … and {len(printed) - _MAX_LINES} lines more")
    if output.exit_code:
        lines = [f"The command ended with exit code {output.exit_code}.", "", *lines]
    return lines or ["Nothing was printed."]


def _closing(conversation: answers.StubConversation, written: answers.ToolOutput) -> str:
    path = report_path(conversation.task)
    if written.in_doubt:
        return f"Whether {path} was written is in doubt; please look before you rely on it."
    if written.exit_code or (written.exit_code is None and not written.text.startswith("Success")):
        return f"The report could not be written: {_first_line(written.text)}"
    return f"I wrote {path}. {_spoken_findings(conversation)}"


def _spoken_findings(conversation: answers.StubConversation) -> str:
    said = []
    size, longest = _answer_to(conversation, _SURVEY_SIZE), _answer_to(conversation, _LONGEST)
    if size is not None and size.exit_code == 0:
        said.append(f"The repository tracks {size.text.strip()} files.")
    if longest is not None and (path := _longest_file(conversation)):
        count = _first_line(longest.text).rpartition(":")[2]
        said.append(f"The longest one is {path} with {count} lines.")
    return " ".join(said) or "No command has been run, so there is nothing to report."


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
