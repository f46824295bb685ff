"""Rule files: what is read, what is left out and why, and which commands a rule means."""

from __future__ import annotations

import errno
import os
import re
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any, cast

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.core.calls import Call, Exec
from orchestrator.core.calls.approval_policy import Ask, Refuse, Run, Segment, Verdict
from orchestrator.core.commands import Assessment, Immediate
from orchestrator.core.settings import PortableFolder, SessionFacts, TurnSettings
from orchestrator.core.state import State, Task
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.sandbox.policy_paths import Place
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.sandbox.trusted_files import read_regular
from orchestrator.tools.exec_policy import (
    MOST_BYTES,
    MOST_CHARS,
    MOST_FILES,
    MOST_RULES,
    MOST_SHOWN,
    CommandRules,
    PrefixRule,
    RuleError,
    RuleWarnings,
    add_rule,
    parsed_rules,
    segments,
    strict_rule,
)
from orchestrator.tools.tool_context import CallSite, ToolConfig
from orchestrator.tools.toolbox import Toolbox, built_in

PAGE = Path(__file__).parents[3] / "docs" / "exec-policy.md"
CONFIG = ToolConfig(SandboxSupport("/usr/bin/bwrap", 0, ()), {"PATH": "/usr/bin:/bin"})


def state(folder: Path, policy: str = "on-request", mode: str = "workspace-write") -> State:
    given = TurnSettings(str(folder), policy, {"mode": mode}, "gpt-5")
    return State(task=Task(SubmissionId("u1"), "user", given))


async def exec_of(config: ToolConfig, at: State, *command: str, env: dict[str, str] | None = None) -> Exec:
    """The assessment of a command that a worker with this configuration would run."""
    found = await assessed(config, at, *command, env=env)
    assert isinstance(found, Exec)
    return found


async def assessed(
    config: ToolConfig, at: State, *command: str, env: dict[str, str] | None = None
) -> Assessment:
    """The assessment of a command as a worker with this configuration makes it."""
    action = {"type": "exec", "command": list(command), "env": env}
    item = {"type": "local_shell_call", "call_id": "c1", "action": action}
    tools = config.tools.model_copy(update={"local_shell": True})
    toolbox = Toolbox(built_in(replace(config, tools=tools), cast(Any, None)))
    return await toolbox.assess(Call(CallId("c1"), "local_shell", item), CallSite("c", at, lambda _: None))


async def verdict(config: ToolConfig, at: State, *command: str, env: dict[str, str] | None = None) -> Verdict:
    assert at.task is not None
    found = await exec_of(config, at, *command, env=env)
    return found.judged(at.task.settings, at.approved)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    (folder / "rules").mkdir(parents=True)
    return folder


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    (folder / ".git").mkdir(parents=True)
    (folder / ".dendro" / "rules").mkdir(parents=True)
    return folder


def write(home: Path, text: str, name: str = "own.rules") -> ToolConfig:
    (home / "rules" / name).write_text(text)
    return replace(CONFIG, rules=CommandRules(home))


# --- the page


def in_words(found: Verdict) -> str:
    match found:
        case Run(sandboxed):
            return "runs, in the sandbox" if sandboxed else "runs, outside of the sandbox"
        case Ask():
            return "is asked about"
        case Refuse():
            return "is refused, with the justification"


async def test_commands_of_the_page_get_the_verdicts_that_it_says(home: Path, repo: Path) -> None:
    page = PAGE.read_text()
    example = re.search(r"```python\n(.*?)```", page, re.DOTALL)
    assert example is not None
    config = write(home, example[1])
    assert config.rules.of(repo).problems == ()
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \|", page, re.MULTILINE)
    assert len(rows) == 6
    for said, expected in rows:
        inner = re.fullmatch(r'bash -lc "(.*)"', said)
        found = await verdict(config, state(repo), "bash", "-lc", inner[1] if inner else said)
        assert in_words(found) == expected, said


