"""Options before each command: files and keys that are named, and words about settings in force."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.cli import approvals, invocation, send
from orchestrator.cli.invocation import SHOWN_KEYS, Invocation, existing_file, prompt_text
from orchestrator.protocol.bounds import TEXT_BYTES
from orchestrator.settings import FolderConfig
from orchestrator.terminal.faults import Fault


@pytest.mark.parametrize(
    ("config", "file", "keys"),
    [
        (["a.toml"], "a.toml", ()),
        (["a.toml", "b.toml", "c.toml"], "c.toml", ()),
        (["model=x"], None, ("model=x",)),
        (["model=x", "a.toml", "pool=y"], "a.toml", ("model=x", "pool=y")),
        (["dir/a=b.toml"], "dir/a=b.toml", ()),
        (["base=https://x/y=z"], None, ("base=https://x/y=z",)),
        ([], None, ()),
    ],
)
def test_last_named_file_counts_and_each_key_that_is_set(
    config: list[str], file: str | None, keys: tuple[str, ...]
) -> None:
    found = Invocation.given(config, ["-c=1", "-c=2"], Path("home"))
    assert found.config_file == (None if file is None else Path(file))
    assert found.overrides == (*keys, "-c=1", "-c=2")
    assert found.home == Path("home")


KEYS = [f"key{number}" for number in range(SHOWN_KEYS + 3)]


@pytest.mark.parametrize("count", [1, 2, SHOWN_KEYS, SHOWN_KEYS + 1, SHOWN_KEYS + 3])
def test_keys_of_a_folders_file_are_named_up_to_a_bound_and_the_others_counted(count: int) -> None:
    more = count - SHOWN_KEYS
    named = ", ".join(KEYS[: min(count, SHOWN_KEYS)]) + (f" and {more} more" if more > 0 else "")
    file, keys = Path("/w/dendro.toml"), tuple(KEYS[:count])
    said = invocation._in_force
    assert said(FolderConfig(file, False, obeyed=keys), None) == f"{file}; it sets {named}"
    ignoring = said(FolderConfig(file, False, ignored=keys), None)
    assert f"you have not trusted it, so it may not set {named}; read it, then: dendro trust" in ignoring
    assert ignoring.endswith("; it sets nothing")
    both = said(FolderConfig(file, False, ignored=("bad",), obeyed=keys), Path("/home/own.toml"))
    assert both.startswith(f"{file}, over /home/own.toml; you have not trusted it, so it may not set bad; ")
    assert both.endswith(f"; it sets {named}")
    assert said(FolderConfig(file, True, obeyed=keys), None) == f"{file} (trusted)"


def test_remedy_for_a_file_that_is_not_trusted_can_be_typed() -> None:
    said = invocation._in_force(FolderConfig(Path("/my work/dendro.toml"), False, ignored=("k",)), None)
    assert "dendro trust '/my work/dendro.toml'" in said


@pytest.mark.parametrize("text", ["no/such", "no.jsonl", "~no-such-user/x.jsonl", "~no-such-user.jsonl"])
def test_file_that_is_not_there_is_named_and_is_no_session(text: str) -> None:
    with pytest.raises(Fault, match="no file"):
        existing_file(text)


def test_argument_is_a_file_where_there_is_one_and_else_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "0199a2b4").write_text("a file that is named like a session")
    (tmp_path / "folder").mkdir()
    assert existing_file("0199a2b4") == Path("0199a2b4")
    assert existing_file("~/0199a2b4") == tmp_path / "0199a2b4"
    assert existing_file("7c1e95aa") is None
    assert existing_file("folder") is None


@pytest.mark.parametrize("stdin", [True, False])
@pytest.mark.parametrize("char", ["x", "é", "\udcff"])
@pytest.mark.parametrize("over", [0, 1])
def test_prompt_has_as_many_bytes_as_a_submission_may_hold(
    stdin: bool, char: str, over: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = len(char.encode("utf-8", "surrogateescape"))
    text = char * ((TEXT_BYTES - 1) // size) + "x" * (TEXT_BYTES - size * ((TEXT_BYTES - 1) // size) + over)
    data = text.encode("utf-8", "surrogateescape")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))
    given = "-" if stdin else text
    if over:
        with pytest.raises(Fault, match=r"more than .* bytes"):
            prompt_text(given)
        return
    assert prompt_text(given) == text.replace("\udcff", "\ufffd")


@pytest.mark.parametrize("said", [b"go on", b"caf\xc3\xa9", b"caf\xe9 is odd", b"two\nlines\n"])
def test_words_for_an_agent_come_from_standard_input_whatever_their_bytes(
    said: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[str] = []

    async def sent(invocation: Invocation, whom: tuple[str, int], text: str, *, interrupt: bool) -> None:
        handed.append(text)

    monkeypatch.setattr(send, "_send", sent)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(said), encoding="utf-8"))
    send.send(cast(Any, SimpleNamespace(find_object=lambda _: Invocation())), "0123", 3, "-")
    assert handed == [said.decode("utf-8", "replace")]


def test_secret_of_standard_input_is_a_line_of_it_and_never_told_in_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines = io.BytesIO(b"first\ncaf\xc3\xa9\nhu\xffsh\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(lines, encoding="utf-8"))
    assert [approvals._typed_unseen("?"), approvals._typed_unseen("?")] == ["first", "café"]
    with pytest.raises(Fault, match="is no UTF-8: it was not sent") as refused:
        approvals._typed_unseen("?")
    assert "hu" not in str(refused.value)
    assert approvals._typed_unseen("?") == "", "the end of input"
