"""The `survey` behaviour: explores a repository with real commands and writes a report.

It works as an agent does: a plan, one command after another, a patch, a closing word.
Each step is derived from the conversation that the request carries, so that it survives a
takeover; a command whose fate is in doubt is asked again. The report is composed of the
commands' outputs alone: no fact about any repository is written here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import orjson

from orchestrator.stub.answers import (
    Call,
    CustomCall,
    MadeCall,
    OutputItem,
    Reasoning,
    Step,
    StubConversation,
    Text,
    ToolOutput,
)

_MAX_ATTEMPTS = 3
_MAX_LINES = 30
_COMMAND_TIMEOUT_MS = 20_000
_PLAN = ("Read the repository with its own commands", "Write the report", "Say what was found")


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


_SIZE = _Question("Size", "**Measuring** how many files are tracked.", _script("git ls-files | wc -l"))
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
    _SIZE,
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


def survey_step(conversation: StubConversation) -> Step:
    """The next step of the survey that this conversation is in the middle of."""
    if "shell" not in conversation.tools:
        return Step(items=(Text(_spoken_findings(conversation)),))
    plans = _calls_named(conversation, "update_plan")
    planning = "update_plan" in conversation.tools
    if planning and not plans:
        return Step(items=(Reasoning("**Planning** the survey before touching anything."), _plan_call(0)))
    if question := _next_question(conversation):
        return Step(items=(Reasoning(question.thought), _ask(question)))
    done = written(conversation)
    if done is None:
        thought = Reasoning("**Writing** the report from what the commands printed.")
        progress = (_plan_call(1),) if planning and len(plans) < 2 else ()
        return Step(items=(thought, *progress, patch_call(conversation, _report(conversation))))
    if planning and len(plans) < 3:
        return Step(items=(_plan_call(3),))
    return Step(items=(Text(_closing(conversation, done)),))


def _next_question(conversation: StubConversation) -> _Question | None:
    return next((question for question in _questions(conversation) if _open(conversation, question)), None)


def _questions(conversation: StubConversation) -> Iterator[_Question]:
    """The fixed questions, then one that only their answers can pose."""
    yield from _QUESTIONS
    if path := _longest_file(conversation):
        thought = f"**Opening** `{path}`, the longest of them, to see how it begins."
        yield _Question(f"How {path} begins", thought, ("head", "-n", "20", path))


def _longest_file(conversation: StubConversation) -> str | None:
    found = _answer_to(conversation, _LONGEST)
    if found is None or found.exit_code != 0:
        return None
    path, _, count = found.text.partition("\n")[0].rpartition(":")
    return path if count.isdecimal() else None


def _open(conversation: StubConversation, question: _Question) -> bool:
    asked = _asked(conversation, question)
    settled = any(call.output is not None and not call.output.in_doubt for call in asked)
    return not settled and len(asked) < _MAX_ATTEMPTS


def _answer_to(conversation: StubConversation, question: _Question) -> ToolOutput | None:
    outputs = [call.output for call in _asked(conversation, question) if call.output is not None]
    return outputs[-1] if outputs else None


def _asked(conversation: StubConversation, question: _Question) -> list[MadeCall]:
    return [call for call in _calls_named(conversation, "shell") if _command_of(call) == list(question.argv)]


def _calls_named(conversation: StubConversation, name: str) -> list[MadeCall]:
    return [call for call in conversation.calls if call.name == name]


def _command_of(call: MadeCall) -> list[str]:
    try:
        command = orjson.loads(call.arguments)["command"]
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return []
    return command if isinstance(command, list) else []


def _ask(question: _Question) -> Call:
    return Call("shell", {"command": list(question.argv), "timeout_ms": _COMMAND_TIMEOUT_MS})


def _plan_call(done: int) -> Call:
    statuses = ["completed"] * done + ["in_progress"] + ["pending"] * len(_PLAN)
    plan = [{"step": step, "status": status} for step, status in zip(_PLAN, statuses, strict=False)]
    return Call("update_plan", {"plan": plan})


def patch_call(conversation: StubConversation, report: Sequence[str]) -> OutputItem:
    """The patch that writes a report, in the form that the tools on offer take."""
    patch = _patch(report_path(conversation.task), report)
    match conversation.tools.get("apply_patch"):
        case "custom":
            return CustomCall("apply_patch", patch)
        case "function":
            return Call("apply_patch", {"input": patch})
        case _:
            return Call("shell", {"command": ["apply_patch", patch]})


def written(conversation: StubConversation) -> ToolOutput | None:
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


def _report(conversation: StubConversation) -> list[str]:
    lines = ["# Survey of this repository", "", f"Asked for: {_first_line(conversation.task)}", ""]
    for question in _questions(conversation):
        lines += [f"## {question.heading}", "", f"`{question.shown}`", ""]
        lines += [*_quoted(_answer_to(conversation, question)), ""]
    return lines[:-1]


def _quoted(output: ToolOutput | None) -> list[str]:
    """An output as an indented block: it may itself contain fences."""
    if output is None or output.in_doubt:
        return ["Not known: the command did not come to an end."]
    printed = output.text.rstrip("\n").splitlines()
    lines = [f"    {line}".rstrip() for line in printed[:_MAX_LINES]]
    if len(printed) > _MAX_LINES:
        lines.append(f"    … and {len(printed) - _MAX_LINES} lines more")
    if output.exit_code:
        lines = [f"The command ended with exit code {output.exit_code}.", "", *lines]
    return lines or ["Nothing was printed."]


def _closing(conversation: StubConversation, written: ToolOutput) -> str:
    path = report_path(conversation.task)
    if written.in_doubt:
        return f"Whether {path} was written is in doubt; please look before you rely on it."
    if written.exit_code or (written.exit_code is None and not written.text.startswith("Success")):
        return f"The report could not be written: {_first_line(written.text)}"
    return f"I wrote {path}. {_spoken_findings(conversation)}"


def _spoken_findings(conversation: StubConversation) -> str:
    said = []
    size, longest = _answer_to(conversation, _SIZE), _answer_to(conversation, _LONGEST)
    if size is not None and size.exit_code == 0:
        said.append(f"The repository tracks {size.text.strip()} files.")
    if longest is not None and (path := _longest_file(conversation)):
        count = _first_line(longest.text).rpartition(":")[2]
        said.append(f"The longest one is {path} with {count} lines.")
    return " ".join(said) or "No command has been run, so there is nothing to report."


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