# --- files


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("prefix_rule(pattern=[)", "line 1: not readable"),
        ("import os", "line 1: only calls of prefix_rule"),
        ("\nx = 1", "line 2: only calls of prefix_rule"),
        ("other(pattern=['a'])", "only calls of prefix_rule"),
        ("prefix_rule(['a'])", "arguments with names alone"),
        ("prefix_rule(patern=['a'])", "unknown argument patern"),
        ("prefix_rule(**{'pattern': ['a']})", "unknown argument"),
        ("prefix_rule()", "pattern: a list with at least one word"),
        ("prefix_rule(pattern=[])", "pattern: a list with at least one word"),
        ("prefix_rule(pattern='git')", "pattern: a list is needed"),
        ("prefix_rule(pattern=['git', []])", "a list of alternatives is empty"),
        ("prefix_rule(pattern=['git', 1])", "a text in quotes is needed"),
        ("prefix_rule(pattern=[f'{open}'])", "a text in quotes is needed"),
        ("prefix_rule(pattern=['a' + 'b'])", "a text in quotes is needed"),
        ("prefix_rule(pattern=[''])", "a text in quotes is needed"),
        ("prefix_rule(pattern=['\\ud800'])", "half a character"),
        ("prefix_rule(pattern=['a'], decision='yes')", "decision: 'yes' is none of"),
        ("prefix_rule(pattern=['a'], confined=1)", "confined: True or False"),
        ("prefix_rule(pattern=['a'], decision='prompt', sign=1)", "sign: True or False"),
        ("prefix_rule(pattern=['a'], sign=True)", "sign: only what is asked about is signed"),
        ("prefix_rule(pattern=['a', 'b'], match=['a c'])", "match: the rule does not mean 'a c'"),
        ("prefix_rule(pattern=['a'], not_match=['a c'])", "not_match: the rule means 'a c'"),
        ("prefix_rule(pattern=['a'], match=['a \"'])", "match: No closing quotation"),
        (f"prefix_rule(pattern=['{'x' * (MOST_CHARS + 1)}'])", "a text of 1,001 characters"),
        (f"prefix_rule(pattern=[{'[' * 90}'a'{']' * 90}])", "a text in quotes is needed"),
        (f"prefix_rule(pattern={'[' * 5_000})", "not readable"),
        ("prefix_rule(pattern=['a'])\0", "not readable"),
        ("prefix_rule(pattern=['a'])\n" * (MOST_RULES + 1), "line 1001: more than 1,000 rules"),
        ("prefix_rule(pattern=[" + "'a'," * 33 + "])", "33 elements, at most 32"),
    ],
)
def test_person_hears_what_is_wrong_with_a_file_and_where(text: str, why: str) -> None:
    with pytest.raises(RuleError, match=re.escape(why)):
        parsed_rules(text)


@given(st.text(max_size=200) | st.text(alphabet="prefix_rule(pattern=['a'],)\n[]\"", max_size=200))
def test_any_text_is_rules_or_an_error_of_the_file(text: str) -> None:
    with suppress(RuleError):
        assert isinstance(parsed_rules(text), tuple)


def test_file_with_an_error_is_left_out_whole_and_the_others_count(home: Path) -> None:
    write(home, "prefix_rule(pattern=['a'])\nnonsense", "bad.rules")
    config = write(home, "prefix_rule(pattern=['b'])")
    (home / "rules" / "note.txt").write_text("nonsense")
    found = config.rules.of(home)
    assert [rule.pattern for rule in found.rules] == [(frozenset("b"),)]
    assert len(found.problems) == 1
    assert f"{home}/rules/bad.rules: line 2: " in found.problems[0]


def test_rules_are_read_again_when_a_file_changes_or_goes(home: Path) -> None:
    rules = CommandRules(home)
    assert rules.of(home).rules == ()
    write(home, "prefix_rule(pattern=['a'])")
    assert len(rules.of(home).rules) == 1
    write(home, "prefix_rule(pattern=['a'])\nprefix_rule(pattern=['b'])")
    assert len(rules.of(home).rules) == 2
    (home / "rules" / "own.rules").unlink()
    assert rules.of(home).rules == ()


def test_file_that_cannot_be_read_once_counts_when_it_can_be_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(home, "prefix_rule(pattern=['rm'], decision='forbidden')")
    write(home, "prefix_rule(pattern=['make'])", "other.rules")

    def lacks_a_descriptor(path: Path, *told: Any, **more: Any) -> bytes:
        if path.name == "own.rules":
            raise OSError(errno.EMFILE, "Too many open files", str(path))
        return read_regular(path, *told, **more)

    with monkeypatch.context() as patch:
        patch.setattr("orchestrator.tools.exec_policy.read_regular", lacks_a_descriptor)
        assert len(config.rules.of(home).rules) == 1
    found = config.rules.of(home)
    assert (len(found.rules), found.problems) == (2, ())


