"""Plain scripts, as the reader and a real bash judge them."""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.tools.commands import bash
from orchestrator.tools.commands.bash import (
    MAX_SCRIPT_BYTES,
    PlainScript,
    Word,
    command_beginnings,
    read_plain,
    unwrap,
)
from orchestrator.tools.commands.safety import dangers
from tests.commit_seed import examples

PLAIN = [
    ("ls", [["ls"]]),
    ("ls -la src", [["ls", "-la", "src"]]),
    ("  ls \t -l  ", [["ls", "-l"]]),
    ("ls\n", [["ls"]]),
    ("ls;", [["ls"]]),
    ("ls; pwd", [["ls"], ["pwd"]]),
    ("ls&&pwd||true|cat", [["ls"], ["pwd"], ["true"], ["cat"]]),
    ("cat a.txt | grep two", [["cat", "a.txt"], ["grep", "two"]]),
    ("echo 'a b' \"c d\"", [["echo", "a b", "c d"]]),
    ("echo 'it'\"'\"'s'", [["echo", "it's"]]),
    ("echo a'b'\"c\"d", [["echo", "abcd"]]),
    ("echo '' \"\"", [["echo", "", ""]]),
    ("'ls' -l", [["ls", "-l"]]),
    ('"ls"', [["ls"]]),
    (r"\ls", [["ls"]]),
    (r"cat a\ b", [["cat", "a b"]]),
    (r"find . -name \*.py", [["find", ".", "-name", "*.py"]]),
    (r'echo "a\"b\\c\$d\`e"', [["echo", 'a"b\\c$d`e']]),
    (r'grep "\.py"', [["grep", r"\.py"]]),
    ('echo "a\\\nb"', [["echo", "ab"]]),
    ("echo 'a\nb'", [["echo", "a\nb"]]),
    ("echo '$HOME `id` $(id) > * ; & |'", [["echo", "$HOME `id` $(id) > * ; & |"]]),
    ('echo "> * ; & | # ! ~ {a,b}"', [["echo", "> * ; & | # ! ~ {a,b}"]]),
    ('rg --glob="*.py" x', [["rg", "--glob=*.py", "x"]]),
    ("git show HEAD~2 HEAD^ HEAD^^ v1.0~3^2", [["git", "show", "HEAD~2", "HEAD^", "HEAD^^", "v1.0~3^2"]]),
    ("echo 1 2.5 +3 50%", [["echo", "1", "2.5", "+3", "50%"]]),
    ("dd a=b --x=y u@h:/p,q", [["dd", "a=b", "--x=y", "u@h:/p,q"]]),
    ("echo 'é ü' \"日本\"", [["echo", "é ü", "日本"]]),
    ("echo if then time", [["echo", "if", "then", "time"]]),
]

NOT_PLAIN = [
    "",
    "   ",
    "\n",
    ";",
    "; ls",
    "ls ;; pwd",
    "ls ; ; pwd",
    "ls &&",
    "&& ls",
    "ls |",
    "| ls",
    "ls || || pwd",
    "ls\npwd",
    "ls;\npwd",
    "ls &&\npwd",
    "ls \\\n-l",
    "echo a\\\nb",
    "ls &",
    "ls & pwd",
    "ls |& cat",
    "! ls",
    "(ls)",
    "{ ls; }",
    "ls > out",
    "ls >> out",
    "ls 2>/dev/null",
    "ls 2>&1",
    "cat < in",
    "cat <<< text",
    "cat <<EOF\nx\nEOF",
    "cat <(ls)",
    "tee >(cat)",
    "echo $HOME",
    "echo ${HOME}",
    'echo "$HOME"',
    'echo "a $(id) b"',
    'echo "a `id` b"',
    "echo $(id)",
    "echo `id`",
    "echo $((1 + 1))",
    "echo $'a\\nb'",
    'echo $"a"',
    'echo "cost: $"',
    "echo $",
    "A=1",
    "A=1 ls",
    "A+=1 ls",
    "A[0]=1",
    "export A=1",
    "declare -x A",
    "unset A",
    "echo {a,b}",
    "echo {1..3}",
    "echo {}",
    "ls # all",
    "#",
    "echo a#b",
    "echo [ab]",
    "[ -f x ]",
    "[[ -f x ]]",
    "echo !(a)",
    "echo !!",
    "f() { ls; }",
    "function f { ls; }",
    "if true; then ls; fi",
    "for x in a; do ls; done",
    "while true; do ls; done",
    "case a in a) ls;; esac",
    "time ls",
    "coproc ls",
    "then ls",
    "noglob ls",
    "echo 'a",
    'echo "a',
    "echo a\\",
    "echo `a",
    "echo $(a",
    "echo a)",
    "ls\x00 -l",
    "echo '\x00'",
    "ls\r",
    "echo '\x1b[2J'",
    "ls\x0b-l",
    "ls\u00a0-l",
    "\u00a0ls",
    "ls\u2003-l",
    "ls\u2028pwd",
    "ls\u3000-l",
    "echo é",
    "echo \ud800",
    "a|" * 5_000 + "a",
    "echo " + "x" * MAX_SCRIPT_BYTES,
    "echo '" + "é" * (MAX_SCRIPT_BYTES - 100) + "'",
    "(" * 20_000,
    "$(" * 20_000,
]

