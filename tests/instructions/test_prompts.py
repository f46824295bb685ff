"""Prompts that a person saved."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestrator.runtime import machine_files
from orchestrator.runtime.machine_files import custom_prompts


@pytest.fixture
def folder(home: Path) -> Path:
    (home / "prompts").mkdir()
    return home / "prompts"


def listed(folder: Path) -> tuple[list[str], list[str]]:
    warnings: list[str] = []
    return [prompt.name for prompt in custom_prompts(folder.parent, warnings.append)], warnings


def test_prompt_is_a_file_with_a_description_and_a_hint(folder: Path) -> None:
    (folder / "review.md").write_text("---\ndescription: Looks.\nargument-hint: FILE\n---\nLook at $1.\n")
    (prompt,) = custom_prompts(folder.parent, pytest.fail)
    assert prompt.model_dump(mode="json") == {
        "name": "review",
        "path": str(folder / "review.md"),
        "content": "Look at $1.\n",
        "description": "Looks.",
        "argument_hint": "FILE",
    }


def test_prompts_come_by_name_and_what_is_no_file_is_skipped(folder: Path) -> None:
    for name in ("b.md", "a.md", "c.txt"):
        (folder / name).write_text("text")
    (folder / "folder.md").mkdir()
    os.mkfifo(folder / "pipe.md")
    (folder / "nothing.md").symlink_to("nowhere")
    (folder / "e\x1b[2J.md").write_text("text")
    assert listed(folder) == (["a", "b"], [])


def test_prompt_that_is_no_text_is_left_out_with_a_warning(folder: Path) -> None:
    (folder / "latin.md").write_bytes(b"\xe4")
    (folder / "a.md").write_text("text")
    names, (warning,) = listed(folder)
    assert names == ["a"]
    assert "latin.md was left out: it cannot be read as a text ('utf-8' codec can't decode" in warning


def test_prompt_with_what_only_looks_like_a_front_matter_is_whole(folder: Path) -> None:
    (folder / "a.md").write_text("---\nNo end.\n")
    (prompt,) = custom_prompts(folder.parent, pytest.fail)
    assert (prompt.content, prompt.description) == ("---\nNo end.\n", None)


def test_prompt_that_is_cut_within_a_character_is_too_long_and_no_file_of_another_kind(folder: Path) -> None:
    (folder / "a.md").write_text("x" + "界" * (32 << 10))
    names, (warning,) = listed(folder)
    assert names == []
    assert "it has more than 65,536 bytes" in warning


@pytest.mark.parametrize("more", [0, 1])
def test_prompts_fill_their_room_together_and_no_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch, more: int
) -> None:
    monkeypatch.setattr(machine_files, "MOST_BYTES_TOGETHER", 10)
    (folder / "a.md").write_text("x" * 4)
    (folder / "b.md").write_text("x" * (6 + more))
    names, warnings = listed(folder)
    assert (names, len(warnings)) == (["a", "b"][: 2 - more], more)


def test_person_without_prompts_has_none(home: Path) -> None:
    assert custom_prompts(home, pytest.fail) == ()


def test_prompt_that_is_too_long_is_left_out_with_a_warning(folder: Path) -> None:
    (folder / "a.md").write_text("ä" * (32 << 10))
    (folder / "b.md").write_text("ä" * (32 << 10) + "b")
    (folder / "c.md").write_text("c")
    names, (warning,) = listed(folder)
    assert names == ["a", "c"]
    assert "b.md was left out: it has more than 65,536 bytes" in warning


def test_more_prompts_than_are_listed_are_left_out_with_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abcd":
        (folder / f"{name}.md").write_text("x" * 10)
    monkeypatch.setattr(machine_files, "MOST_PROMPTS", 3)
    assert listed(folder)[0] == ["a", "b", "c"]
    monkeypatch.setattr(machine_files, "MOST_BYTES_TOGETHER", 25)
    names, (warning,) = listed(folder)
    assert names == ["a", "b"]
    assert "c.md and those behind it were left out" in warning