def test_rules_of_each_project_are_read_again_when_a_file_changes_or_goes(tmp_path: Path) -> None:
    repos = [tmp_path / name for name in ("one", "two")]
    for repo in repos:
        (repo / ".git").mkdir(parents=True)
        (repo / ".dendro" / "rules").mkdir(parents=True)
    rules = CommandRules(tmp_path / "home", trust_projects=True)
    for programs in ((), ("make",), ("make", "cargo"), ("npm",), ()):
        for repo, decision in zip(repos, ("prompt", "forbidden"), strict=True):
            file = repo / ".dendro/rules/x.rules"
            text = "\n".join(f"prefix_rule(pattern=['{it}'], decision='{decision}')" for it in programs)
            file.write_text(text) if programs else file.unlink(missing_ok=True)
        for repo, decision in zip(repos, ("prompt", "forbidden"), strict=True):
            found = rules.of(repo).rules
            assert [(*rule.pattern[0], rule.decision) for rule in found] == [
                (it, decision) for it in programs
            ]


def test_what_is_no_file_of_rules_stops_nobody(home: Path, tmp_path: Path) -> None:
    folder = home / "rules"
    os.mkfifo(folder / "pipe.rules")
    (folder / "folder.rules").mkdir()
    (folder / "large.rules").write_text("#" * (MOST_BYTES + 1))
    (folder / "latin.rules").write_bytes(b"# \xe9")
    (folder / os.fsdecode(b"\xff.rules")).write_text("x")
    (tmp_path / "elsewhere.rules").write_text("prefix_rule(pattern=['bash'])")
    (folder / "link.rules").symlink_to(tmp_path / "elsewhere.rules")
    found = CommandRules(home).of(home)
    assert found.rules == ()
    assert len(found.problems) == 6
    assert orjson.dumps(found.problems)


def test_files_beyond_the_bound_are_left_out_with_a_warning(home: Path) -> None:
    for number in range(MOST_FILES + 1):
        write(home, f"prefix_rule(pattern=['{number}'])", f"{number:03}.rules")
    found = CommandRules(home).of(home)
    assert [rule.pattern for rule in found.rules] == [
        (frozenset({str(number)}),) for number in range(MOST_FILES)
    ]
    assert "more than 64 rule files" in found.problems[0]


