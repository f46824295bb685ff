"""Parsed commands: a person is told what a command looks at."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.protocol.commands import (
    ListFilesCommand,
    ParsedCommand,
    ReadCommand,
    SearchCommand,
    UnknownCommand,
)
from orchestrator.protocol.wire import written
from orchestrator.tools.commands.parsed import parsed_cmd
from tests.commit_seed import examples


def read(cmd: str, name: str) -> ParsedCommand:
    return ReadCommand(cmd=cmd, name=name)


def files(cmd: str, path: str | None = None) -> ParsedCommand:
    return ListFilesCommand(cmd=cmd, path=path)


def search(cmd: str, query: str | None = None, path: str | None = None) -> ParsedCommand:
    return SearchCommand(cmd=cmd, query=query, path=path)


def unknown(cmd: str) -> ParsedCommand:
    return UnknownCommand(cmd=cmd)


RECORDED = [
    (["sleep", "3"], [unknown("sleep 3")]),
    (["bash", "-lc", "echo b"], [unknown("echo b")]),
    (["bash", "-lc", "sleep 0.3; echo a"], [unknown("sleep 0.3"), unknown("echo a")]),
    (["bash", "-lc", "touch x.txt; ls"], [unknown("touch x.txt"), files("ls")]),
    (
        ["bash", "-lc", "cat a.txt | grep two"],
        [read("cat a.txt", "a.txt"), search("grep two", "two")],
    ),
    (
        ["bash", "-lc", "echo started; sleep 20; echo late"],
        [unknown("sleep 20"), unknown("echo late")],
    ),
    (
        ["bash", "-lc", "echo out; echo err >&2; ls; exit 3"],
        [unknown("echo out; echo err >&2; ls; exit 3")],
    ),
]


@pytest.mark.parametrize(("argv", "entries"), RECORDED)
def test_entries_equal_those_that_the_peer_recorded(argv: list[str], entries: list[ParsedCommand]) -> None:
    assert parsed_cmd(argv) == entries


SINGLE = [
    ("cat README.md", read("cat README.md", "README.md")),
    ("cat -- src/a.py", read("cat -- src/a.py", "a.py")),
    ("cat -n docs/a.md", read("cat -n docs/a.md", "a.md")),
    ("cat a b", unknown("cat a b")),
    ("cat", unknown("cat")),
    ("head -n 50 Cargo.toml", read("head -n 50 Cargo.toml", "Cargo.toml")),
    ("head -n50 Cargo.toml", read("head -n50 Cargo.toml", "Cargo.toml")),
    ("head -5 a", read("head -5 a", "a")),
    ("head a", read("head a", "a")),
    ("head a b", unknown("head a b")),
    ("tail -n +10 x/a.log", read("tail -n +10 x/a.log", "a.log")),
    ("tail --lines 3 a", read("tail --lines 3 a", "a")),
    ("sed -n 1,20p a.py", read("sed -n '1,20p' a.py", "a.py")),
    ("sed -n 3p a.py", read("sed -n 3p a.py", "a.py")),
    ("nl -ba a.py", read("nl -ba a.py", "a.py")),
    ("nl -s : a.py", read("nl -s : a.py", "a.py")),
    ("bat -r 1:5 a.py", read("bat -r 1:5 a.py", "a.py")),
    ("less a.py", read("less a.py", "a.py")),
    ("ls", files("ls")),
    ("ls -la", files("ls -la")),
    ("ls -la packages/app/src/", files("ls -la packages/app/src/", "app")),
    ("ls src", files("ls src", "src")),
    ("ls .", files("ls .", ".")),
    ("ls /", files("ls /", "/")),
    ("ls --time-style=long-iso ./dist", files("ls '--time-style=long-iso' ./dist", ".")),
    ("ls -I node lib", files("ls -I node lib", "lib")),
    ("tree -L 2 lib", files("tree -L 2 lib", "lib")),
    ("rg --files", files("rg --files")),
    ("rg --files -g x webview/src", files("rg --files -g x webview/src", "webview")),
    ("find", files("find")),
    ("find . -type f", files("find . -type f", ".")),
    ("find -maxdepth 1", files("find -maxdepth 1")),
    ("find lib -name a.py", search("find lib -name a.py", "a.py", "lib")),
    ("find -iname a.py", search("find -iname a.py", "a.py")),
    ("fd", files("fd")),
    ("fd -t f lib/", files("fd -t f lib/", "lib")),
    ("fd main", search("fd main", "main")),
    ("fd main lib", search("fd main lib", "main", "lib")),
    ("git ls-files lib", files("git ls-files lib", "lib")),
    ("rg TODO", search("rg TODO", "TODO")),
    ("rg -n TODO a/b.py", search("rg -n TODO a/b.py", "TODO", "b.py")),
    ("rg -A 3 -t py TODO lib", search("rg -A 3 -t py TODO lib", "TODO", "lib")),
    ("rg --colors=never -n foo src", search("rg '--colors=never' -n foo src", "foo", "src")),
    ("rg -e foo lib", search("rg -e foo lib", "foo", "lib")),
    ("rg --version", search("rg --version")),
    ("rg -- -x lib", search("rg -- -x lib", "-x", "lib")),
    ("grep two", search("grep two", "two")),
    ("grep -R src/main.rs -n .", search("grep -R src/main.rs -n .", "src/main.rs", ".")),
    ("grep -rn -A 2 TODO lib", search("grep -rn -A 2 TODO lib", "TODO", "lib")),
    ("egrep a|b f", search("egrep 'a|b' f", "a|b", "f")),
    ("ag foo lib", search("ag foo lib", "foo", "lib")),
    ("git grep -n foo lib", search("git grep -n foo lib", "foo", "lib")),
    ("git status", unknown("git status")),
    ("npm run build", unknown("npm run build")),
    ("sed -i s/a/b/ f", unknown("sed -i s/a/b/ f")),
    ("cd src", unknown("cd src")),
    ("true", unknown("true")),
]


@pytest.mark.parametrize(("line", "entry"), SINGLE)
def test_a_single_command_becomes_one_entry(line: str, entry: ParsedCommand) -> None:
    assert parsed_cmd(line.split()) == [entry]


SCRIPTS = [
    ("git status | wc -l", [unknown("git status")]),
    ("rg --files | head -n 50", [files("rg --files"), unknown("head -n 50")]),
    ("rg --files | head -50", [files("rg --files")]),
    ("ls -la | sed -n '1,120p'", [files("ls -la")]),
    ("cat a/b.toml | sed -n '1,200p'", [read("cat a/b.toml | sed -n '1,200p'", "b.toml")]),
    ("nl -ba a.py | sed -n '5,9p'", [read("nl -ba a.py | sed -n '5,9p'", "a.py")]),
    ("cat a | sort | uniq -c", [read("cat a", "a")]),
    ("rg --files | nl -ba", [files("rg --files")]),
    ("yes | rg --files", [files("rg --files")]),
    ("printf '==='; cat -- a.py", [read("cat -- a.py", "a.py")]),
    ("find . | xargs rm", [files("find .", "."), unknown("xargs rm")]),
    ("ls | tee out", [files("ls"), unknown("tee out")]),
    ("ls && sed -i s/a/b/ f", [files("ls"), unknown("sed -i s/a/b/ f")]),
    ("cd foo && cat a.txt", [read("cat a.txt", "a.txt")]),
    ("cd foo && bar", [unknown("bar")]),
    ("cd a; cd b; ls", [files("ls")]),
    ("ls; cd a", [files("ls"), unknown("cd a")]),
    ("echo one; cd a && echo two && ls", [files("ls")]),
    ("echo a; echo b", [unknown("echo b")]),
    ("rg foo || true", [search("rg foo", "foo")]),
    ("true && ls", [files("ls")]),
    ("rg foo; echo done", [search("rg foo", "foo"), unknown("echo done")]),
    ("ls; ls; pwd; ls", [files("ls"), unknown("pwd"), files("ls")]),
    ("wc -l a.txt", [unknown("wc -l a.txt")]),
    ("sort  'a'", [unknown("sort  'a'")]),
    ('rg -n "BUG|TODO" -S', [search("rg -n 'BUG|TODO' -S", "BUG|TODO")]),
    ("ls *.py", [files("ls '*.py'", "*.py")]),
    ("cat ~/notes.md", [read("cat '~/notes.md'", "notes.md")]),
    ("ls > out", [unknown("ls > out")]),
    ("cat a.txt | grep $x", [unknown("cat a.txt | grep $x")]),
    ("(ls)", [unknown("(ls)")]),
    ("ls\npwd", [unknown("ls\npwd")]),
    ("", [unknown("")]),
]


@pytest.mark.parametrize(("script", "entries"), SCRIPTS)
def test_a_script_becomes_one_entry_for_each_telling_command(
    script: str, entries: list[ParsedCommand]
) -> None:
    for shell in (["bash", "-lc"], ["bash", "-c"], ["/bin/zsh", "-lc"]):
        assert parsed_cmd([*shell, script]) == entries


def test_an_argv_without_a_shell_is_one_command_whatever_its_words() -> None:
    assert parsed_cmd(["rg", "foo", ";", "ls"]) == [search("rg foo ';' ls", "foo", ";")]
    assert parsed_cmd(["bash", "a.sh"]) == [unknown("bash a.sh")]
    assert parsed_cmd([]) == [unknown("")]


WORDS = "ls cat rg find fd sed head tail nl git grep echo cd true -n -e -- --files a/b src / 1p"


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from(WORDS.split()), max_size=6), st.sampled_from([" ", "; ", " | ", " && "]))
def test_every_command_has_well_formed_entries(words: list[str], joint: str) -> None:
    fields = {
        "read": {"type", "cmd", "name"},
        "list_files": {"type", "cmd", "path"},
        "search": {"type", "cmd", "query", "path"},
        "unknown": {"type", "cmd"},
    }
    for argv in (words, ["bash", "-lc", joint.join(words)]):
        entries = list(map(written, parsed_cmd(argv)))
        assert entries
        assert all(set(entry) == fields[str(entry["type"])] for entry in entries)
        assert all(isinstance(entry["cmd"], str) for entry in entries)