PATTERNS = [
    "ls *",
    "ls *.py",
    "ls a?",
    "ls ~",
    "ls ~/x",
    "ls --file=~/x",
    "cat =ls",
    "ls ^x",
    "ls a:~",
    "'l'*",
]


def what_runs(script: str) -> tuple[tuple[str, ...], ...] | None:
    """The argv of each command, if the words that are written are those that run."""
    plain = read_plain(script)
    if plain is None or any(word.expands for command in plain.commands for word in command):
        return None
    return tuple(tuple(word.text for word in command) for command in plain.commands)


@pytest.mark.parametrize(("script", "commands"), PLAIN)
def test_reader_gives_the_words_of_a_plain_script(script: str, commands: list[list[str]]) -> None:
    assert what_runs(script) == tuple(tuple(command) for command in commands)


@pytest.mark.parametrize("script", NOT_PLAIN, ids=lambda script: ascii(script)[:40])
def test_reader_refuses_what_is_not_plain(script: str) -> None:
    assert read_plain(script) is None
    assert what_runs(script) is None


@pytest.mark.parametrize("script", PATTERNS)
def test_reader_marks_patterns_and_what_runs_is_then_unknown(script: str) -> None:
    plain = read_plain(script)
    assert plain is not None
    assert any(word.expands for command in plain.commands for word in command)
    assert what_runs(script) is None


def test_reader_keeps_the_operators_between_commands() -> None:
    plain = read_plain("a && b | c || d; e;")
    assert plain == PlainScript(
        commands=tuple((Word(name, expands=False),) for name in "abcde"), operators=("&&", "|", "||", ";")
    )


@pytest.mark.parametrize(
    ("argv", "script"),
    [
        (["bash", "-lc", "ls"], "ls"),
        (["bash", "-c", "ls"], "ls"),
        (["zsh", "-lc", "ls"], "ls"),
        (("sh", "-c", ""), ""),
        (["/usr/bin/bash", "-lc", "ls"], "ls"),
        (["/opt/homebrew/bin/zsh", "-c", "ls"], "ls"),
        (["bash", "script.sh"], None),
        (["bash", "-c"], None),
        (["bash", "-c", "ls", "$0"], None),
        (["bash", "-xc", "ls"], None),
        (["bash", "-c", "-l", "ls"], None),
        (["fish", "-c", "ls"], None),
        (["ls", "-c", "x"], None),
        ([], None),
    ],
)
def test_unwrap_finds_the_script_of_a_shell(argv: list[str], script: str | None) -> None:
    assert unwrap(argv) == script


BEGINNINGS = [
    ("ls; rm -rf $x y", {("ls",), ("rm", "-rf")}),
    ("for i in a; do rm -f a; done", {("rm", "-f", "a")}),
    ("x=$(git reset --hard) > y", {("git", "reset", "--hard")}),
    ('A=1 >log rm -f "$x"', {("rm", "-f")}),
    ("f() { rm a; }; f", {("rm", "a"), ("f",)}),
    ("echo '`rm -f x`' \"`rm -f y`\"", {("echo", "`rm -f x`"), ("rm", "-f", "y")}),
    ("cat <<EOF\nrm -f x\nEOF", {("cat",)}),
    ("printf 'a\r\n'", {("printf", "a\r\n")}),
    ("$x -f", set()),
    ("", set()),
]


@pytest.mark.parametrize(("script", "expected"), BEGINNINGS)
def test_beginnings_of_commands_are_found_anywhere(script: str, expected: set[tuple[str, ...]]) -> None:
    found = command_beginnings(script)
    assert found is not None
    assert set(found) == expected