def test_folder_of_more_entries_than_are_looked_at_is_told_of_until_it_has_fewer(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.tools.exec_policy.MOST_ENTRIES", 3)
    write(home, "prefix_rule(pattern=['a'])")
    more = [home / "rules" / name for name in "bc"]
    rules = CommandRules(home)
    for file in more:
        file.write_text("")
        assert rules.of(home).problems == ()
    (home / "rules" / "d").write_text("")
    [problem] = rules.of(home).problems
    assert "more than 3 entries; rule files among the rest are left out" in problem
    (home / "rules" / "d").unlink()
    assert rules.of(home).problems == ()


# --- a project's files


def test_project_is_not_asked_for_rules_unless_its_owner_says_so(home: Path, repo: Path) -> None:
    (repo / ".dendro/rules/x.rules").write_text("prefix_rule(pattern=['make'], decision='forbidden')")
    assert CommandRules(home).of(repo).rules == ()
    (rule,) = CommandRules(home, trust_projects=True).of(repo / ".dendro").rules
    assert rule.decision == "forbidden"


def test_project_allows_nothing_even_where_it_is_trusted(home: Path, repo: Path) -> None:
    (repo / ".dendro/rules/x.rules").write_text("prefix_rule(pattern=['make'])")
    found = CommandRules(home, trust_projects=True).of(repo)
    assert found.rules == ()
    assert "may prompt and forbid" in found.problems[0]


def test_project_cannot_lift_what_the_owner_forbids(home: Path, repo: Path) -> None:
    (repo / ".dendro/rules/x.rules").write_text("prefix_rule(pattern=['make'], decision='prompt')")
    write(home, "prefix_rule(pattern=['make'], decision='forbidden')")
    config = replace(CONFIG, rules=CommandRules(home, trust_projects=True))
    assert len(config.rules.of(repo).rules) == 2


# --- commands


FORBIDDEN = "prefix_rule(pattern=['rm'], decision='forbidden', justification='keep it')"


@pytest.mark.parametrize(
    "command",
    [
        ("rm", "x"),
        ("/bin/rm", "x"),
        ("sudo", "-u", "root", "rm", "x"),
        ("env", "A=1", "rm", "x"),
        ("bash", "-lc", "ls && rm x"),
        ("bash", "-lc", "echo $(rm x)"),
        ("bash", "-lc", "for f in *; do rm $f; done"),
        ("bash", "-lc", "rm x > /dev/null 2>&1"),
        ("bash", "-lc", "bash -c 'rm x'"),
        ("/opt/bash", "-c", "rm x"),
    ],
)
async def test_forbidden_command_is_seen_wherever_it_stands(
    home: Path, repo: Path, command: tuple[str, ...]
) -> None:
    found = await verdict(write(home, FORBIDDEN), state(repo, mode="danger-full-access"), *command)
    assert isinstance(found, Refuse)
    assert "keep it" in found.text


async def test_script_that_cannot_be_read_is_asked_about_where_rules_forbid(home: Path, repo: Path) -> None:
    script = "true " + "| true " * 20_000
    found = await verdict(write(home, FORBIDDEN), state(repo), "bash", "-lc", script)
    assert isinstance(found, Ask)


MAKE = "prefix_rule(pattern=['make'])"


@pytest.mark.parametrize(
    ("command", "allowed"),
    [
        (("make", "x"), True),
        (("bash", "-lc", "make x; make y"), True),
        (("bash", "-lc", "make x; ls"), False),
        (("bash", "-lc", "make x > y"), False),
        (("bash", "-lc", "make $(x)"), False),
        (("bash", "-lc", "ma* x"), False),
        (("/repo/bash", "-lc", "make x"), False),
        (("/opt/make", "x"), False),
        (("env", "make"), False),
        (("sudo", "make"), False),
        (("makefile",), False),
    ],
)
async def test_rule_allows_what_is_certain(
    home: Path, repo: Path, command: tuple[str, ...], allowed: bool
) -> None:
    found = await exec_of(write(home, MAKE), state(repo), *command)
    assert all(segment.allowed for segment in found.segments) is allowed


async def test_variables_that_change_what_runs_allow_nothing(home: Path, repo: Path) -> None:
    config = write(home, MAKE)
    assert (await exec_of(config, state(repo), "make", env={"MAKEFLAGS": "-f /repo/x"})).segments == ()
    assert (await exec_of(config, state(repo), "make", env={"LANG": "C"})).segments != ()
    refused = await assessed(config, state(repo), "make", env={"LD_PRELOAD": "/repo/x.so"})
    assert isinstance(refused, Immediate)
    assert str(refused.output).startswith("env: LD_PRELOAD is not taken: it makes the loader or a shell run")


@pytest.mark.parametrize("mode", ["workspace-write", "read-only"])
async def test_program_that_an_agent_may_have_written_stays_in_the_sandbox(
    home: Path, repo: Path, mode: str
) -> None:
    """Also in a turn that only reads: one before it may have written."""
    config = write(home, MAKE + "\nprefix_rule(pattern=['./make'])")
    planted = repo / "bin"
    planted.mkdir()
    (planted / "make").write_text("#!/bin/sh\n")
    (planted / "make").chmod(0o755)
    for path, effect in ((f"{planted}:/usr/bin", "confined"), ("bin:/usr/bin", "confined"), ("/bin", "free")):
        at = state(repo, mode=mode)
        found = await exec_of(replace(config, environ={"PATH": path}), at, "make", "x")
        assert found.segments == (Segment(("make", "x"), effect),)  # type: ignore[arg-type]
    (relative,) = (await exec_of(config, state(repo, mode=mode), "./make")).segments
    assert relative.allowed == "confined"


@pytest.mark.parametrize("stricter", [0, 1], ids=["the first", "the second"])
async def test_command_that_two_rules_mean_stays_in_the_sandbox_where_one_of_them_says_so(
    home: Path, repo: Path, stricter: int
) -> None:
    rules = ["prefix_rule(pattern=['make'])"] * 2
    rules[stricter] = "prefix_rule(pattern=['make', 'test'], confined=True)"
    config = write(home, "\n".join(rules))
    (both,) = (await exec_of(config, state(repo), "make", "test")).segments
    (one,) = (await exec_of(config, state(repo), "make", "all")).segments
    assert (both.allowed, one.allowed) == ("confined", "free")


# --- what a session hears


def test_session_hears_once_of_a_file_that_is_left_out(home: Path, repo: Path) -> None:
    write(home, "nonsense")
    warnings, heard = RuleWarnings(CommandRules(home)), list[Any]()
    for _ in range(2):
        warnings.show(state(repo), heard.append)
    assert [event["type"] for event in heard] == ["warning"]
    assert "own.rules: line 1" in heard[0]["message"]
    write(home, "more nonsense")
    warnings.show(state(repo), heard.append)
    assert len(heard) == 2


def test_each_session_hears_of_a_file_that_is_left_out_again_when_it_is_left_out_for_another_reason(
    home: Path, repo: Path
) -> None:
    warnings = RuleWarnings(CommandRules(home))

    def look(*sessions: str) -> list[str]:
        """The sessions that hear of something, with the line at fault."""
        told: list[str] = []
        for session in sessions:
            heard: list[Any] = []
            warnings.show(
                replace(state(repo), facts=SessionFacts(session_id=cast(Any, session))), heard.append
            )
            lines = [re.search(r"own\.rules: (line \d)", event["message"]) for event in heard]
            told += [f"{session} {line[1]}" for line in lines if line is not None]
        return told

    assert look("a", "b") == []
    write(home, "nonsense")
    assert look("a", "b", "a", "b") == ["a line 1", "b line 1"]
    write(home, "prefix_rule(pattern=['a'])\nmore nonsense")
    assert look("b", "c", "b", "c") == ["b line 2", "c line 2"]
    write(home, "prefix_rule(pattern=['a'])")
    assert look("a", "b", "c", "d") == []
    write(home, "prefix_rule(pattern=['a'])\nmore nonsense")
    assert look("a", "b", "c", "d") == [f"{session} line 2" for session in "abcd"]


# --- what an answer adds


def test_rule_that_an_answer_adds_is_read_as_the_same_prefix(home: Path) -> None:
    path = home / "rules" / "default.rules"
    path.write_text("# mine")
    prefix = ("touch", 'a "b" \\ \n é 😀')
    for _ in range(2):
        add_rule(home / "rules", prefix, confined=True)
    (rule,) = parsed_rules(path.read_text())
    assert rule.means(prefix)
    assert rule.confined
    add_rule(home / "rules", prefix, confined=False)
    assert [each.confined for each in parsed_rules(path.read_text())] == [True, False]


def test_rule_that_would_spoil_the_file_is_not_added(home: Path) -> None:
    path = home / "rules" / "default.rules"
    path.write_text(MAKE + "\n")
    with pytest.raises(RuleError, match="1,001 characters"):
        add_rule(home / "rules", ("x" * 1_001,), confined=True)
    path.write_text("nonsense")
    with pytest.raises(RuleError, match="line 1"):
        add_rule(home / "rules", ("touch",), confined=True)
    assert path.read_text() == "nonsense"
    path.write_bytes(MAKE.encode() + b"\n# caf\xe9\n")
    with pytest.raises(RuleError, match="line 2: the file is not UTF-8"):
        add_rule(home / "rules", ("touch",), confined=True)


def test_rule_is_not_added_through_a_link(home: Path, tmp_path: Path) -> None:
    (home / "rules" / "default.rules").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match=r"default\.rules is a link, or no file: remove it"):
        add_rule(home / "rules", ("touch",), confined=True)
    assert not (tmp_path / "elsewhere").exists()


