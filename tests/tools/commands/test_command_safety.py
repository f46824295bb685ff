"""Which commands run without a question, and which never do."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.tools.commands.safety import dangers, is_known_safe
from tests.commit_seed import examples

SAFE = [
    "ls",
    "ls -la src",
    "cat a b c",
    "cd src",
    "cut -d: -f1 /etc/passwd",
    "echo hello",
    "expr 1 + 1",
    "false",
    "grep -R TODO .",
    "head -n 5 a",
    "id",
    "nl -ba a",
    "numfmt --to=iec 1000",
    "paste a b",
    "pwd",
    "rev a",
    "seq 1 10",
    "stat a",
    "tac a",
    "tail -f a",
    "tr a b",
    "true",
    "uname -a",
    "uniq",
    "uniq -c in",
    "uniq -",
    "wc -l a b",
    "which python3",
    "whoami",
    "/bin/ls",
    "/usr/bin/cat a",
    "base64 a",
    "base64 -d -w 0 a",
    "find . -name a.py -type f",
    "find . -newer a -print0",
    "rg TODO src",
    "rg --pretty -n --files",
    "rg --glob=a.py --no-ignore x",
    "sed -n 1p",
    "sed -n 10p a",
    "sed -n 1,200p src/a.py",
    "git status",
    "git status --porcelain=v2 --branch",
    "git log --oneline -n 5",
    "git log -p --stat -- src",
    "git log --no-ext-diff",
    "git diff HEAD~1 -- a.py",
    "git diff --no-index a b",
    "git show HEAD:README.md",
    "git --no-pager log",
    "git --no-optional-locks --no-pager status",
    "git branch",
    "git branch -a",
    "git branch -avv",
    "git branch --show-current",
    "git branch --list feature",
    "git branch --contains HEAD",
    "git branch --sort=-committerdate --format=x",
    "cargo check",
    "cargo check -q --workspace --all-targets",
    "cargo check -p core --features=a,b",
]

NOT_SAFE = [
    "./ls",
    "bin/ls",
    "/tmp/ls",
    "/cat",
    "/home/u/bin/cat a",
    "LS",
    "rm a",
    "touch a",
    "tee a",
    "mkdir a",
    "env ls",
    "xargs ls",
    "sudo ls",
    "python3 -c pass",
    "awk 1 a",
    "sort a",
    "printf a",
    "date",
    "kill 1",
    "eval ls",
    "exec ls",
    "source a",
    "alias ls=rm",
    "export A=1",
    "command ls",
    "pushd a",
    "uniq in out",
    "uniq -c in out",
    "uniq -- in -out",
    "uniq - out",
    "base64 -o out a",
    "base64 -Do out",
    "base64 -oout a",
    "base64 --output out a",
    "base64 --output=out a",
    "base64 --outp=out a",
    "find . -exec rm a +",
    "find . -execdir rm a +",
    "find . -ok rm a",
    "find . -okdir rm a",
    "find . -delete",
    "find . -name a -fls out",
    "find . -fprint out",
    "find . -fprint0 out",
    "find . -fprintf out x",
    "rg --pre ./x a",
    "rg --pre=./x a",
    "rg --hostname-bin ./x a",
    "rg --hostname-bin=./x a",
    "rg --search-zip a",
    "rg -z a",
    "rg -nzi a",
    "rg a -z",
    "sed -n",
    "sed 1p a",
    "sed -n p a",
    "sed -n +1p a",
    "sed -n 1,2,3p a",
    "sed -n 1,p a",
    "sed -n ,2p a",
    "sed -n 1d a",
    "sed -n 1p a b",
    "sed -n 1p -i",
    "sed -n 1p -fscript",
    "sed -n 1p --in-place",
    "sed -i -n 1p a",
    "sed -ni 1p a",
    "sed -n -e 1p",
    "sed -n ١p a",
    "sed -n 1e a",
    "git",
    "git push",
    "git commit -m a",
    "git add .",
    "git checkout main",
    "git fetch",
    "git stash",
    "git config user.name x",
    "git -C /tmp status",
    "git -c core.pager=./x log",
    "git -ccore.pager=./x log",
    "git --git-dir=/tmp/x status",
    "git --git-dir /tmp/x status",
    "git --work-tree=/ status",
    "git --exec-path=/tmp status",
    "git --config-env=core.pager=X log",
    "git -p log",
    "git --paginate log",
    "git --no-pager -c core.pager=./x log",
    "git log --output=out",
    "git log --output out",
    "git diff --outp=out",
    "git diff --o=out",
    "git diff --ext-diff",
    "git log -p --ext",
    "git show --textconv",
    "git show --textc HEAD",
    "git log --exec=x",
    "git branch new",
    "git branch -v new",
    "git branch -l new",
    "git branch -d old",
    "git branch -D old",
    "git branch -m a b",
    "git branch -c a b",
    "git branch -f a b",
    "git branch -u origin/main",
    "git branch --delete old",
    "git branch --edit-description",
    "git branch --set-upstream-to=origin/main",
    "git branch --list -D old",
    "git branch --lis new",
    "cargo",
    "cargo build",
    "cargo +nightly check",
    "cargo --config x check",
    "cargo check --config build.rustc=x",
    "cargo check --config=build.rustc='x'",
    "cargo check --target-dir=/etc",
    "cargo check --manifest-path /tmp/x",
    "cargo check -Zunstable",
    "bash",
    "bash a.sh",
    "bash -c",
]


@pytest.mark.parametrize("line", SAFE)
def test_a_command_that_only_reads_is_safe_alone_and_in_a_script(line: str) -> None:
    assert is_known_safe(line.split())
    assert is_known_safe(["bash", "-lc", line])


@pytest.mark.parametrize("line", NOT_SAFE)
def test_any_other_command_is_not_safe_alone_or_in_a_script(line: str) -> None:
    assert not is_known_safe(line.split())
    assert not is_known_safe(["bash", "-lc", line])
    assert not is_known_safe(["bash", "-lc", f"ls; {line}"])
    assert not is_known_safe(["bash", "-lc", f"{line} | cat"])


SAFE_SCRIPTS = [
    (["bash", "-lc", "cat a.txt | grep two"]),
    (["zsh", "-c", "ls && pwd || true; wc -l a"]),
    (["/usr/bin/bash", "-c", "cd src && rg -n 'foo|bar' | head -n 20"]),
    (["sh", "-c", "git log --oneline | head -5; git status"]),
    (["bash", "-lc", "cat *.py"]),
    (["bash", "-lc", "grep -n x ~/notes src/*.md"]),
    (["bash", "-lc", "find . -name '*.py' | wc -l"]),
    (["bash", "-lc", "sed -n '1,5p' \"a b.txt\""]),
    (["bash", "-lc", "echo '$(rm -rf /)' \"; rm -rf /\""]),
    (["bash", "-lc", "'ls' \"-l\""]),
]

ADVERSARIAL_SCRIPTS = [
    'echo "$(touch x)"',
    'echo "`touch x`"',
    "echo $(touch x)",
    "cat $'a\\x20b'",
    'cat $"a"',
    "ls\ntouch x",
    "ls;\ntouch x",
    "ls ;; touch x",
    "ls\u00a0;\u00a0touch x",
    "ls\u2028touch x",
    "ls\x00; touch x",
    "ls\rtouch x",
    "echo 'a; touch x",
    'echo "a; touch x',
    "ls " + "a" * 200_000,
    "ls; " * 50_000,
    "ls|" * 5_000 + "cat",
    "git -c core.pager='sh -c x' log",
    "git '-c' core.pager=x log",
    'git -"c" core.pager=x log',
    "git diff --out\\put=x",
    "find . -exec touch x \\;",
    "find . -ex'ec' touch x +",
    "find *",
    "find . ~",
    "rg x *",
    "rg --pre ./x y",
    "rg --'pre' ./x y",
    "sed -n '1w /etc/x'",
    "sed -n '1w x' a",
    "sed -n '1e touch x' a",
    "sed -n 1p *",
    "sed -n 1p '-iX'",
    "uniq *",
    "base64 *",
    "git diff *",
    "cat <(touch x)",
    "cat >(touch x)",
    "cat < a",
    "cat <<< a",
    "cat <<EOF\n$(touch x)\nEOF",
    "ls > x",
    "ls 2> x",
    "ls >| x",
    "ls &> x",
    "ls >& x",
    "ls & touch x",
    "ls &",
    "ls |& tee x",
    "(touch x)",
    "{ touch x; }",
    "ls() { touch x; }; ls",
    "function ls { touch x; }; ls",
    "alias ls='touch x'; ls",
    "PATH=. ls",
    "IFS=, ls",
    "LD_PRELOAD=./x.so ls",
    "export PATH=.; ls",
    "cd /tmp && git diff",
    "cd '/tmp'; git status",
    "git log; cd x",
    "eval ls",
    "exec ls",
    ". ./x",
    "source ./x",
    "bash -c ls",
    "sh -c 'ls'",
    "! ls",
    "if true; then ls; fi",
    "for f in a; do cat a; done",
    "time ls",
    "coproc ls",
    "* a",
    "~/ls",
    "./ls",
    "l* a",
    "=ls",
    "ls {a,b}",
    "ls # comment\ntouch x",
    "echo a\\\ntouch x",
    "echo ${x:=$(touch x)}",
    "echo $((a[$(touch x)]))",
    "[ -f a ]",
    "ls && ",
    "",
    " ",
]


@pytest.mark.parametrize("argv", SAFE_SCRIPTS)
def test_a_script_of_safe_commands_is_safe(argv: list[str]) -> None:
    assert is_known_safe(argv)


@pytest.mark.parametrize("script", ADVERSARIAL_SCRIPTS, ids=lambda script: ascii(script)[:40])
def test_a_script_that_could_do_anything_else_is_not_safe(script: str) -> None:
    for shell in ("bash", "zsh", "sh"):
        assert not is_known_safe([shell, "-lc", script])
        assert not is_known_safe([shell, "-c", script])


@pytest.mark.parametrize(
    "argv",
    [
        [],
        [""],
        ["./bash", "-lc", "ls"],
        ["/tmp/bash", "-lc", "ls"],
        ["bash", "-lc", "ls", "arg0"],
        ["bash", "-ilc", "ls"],
        ["bash", "--rcfile", "x", "-c", "ls"],
        ["fish", "-c", "ls"],
        ["ls; touch x"],
        ["ls", "\0"],
        ["cat", "a\0b"],
    ],
)
def test_an_unusual_way_to_start_a_command_is_not_safe(argv: list[str]) -> None:
    assert not is_known_safe(argv)


def test_words_of_an_argv_are_not_read_as_shell() -> None:
    assert is_known_safe(["echo", "$(touch x)", ">", "y", ";", "rm"])
    assert is_known_safe(["cat", "*"])
    assert is_known_safe(["find", ".", "-name", "*.py"])


DANGEROUS = [
    ["rm", "-f", "a"],
    ["rm", "-rf", "a"],
    ["rm", "-fr", "a"],
    ["rm", "-r", "-f", "a"],
    ["rm", "a", "-vRf"],
    ["rm", "--force", "a"],
    ["rm", "--for", "a"],
    ["/bin/rm", "-rf", "/"],
    ["git", "reset", "--hard"],
    ["git", "reset"],
    ["git", "rm", "a"],
    ["git", "-C", "x", "reset"],
    ["git", "--git-dir=x", "-c", "a=b", "rm", "a"],
    ["sudo", "rm", "-rf", "a"],
    ["sudo", "-u", "root", "rm", "-f", "a"],
    ["sudo", "-nu", "root", "rm", "-f", "a"],
    ["sudo", "-uroot", "-n", "--", "rm", "-f", "a"],
    ["sudo", "--user", "root", "A=1", "git", "reset"],
    ["sudo", "sudo", "env", "-u", "X", "A=1", "rm", "-f", "a"],
    ["sudo", "bash", "-c", "rm -f a"],
    ["xargs", "-n", "1", "rm", "-f"],
    ["nohup", "rm", "-f", "a"],
    ["timeout", "60", "rm", "-f", "a"],
    ["timeout", "-k", "5", "--signal=KILL", "60s", "git", "reset"],
    ["timeout", "9", "nice", "-n", "5", "timeout", "8", "rm", "-f", "a"],
    ["stdbuf", "-oL", "-e", "0", "rm", "-f", "a"],
    ["ionice", "-c", "3", "-n7", "rm", "-f", "a"],
    ["flock", "-w", "9", "/tmp/lock", "rm", "-f", "a"],
    ["taskset", "0x1", "rm", "-f", "a"],
    ["taskset", "-c", "0,1", "rm", "-f", "a"],
    ["chroot", "--userspec=1:1", "/srv", "rm", "-f", "a"],
    ["watch", "-n", "5", "rm", "-f", "a"],
    ["busybox", "rm", "-rf", "a"],
    ["find", ".", "-delete"],
    ["find", ".", "-exec", "rm", "-rf", "{}", "+"],
    ["find", ".", "-exec", "echo", "{}", ";", "-execdir", "rm", "-f", "{}", ";"],
    ["find", ".", "-ok", "sudo", "rm", "-f", "{}", ";"],
    ["find", ".", "-okdir", "sh", "-c", 'rm -f "$0"', "{}", ";"],
    ["sudo", "/usr/bin/find", "a", "-exec", "find", "{}", "-exec", "git", "reset", ";", ";"],
    ["find", ".", *["-exec", "find", "."] * 3_000, "-delete"],
    ["bash", "-ec", "rm -f a"],
    ["bash", "-c", "rm -f a", "name", "b"],
    ["bash", "-x", "-o", "pipefail", "-c", "rm -f a"],
    ["bash", "-euo", "pipefail", "-c", "--", "rm -f a"],
    ["bash", "-ceo", "pipefail", "rm -f a"],
    ["bash", "+O", "extglob", "--rcfile", "c", "--norc", "-c", "rm -f a"],
    ["bash", "-c", "-l", "rm -f a"],
    ["zsh", "-oerrexit", "-c", "rm -f a"],
    ["zsh", "-co", "errexit", "rm -f a"],
    ["/bin/dash", "-c", "rm -f a"],
    ["eval", "rm -f a"],
    ["command", "eval", "--", "rm", "-f", "a"],
]

DANGEROUS_SCRIPTS = [
    "rm -rf a",
    "ls && rm -rf a",
    "sudo rm -rf a",
    "git reset --hard HEAD~1",
    "rm -rf a > /dev/null 2>&1",
    'rm -rf "$DIR"',
    "$(rm -rf a)",
    "echo `rm -rf a`",
    "for d in *; do rm -rf $d; done",
    "clean() { rm -rf a; }; clean",
    "(cd x; git rm a)",
    "A=1 rm -f a",
    "! rm -f a",
    "time rm -f a",
    r"\rm -f a",
    r"find . -name '*.py' -exec rm -f {} \;",
    "r'm' -\"f\" a",
    "if x; then rm -f a; fi",
    "ls\nrm -f a",
    "rm -f a &",
    "bash -c 'rm -f a'",
    "sh -c \"bash -lc 'git reset'\"",
    "find . | xargs rm -f",
    "timeout 60 bash -c 'rm -f a'",
    "bash -ec 'rm -f a' x",
    "eval 'ls; rm -f a'",
    "eval " * 3_000 + "rm -f a",
    "echo $(( ; rm -rf a",
    "x|" * 20_000 + "y",
]

NOT_DANGEROUS = [
    [],
    [""],
    ["sudo"],
    ["sudo", "-u"],
    ["rm"],
    ["rm", "a"],
    ["rm", "-r", "a"],
    ["rm", "--", "a"],
    ["rm", "--recursive", "force"],
    ["git"],
    ["git", "-C"],
    ["git", "status"],
    ["git", "log", "reset"],
    ["echo", "rm", "-rf"],
    ["sudo", "ls"],
    ["timeout", "rm", "ls", "-f"],
    ["timeout"],
    ["flock", "-w"],
    ["bash", "-c", "echo 'rm -rf a'"],
    ["bash", "-c", "grep -rf patterns ."],
    ["bash", "-c", "cat <<EOF\nrm -rf a\nEOF"],
    ["bash", "-c", "# rm -rf a"],
    ["find", ".", "-exec", "rm", "{}", ";", "-fprint", "a"],
    ["find", ".", "-exec"],
    ["find", ".", "-name", "rm", "-newer", "-f"],
    ["xfind", ".", "-delete"],
    ["bash", "-c", ""],
    ["bash", "rm", "-f"],
    ["bash", "rm -f a", "-c", "ls"],
    ["bash", "-c", "echo $1", "name", "rm -f a"],
    ["bash", "-o", "c", "rm -f a"],
    ["bash", "+c", "rm -f a"],
    ["bash", "--", "-c", "rm -f a"],
    ["bash", "-co"],
    ["eval"],
    ["eval", "echo 'rm -f a'"],
    ["fish", "-c", "rm -f a"],
]


@pytest.mark.parametrize("argv", DANGEROUS)
def test_a_forced_deletion_or_reset_is_dangerous(argv: list[str]) -> None:
    assert dangers(argv)[0]
    assert not is_known_safe(argv)


@pytest.mark.parametrize("script", DANGEROUS_SCRIPTS, ids=lambda script: script[:40])
def test_danger_is_found_anywhere_in_a_script(script: str) -> None:
    for shell in (["bash", "-lc"], ["/bin/sh", "-c"]):
        command = [*shell, script]
        # One that is too involved may hide anything: it is asked about as well.
        assert any(dangers(command))


@pytest.mark.parametrize("argv", NOT_DANGEROUS)
def test_words_that_only_look_like_danger_are_not(argv: list[str]) -> None:
    assert dangers(argv) == (False, "")


NAMES = "ls cat rm git sudo find rg sed env bash -c -lc -f -rf reset status . a;rm $x *"


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from(NAMES.split()), max_size=6))
def test_no_command_is_both_safe_and_dangerous(words: list[str]) -> None:
    for argv in (words, ["bash", "-lc", " ".join(words)], ["bash", "-c", "; ".join(words)]):
        assert not (is_known_safe(argv) and dangers(argv)[0])


@pytest.mark.parametrize("script", ["sudo " * 25_000, "bash -c '" * 10_000, "a|" * 60_000, "(" * 120_000])
def test_a_hostile_script_is_judged_in_bounded_time(script: str) -> None:
    started = time.thread_time()
    assert not is_known_safe(["bash", "-lc", script])
    dangers(["bash", "-lc", script])
    assert time.thread_time() - started < 2