def test_scripts_beyond_reading_have_no_known_beginnings() -> None:
    assert command_beginnings("a|" * 20_000) is None
    assert command_beginnings("x" * (MAX_SCRIPT_BYTES + 1)) is None
    assert command_beginnings("\udcff") is None


SAFE_WORDS = st.text("abcXYZ019_./:@%+,-", min_size=1, max_size=8)
QUOTED = st.text("ab $`'\"\\*~#;&|<>(){}!é\n\t", max_size=8)


def _single_quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _double_quoted(text: str) -> str:
    return '"' + "".join(f"\\{char}" if char in '$`"\\' else char for char in text) + '"'


WRITTEN_WORDS = st.one_of(
    SAFE_WORDS.map(lambda text: (text, text)),
    QUOTED.map(lambda text: (text, _single_quoted(text))),
    QUOTED.map(lambda text: (text, _double_quoted(text))),
)
COMMANDS = st.tuples(st.sampled_from(["ls", "cat", "x-y"]), st.lists(WRITTEN_WORDS, max_size=4))


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(COMMANDS, min_size=1, max_size=5), st.lists(st.sampled_from(["&&", "||", ";", "|"]), min_size=5)
)
def test_a_script_built_from_words_reads_back_as_these_words(
    commands: list[tuple[str, list[tuple[str, str]]]], operators: list[str]
) -> None:
    written = [" ".join([name, *(source for _, source in words)]) for name, words in commands]
    script = written[0] + "".join(
        f" {operator} {command}" for operator, command in zip(operators, written[1:], strict=False)
    )
    assert what_runs(script) == tuple((name, *(text for text, _ in words)) for name, words in commands)


@settings(max_examples=examples(200), deadline=None)
@given(st.text(max_size=60))
def test_reader_answers_for_any_text(script: str) -> None:
    plain = what_runs(script)
    assert plain is None or (plain and all(plain))


# Runs every script with no program in reach: commands that are not found report their words.
_REPORTER = r"""
PATH=/nonexistent
command_not_found_handle() { printf '%s\0' "$#" "$@" >&3; }
for script; do
  eval "$script"
  printf '%s\0' end >&3
done
"""
_FRAGMENTS = [
    *(
        "pa",
        "pb",
        "pc",
        " ",
        " ",
        " ",
        "\t",
        "\n",
        "'",
        "'",
        '"',
        '"',
        "\\",
        "\\ ",
        "\\\n",
        "$",
        "`",
        "&&",
        ";",
    ),
    *(
        "|",
        "&",
        "<",
        ">",
        "(",
        ")",
        "{",
        "}",
        ",",
        "#",
        "!",
        "=",
        "~",
        "^",
        "*",
        "?",
        "[",
        "]",
        "%",
        "-",
        "a b",
    ),
    *("$x", "$(pa)", "$'p'", "é", "\u00a0", "'q r'", '"s t"', "u=v", "pd 'w'", "\r", "x\\"),
]


def _random_scripts(count: int) -> list[str]:
    source = random.Random(20_260_130)
    return ["pa " + "".join(source.choices(_FRAGMENTS, k=source.randint(1, 9))) for _ in range(count)]