# --- what a rule means, by itself


SAID = {"prompt": "ask me", "forbidden": "never"}


def ruling(*decisions: str, pattern: tuple[str, ...] = ("git",)) -> list[PrefixRule]:
    words = tuple(frozenset({word}) for word in pattern)
    return [PrefixRule(words, cast(Any, each), SAID.get(each, "")) for each in decisions]


@pytest.mark.parametrize("decisions", [*permutations(("allow", "prompt", "forbidden")), ("prompt", "allow")])
def test_strictest_of_all_rules_that_a_command_meets_counts_in_whatever_order(
    decisions: tuple[str, ...],
) -> None:
    strictest = "forbidden" if "forbidden" in decisions else "prompt"
    found = strict_rule(["git", "push"], ruling(*decisions))
    assert found is not None
    assert (found.decision, found.justification) == (strictest, SAID[strictest])
    assert strict_rule(["make"], ruling(*decisions)) is None


@pytest.mark.parametrize(
    ("command", "met"),
    [
        (["git", "push"], True),
        (["/usr/bin/git", "push"], True),
        (["./git", "push"], True),
        (["bin/git", "push"], True),
        (["sudo", "git", "push"], True),
        (["env", "A=1", "git", "push"], True),
        (["timeout", "-s", "KILL", "60", "git", "push"], True),
        (["bash", "-c", "ls && timeout 1m stdbuf -oL git push"], True),
        (["bash", "-c", "ls; sudo git push"], True),
        (["bash", "-c", "bash -c 'git push'"], True),
        (["bash", "-euo", "pipefail", "-c", "git push", "name"], True),
        (["dash", "-xc", "git push"], True),
        (["bash", "-c", "eval 'ls; git push'"], True),
        (["find", ".", "-maxdepth", "0", "-execdir", "env", "git", "push", ";"], True),
        (["find", ".", "-exec", "sh", "-ec", "git push", ";"], True),
        (["bash", "-c", "echo", "git", "push"], False),
        (["gitk", "push"], False),
        (["/git/x", "push"], False),
        (["git"], False),
    ],
)
def test_rule_is_met_by_a_program_however_it_is_named_and_whatever_runs_it(
    command: list[str], met: bool
) -> None:
    assert (strict_rule(command, ruling("forbidden", pattern=("git", "push"))) is not None) is met


