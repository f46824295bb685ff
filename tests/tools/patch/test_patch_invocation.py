"""Which commands are calls of apply_patch, and which stay commands."""

from __future__ import annotations

import subprocess
import sys

import pytest

from orchestrator.tools.shell import (
    NotAPatch,
    PatchInvocation,
    PatchRefusal,
    patch_from_argv,
)

BODY = "*** Begin Patch\n*** Add File: foo\n+hi $USER `id`\n*** End Patch\n"
HEREDOC = f"<<'EOF'\n{BODY}EOF\n"


@pytest.mark.parametrize("name", ["apply_patch", "applypatch"])
def test_direct_call_carries_its_body_whether_or_not_it_is_valid(name: str) -> None:
    assert patch_from_argv([name, BODY]) == PatchInvocation(BODY)
    assert patch_from_argv([name, "garbage"]) == PatchInvocation("garbage")


@pytest.mark.parametrize("shell", ["bash", "sh", "zsh", "/usr/bin/bash"])
@pytest.mark.parametrize("flag", ["-lc", "-c"])
def test_script_that_is_only_the_call_is_the_call(shell: str, flag: str) -> None:
    assert patch_from_argv([shell, flag, f"apply_patch {HEREDOC}"]) == PatchInvocation(BODY)


@pytest.mark.parametrize("delimiter", ["EOF", "'EOF'", '"EOF"', "PATCH", "'END_OF_PATCH'"])
def test_body_is_taken_as_written_under_any_delimiter(delimiter: str) -> None:
    end = delimiter.strip("'\"")
    script = f"apply_patch <<{delimiter}\n{BODY}{end}"
    assert patch_from_argv(["bash", "-lc", script]) == PatchInvocation(BODY)


@pytest.mark.parametrize(
    ("folder", "workdir"),
    [
        ("sub", "sub"),
        ("../up/b", "../up/b"),
        ("/abs", "/abs"),
        ("'a b'", "a b"),
        ('"a b"', "a b"),
        ("7", "7"),
    ],
)
def test_cd_before_the_call_gives_the_folder(folder: str, workdir: str) -> None:
    script = f"cd {folder} && apply_patch {HEREDOC}"
    assert patch_from_argv(["bash", "-lc", script]) == PatchInvocation(BODY, workdir)


@pytest.mark.parametrize(
    "script",
    [
        f"echo hi; apply_patch {HEREDOC}",
        f"apply_patch {HEREDOC}echo done",
        f"apply_patch <<'EOF' && echo done\n{BODY}EOF\n",
        f"apply_patch <<'EOF' | cat\n{BODY}EOF\n",
        f"apply_patch <<'EOF' > out\n{BODY}EOF\n",
        f"apply_patch <<-'EOF'\n{BODY}EOF\n",
        f"apply_patch --dry-run {HEREDOC}",
        f"FOO=1 apply_patch {HEREDOC}",
        f"cat {HEREDOC}",
        f"cd sub; apply_patch {HEREDOC}",
        f"cd sub || apply_patch {HEREDOC}",
        f"cd sub && cd deeper && apply_patch {HEREDOC}",
        f"cd - && apply_patch {HEREDOC}",
        f"apply_patch <<'EOF' <<'MORE'\n{BODY}EOF\nMORE\n",
        f"apply_patch 2> log {HEREDOC}",
        f"cd -P sub && apply_patch {HEREDOC}",
        f"cd $HOME && apply_patch {HEREDOC}",
        f'cd "$HOME" && apply_patch {HEREDOC}',
        f"cd ~ && apply_patch {HEREDOC}",
        f"cd s* && apply_patch {HEREDOC}",
        f"cd && apply_patch {HEREDOC}",
        f"cd a b && apply_patch {HEREDOC}",
        f"(apply_patch {HEREDOC})",
        f"! apply_patch {HEREDOC}",
        f"apply_patch {HEREDOC}".replace("EOF\n", "FOE\n", 1),
        "apply_patch",
        "apply_patch <<< text",
        "apply_patch < file",
        "if apply_patch",
        "apply_patch \ud800",
    ],
)
def test_script_with_anything_beside_the_call_stays_a_command(script: str) -> None:
    assert patch_from_argv(["bash", "-lc", script]) == NotAPatch()


@pytest.mark.parametrize(
    "argv",
    [[], ["ls"], ["apply_patch"], ["apply_patch", BODY, "x"], ["fish", "-c", f"apply_patch {HEREDOC}"],
     ["bash", "-x", f"apply_patch {HEREDOC}"], ["bash", "-lc", "ls -l"]],
)  # fmt: skip
def test_other_commands_are_no_patches(argv: list[str]) -> None:
    assert patch_from_argv(argv) == NotAPatch()


@pytest.mark.parametrize("argv", [[BODY], ["bash", "-lc", BODY], ["sh", "-c", BODY]])
def test_bare_patch_is_refused_with_the_way_to_call(argv: list[str]) -> None:
    refusal = patch_from_argv(argv)
    assert isinstance(refusal, PatchRefusal)
    assert refusal.message.startswith("patch detected without explicit call to apply_patch")


ENDLESS = "apply_patch; case a in " + "@(" * 400_000
"""The grammar's time for it grows with the square of its length: hours."""


def test_script_that_keeps_the_grammar_busy_for_hours_stays_a_command_and_the_next_patch_is_read() -> None:
    assert patch_from_argv(["bash", "-lc", ENDLESS]) == NotAPatch()
    assert patch_from_argv(["bash", "-lc", f"apply_patch {HEREDOC}"]) == PatchInvocation(BODY)


def test_patch_in_a_script_may_be_much_longer_than_an_argument_of_a_program() -> None:
    body = "*** Begin Patch\n*** Add File: long\n" + "+line\n" * 100_000 + "*** End Patch\n"
    assert patch_from_argv(["bash", "-lc", f"apply_patch <<'EOF'\n{body}EOF\n"]) == PatchInvocation(body)
    longer = "+line\n" * 1_000_000
    assert patch_from_argv(["bash", "-lc", f"apply_patch <<'EOF'\n{longer}EOF\n"]) == NotAPatch()


def test_worker_reads_no_script_with_the_grammar_itself() -> None:
    """The grammar is C: a script that crashes it would end all sessions of the worker."""
    script = "import sys, orchestrator.tools.toolbox; sys.exit('tree_sitter' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
