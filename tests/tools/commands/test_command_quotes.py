"""How words are written back as a line of shell."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.tools.commands.parsed import join
from tests.commit_seed import examples


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], ""),
        (["sleep", "0.3"], "sleep 0.3"),
        (["cat", "a+b-c./:@]_"], "cat a+b-c./:@]_"),
        (["sed", "-n", "1,20p", "f"], "sed -n '1,20p' f"),
        (["rg", "--color=never", "a b"], "rg '--color=never' 'a b'"),
        (["echo", ""], "echo ''"),
        (["echo", "it's"], 'echo "it\'s"'),
        (["echo", "a\\b"], 'echo "a\\\\b"'),
        (["echo", 'say "hi"'], "echo 'say \"hi\"'"),
        (["echo", "it's $5"], "echo \"it's \"'$5'"),
        (["rg", "^\\[x\\]"], "rg '^'\"\\\\[x\\\\]\""),
        (["echo", "a!b", "don't!"], "echo 'a!b' \"don't\"'!'"),
        (["echo", "é"], "echo 'é'"),
        (["echo", "a\nb"], "echo 'a\nb'"),
    ],
)
def test_words_are_quoted_as_the_peer_does(words: list[str], line: str) -> None:
    assert join(words) == line


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.text("ab'\"\\$`!^ \n*é=,", max_size=8), max_size=4))
def test_a_shell_splits_the_line_into_the_same_words(words: list[str]) -> None:
    assert shlex.split(join(words)) == words