def test_rule_about_what_runs_another_command_is_met_as_well() -> None:
    assert strict_rule(["sudo", "git", "push"], ruling("prompt", pattern=("sudo",))) is not None


@pytest.mark.parametrize(
    ("script", "allowed"),
    [
        ("git status", ["free"]),
        ("git status; git push", ["free", ""]),
        ("git *; git status", ["", "free"]),
        ("git * status", [""]),
    ],
)
def test_each_command_of_a_script_is_allowed_by_the_words_that_are_certain(
    script: str, allowed: list[str]
) -> None:
    rules = ruling("allow", pattern=("git", "status"))
    assert [
        each.allowed or "" for each in segments(["/bin/bash", "-c", script], rules, lambda name: True)
    ] == allowed


@pytest.mark.parametrize("free", [set(), {"/bin/bash"}, {"git"}, {"/bin/bash", "git"}])
def test_command_leaves_its_sandbox_where_its_program_and_the_shell_around_it_are_the_machines(
    free: set[str],
) -> None:
    (found,) = segments(["/bin/bash", "-c", "git status"], ruling("allow"), free.__contains__)
    assert found.allowed == ("free" if len(free) == 2 else "confined")


@pytest.mark.parametrize("more", [0, 1])
def test_file_has_as_many_rules_as_it_may(more: int) -> None:
    text = "prefix_rule(pattern=['a'])\n" * (MOST_RULES + more)
    if more:
        with pytest.raises(RuleError, match=f"line {MOST_RULES + 1}: more than"):
            parsed_rules(text)
    else:
        assert len(parsed_rules(text)) == MOST_RULES


def test_file_that_changes_within_a_second_to_as_many_bytes_is_read_again(home: Path) -> None:
    rules, path = CommandRules(home), home / "rules" / "own.rules"
    for at, word in ((1, "a"), (2, "b")):
        write(home, f"prefix_rule(pattern=['{word}'])")
        os.utime(path, ns=(1_700_000_000_000_000_000 + at,) * 2)
        (rule,) = rules.of(home).rules
        assert rule.means([word])


def test_rule_is_added_behind_a_line_without_an_end_and_beside_one_that_holds_its_words(home: Path) -> None:
    path = home / "rules" / "default.rules"
    path.write_text('# prefix_rule(pattern=["git"], decision="allow")')
    for _ in range(2):
        add_rule(home / "rules", ("git",), confined=False)
        (rule,) = parsed_rules(path.read_text())
        assert rule.means(["git"])