def _run_by_bash(scripts: list[str], folder: Path) -> list[list[tuple[str, ...]]]:
    """The words of every command that bash started, script by script."""
    report = folder / "report"
    argv = ["bash", "--norc", "--noprofile", "-c", f"exec 3>'{report}'\n{_REPORTER}", "bash", *scripts]
    empty = folder / "empty"
    empty.mkdir()
    subprocess.run(argv, cwd=empty, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    fields = iter(report.read_text().split("\0")[:-1])
    runs: list[list[tuple[str, ...]]] = [[]]
    for field in fields:
        if field == "end":
            runs.append([])
        else:
            runs[-1].append(tuple(next(fields) for _ in range(int(field))))
    return runs[:-1]


def test_bash_runs_exactly_the_words_that_the_reader_promised(tmp_path: Path) -> None:
    promised = {script: what_runs(script) for script in _random_scripts(15_000)}
    plain = {
        script: commands
        for script, commands in promised.items()
        if commands is not None and all(command[0].startswith("p") for command in commands)
    }
    assert len(plain) > 300, "the fragments no longer make enough plain scripts to learn anything"
    runs = _run_by_bash(list(plain), tmp_path)
    assert [sorted(run) for run in runs] == [sorted(commands) for commands in plain.values()]


def test_threads_may_read_scripts_at_the_same_time() -> None:
    wrong: list[str] = []

    def read(name: str) -> None:
        scripts = {f"cat {name}-{number} | wc -l": f"{name}-{number}" for number in range(300)}
        wrong.extend(
            script for script, file in scripts.items() if what_runs(script) != (("cat", file), ("wc", "-l"))
        )

    threads = [threading.Thread(target=read, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_reading_a_typical_script_takes_less_than_200_microseconds() -> None:
    scripts = [f"cd src && rg -n 'foo {number}' | head -n 20; git status --short" for number in range(200)]
    assert read_plain("true") is not None, "the reader is there"
    started = time.thread_time()
    for script in scripts:
        assert read_plain(script) is not None
    assert (time.thread_time() - started) / len(scripts) < 200e-6


HANGS = (
    '.\\5"?):b6=<<<\u2028]&ifcase>=function<*9do<<esac9\ud7ff=((zesac{[[\u2028~?[[\r\ud7ff!\x1fe'
    "\nin[[b\x0b {\r"
)
"""A script of which the grammar finds no end."""


def test_script_that_keeps_the_grammar_busy_for_ever_is_not_read_and_the_next_one_is() -> None:
    assert command_beginnings(HANGS) is None
    assert command_beginnings("ls $(rm -rf x)") == (("ls",), ("rm", "-rf", "x"))


def _reader_at_work() -> bash._Reader:
    """The reader, behind a script that it reads; one that was read before would be known, and ask nobody."""
    bash.ask(bash.PLAIN, b"echo one")
    assert bash._reader is not None
    return bash._reader


def test_reader_that_dies_is_replaced() -> None:
    reader = _reader_at_work()
    reader._process.send_signal(signal.SIGSEGV)
    reader._process.wait()
    assert read_plain("echo of a script that nobody has read") is not None
    assert read_plain("echo two") is not None


@pytest.mark.parametrize(
    "answer",
    [b"\0\0\0\2{]", b"\0\0\0\1\xff", struct.pack(">I", 50_000) + b"[" * 50_000, b"\xff\xff\xff\xff"],
    ids=["no JSON", "no text", "too deep", "too long"],
)
def test_reader_that_answers_nonsense_is_replaced(answer: bytes) -> None:
    before = _reader_at_work()
    before._socket.close()
    before._socket, theirs = socket.socketpair()
    with theirs:
        before._socket.settimeout(10)
        theirs.sendall(answer)
        assert command_beginnings(f"rm {os.urandom(8).hex()}") is not None
    assert bash._reader is not before


@pytest.mark.parametrize("signalled", [signal.SIGKILL, signal.SIGSTOP])
def test_command_whose_reader_is_killed_or_stopped_is_read_by_the_next_one(signalled: signal.Signals) -> None:
    def harmed() -> bash._Reader:
        reader = _reader_at_work()
        reader._socket.settimeout(0.2)
        reader._process.send_signal(signalled)
        return reader

    # Each question is the first after its reader was harmed: a second one would find a new reader anyway.
    before = harmed()
    assert dangers(["bash", "-lc", f"echo {signalled.name} >> file; sleep 0.3"]) == (False, "")
    assert bash._reader is not before
    harmed()
    assert dangers(["bash", "-lc", f"echo {signalled.name}; rm -rf x"]) == (True, "")
    harmed()
    assert read_plain(f"echo {signalled.name} | wc -l") is not None


def test_script_that_costs_each_reader_is_unreadable_and_not_destructive() -> None:
    command = ["bash", "-lc", HANGS]
    destroys, fault = dangers(command)
    assert not destroys
    assert fault.startswith("the process that reads scripts was lost twice with it")
    assert dangers(["sudo", "bash", "-c", "echo \udcff"])[1].startswith("its script is no text")
    assert dangers(["bash", "-lc", "ls"]) == dangers(["ls"]) == (False, "")


def test_reader_may_not_write_connect_or_start_anything_and_has_no_environment() -> None:
    folder = Path(f"/proc/{_reader_at_work()._process.pid}")
    assert (folder / "environ").read_bytes() == b""
    assert "NoNewPrivs:\t1" in (folder / "status").read_text()
    assert "Seccomp:\t2" in (folder / "status").read_text()


def test_fork_reads_with_a_process_of_its_own() -> None:
    kept = _reader_at_work()
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        found = read_plain("echo in the fork")
        os.write(write, b"%d" % (found is not None and bash._reader is not kept))
        if bash._reader is not None:
            bash._reader.end()
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 10) == b"1"
    os.close(read)
    os.close(write)
    assert read_plain("echo behind the fork") is not None
    assert bash._reader is kept