@pytest.mark.parametrize("count", [1, MOST_SHOWN, MOST_SHOWN + 1, MOST_SHOWN + 3])
def test_session_hears_of_each_file_that_is_left_out_up_to_a_bound(
    home: Path, repo: Path, count: int
) -> None:
    for number in range(count):
        write(home, "nonsense", f"{number:02}.rules")
    heard: list[Any] = []
    RuleWarnings(CommandRules(home)).show(state(repo), heard.append)
    assert len(heard) == min(count, MOST_SHOWN + 1)
    more = {MOST_SHOWN + 1: "1 more problem;", MOST_SHOWN + 3: "3 more problems;"}
    assert (more[count] in heard[-1]["message"]) if count in more else "0" in heard[-1]["message"]


@pytest.mark.parametrize(
    ("command", "signed"),
    [
        (("make", "deploy"), True),
        (("make", "test"), False),
        (("bash", "-lc", "cd x && make deploy"), True),
    ],
)
def test_approval_is_to_be_signed_where_a_rule_that_the_command_meets_says_so(
    command: tuple[str, ...], signed: bool
) -> None:
    rules = parsed_rules(
        "prefix_rule(pattern=['make'], decision='prompt')\n"
        "prefix_rule(pattern=['make', 'deploy'], decision='prompt', sign=True)",
        may_allow=False,
    )
    found = strict_rule(command, rules)
    assert found is not None
    assert found.sign is signed


@pytest.mark.parametrize("signed", [(), (0,), (1,), (0, 1)])
def test_script_that_is_too_involved_is_to_be_signed_where_any_rule_says_so(signed: tuple[int, ...]) -> None:
    asking = [PrefixRule((frozenset({word}),), "prompt", sign=at in signed) for at, word in enumerate("ab")]
    found = strict_rule(
        ["bash", "-lc", "true " + "| true " * 20_000], [*asking, *ruling("forbidden", "allow")]
    )
    assert found is not None
    assert (found.decision, found.sign) == ("prompt", bool(signed))


@pytest.mark.parametrize("wrong", [None, 0, 1, 2])
@pytest.mark.parametrize("name", ["match", "not_match"])
def test_rule_is_held_against_every_example_of_it(name: str, wrong: int | None) -> None:
    right, other = ("npm test -- -w", ["npm", "test"]), ("npm install", ["make", "npm", "test"])
    good, bad = (right, other) if name == "match" else (other, right)
    examples: list[object] = [good[0], good[1], good[0]]
    if wrong is not None:
        examples[wrong] = bad[wrong % 2]
    text = f"prefix_rule(pattern=['npm', ['test', 't']], decision='forbidden', {name}={examples!r})"
    if wrong is None:
        assert len(parsed_rules(text)) == 1
    else:
        with pytest.raises(RuleError, match=rf"{name}: the rule (does not mean|means) "):
            parsed_rules(text)


def test_file_behind_a_link_within_the_folder_is_read_again_when_it_changes_or_goes(home: Path) -> None:
    rules, file = CommandRules(home), home / "rules" / "shared"
    (home / "rules" / "own.rules").symlink_to("shared")
    assert len(rules.of(home).problems) == 1
    for at, word in ((1, "a"), (2, "b")):
        file.write_text(f"prefix_rule(pattern=['{word}'])")
        os.utime(file, ns=(1_700_000_000_000_000_000 + at,) * 2)
        (rule,) = rules.of(home).rules
        assert rule.means([word])
    file.unlink()
    assert rules.of(home).rules == ()
    assert len(rules.of(home).problems) == 1


@pytest.mark.parametrize("leads", ["out", "beside", "within"])
def test_link_of_a_project_is_followed_within_its_repository_alone(
    home: Path, repo: Path, tmp_path: Path, leads: str
) -> None:
    target = {"out": tmp_path / "x", "beside": repo / "x", "within": repo / ".dendro/rules/x"}[leads]
    target.write_text("prefix_rule(pattern=['make'], decision='forbidden')")
    (repo / ".dendro/rules/x.rules").symlink_to(target)
    found = CommandRules(home, trust_projects=True).of(repo)
    assert (len(found.rules), len(found.problems)) == ((0, 1) if leads == "out" else (1, 0))


@pytest.mark.parametrize("cwd", ["repo", "repo/src", "link", "tree", "elsewhere"])
def test_rules_of_a_project_are_those_at_the_top_of_the_repository_around_the_folder(
    home: Path, repo: Path, tmp_path: Path, cwd: str
) -> None:
    (repo / "src" / ".dendro" / "rules").mkdir(parents=True)
    (tmp_path / "link").symlink_to(repo / "src")
    # A work tree beside it has a file in the place of the folder.
    for folder in ("tree", "elsewhere"):
        (tmp_path / folder / ".dendro" / "rules").mkdir(parents=True)
    (tmp_path / "tree" / ".git").write_text("gitdir: ../repo/.git/worktrees/tree\n")
    for folder, word in (("repo", "make"), ("repo/src", "no"), ("tree", "tree"), ("elsewhere", "no")):
        rule = f"prefix_rule(pattern=['{word}'], decision='forbidden')"
        (tmp_path / folder / ".dendro/rules/x.rules").write_text(rule)
    found = CommandRules(home, trust_projects=True).of(tmp_path / cwd).rules
    expected = {"tree": ["tree"], "elsewhere": []}.get(cwd, ["make"])
    assert [word for rule in found for word in rule.pattern[0]] == expected


@pytest.mark.parametrize("decision", ["prompt", "forbidden"])
@pytest.mark.parametrize("at", [0, 1, 2])
async def test_project_makes_stricter_what_its_owner_allows_in_each_command_of_a_script(
    home: Path, repo: Path, decision: str, at: int
) -> None:
    (repo / ".dendro/rules/x.rules").write_text(
        f"prefix_rule(pattern=['make', 'deploy'], decision='{decision}', justification='not yet')"
    )
    write(home, MAKE)
    config = replace(CONFIG, rules=CommandRules(home, trust_projects=True))
    words = ["make a", "make b", "make c"]
    allowed = await verdict(config, state(repo), "bash", "-lc", " && ".join(words))
    assert isinstance(allowed, Run)
    words[at] = "make deploy"
    found = await verdict(config, state(repo), "bash", "-lc", " && ".join(words))
    assert isinstance(found, Ask if decision == "prompt" else Refuse)
    never = await verdict(config, state(repo, "never"), "bash", "-lc", " && ".join(words))
    assert isinstance(never, Refuse)


@pytest.mark.parametrize("cwd", ["", "src", "src/deep"])
@pytest.mark.parametrize("repository", [True, False])
async def test_rules_of_a_portable_folder_are_those_of_its_copy_and_of_no_repository_above_it(
    home: Path, tmp_path: Path, cwd: str, repository: bool
) -> None:
    place = Place.of(tmp_path / "root", "s1", "s1", "work")
    (place.here / "src/deep").mkdir(parents=True)
    place.temporary.mkdir()
    if repository:
        (place.here / ".git").mkdir()
    for folder, word in ((place.here, "make"), (tmp_path, "cargo")):
        (folder / ".dendro/rules").mkdir(parents=True)
        rules = f"prefix_rule(pattern=['{word}'], decision='forbidden', justification='{word}: not here')"
        (folder / ".dendro/rules/x.rules").write_text(rules)
        (folder / ".dendro/rules/y.rules").write_text("nonsense")
    # The machine's own folder is somebody's repository, and the copy lies in it.
    (tmp_path / ".git").mkdir()
    config = replace(CONFIG, rules=CommandRules(home, trust_projects=True))
    names: Any = {"session_id": "s1", "tree_id": "s1"}
    facts = SessionFacts(**names, portable=PortableFolder(str(tmp_path / "root"), "work"))
    at = replace(state(place.seen / cwd), facts=facts)
    found = await verdict(config, at, "make")
    assert (isinstance(found, Refuse) and "make: not here" in found.text) is repository
    assert not isinstance(await verdict(config, at, "cargo"), Refuse)
    heard: list[Any] = []
    RuleWarnings(config.rules).show(at, heard.append)
    assert [event["message"].count(str(place.here)) for event in heard] == ([1] if repository else [])
