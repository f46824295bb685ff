"""`AGENTS.md`: which files count, in which order, and how much of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.instructions.guide import Guide
from orchestrator.instructions.project import ProjectDocs
from orchestrator.instructions.skills import Skills
from tests.instructions.test_skills import write


@pytest.fixture
def guide(home: Path, skills: Skills) -> Guide:
    return Guide(ProjectDocs(home, 1024, ("CLAUDE.md", "README.md")), skills)


def test_persons_own_file_comes_first_and_the_nearest_last(
    repository: Path, home: Path, guide: Guide
) -> None:
    (repository / "sub").mkdir()
    (home / "AGENTS.md").write_text("mine")
    (repository / "AGENTS.md").write_text("outer\n")
    (repository / "sub/AGENTS.md").write_text("inner")
    write(repository / ".agents/skills", "x")
    text = guide.first(repository / "sub") or ""
    assert text.startswith("mine\n\nouter\n\ninner\n\n## Skills\n")


def test_override_and_then_the_other_names_stand_in_for_the_file(repository: Path, guide: Guide) -> None:
    (repository / "README.md").write_text("read me")
    assert guide.first(repository) == "read me"
    (repository / "CLAUDE.md").write_text("claude")
    assert guide.first(repository) == "claude"
    (repository / "AGENTS.md").write_text("agents")
    assert guide.first(repository) == "agents"
    (repository / "AGENTS.override.md").write_text("override")
    assert guide.first(repository) == "override"


def test_files_have_only_so_many_bytes_together(repository: Path, home: Path, guide: Guide) -> None:
    (repository / "sub").mkdir()
    (home / "AGENTS.md").write_text("m" * 2000)
    (repository / "AGENTS.md").write_text("ä" * 500)
    (repository / "sub/AGENTS.md").write_text("x" * 2000)
    assert guide.first(repository / "sub") == "\n\n".join(["m" * 1024, "ä" * 500, "x" * 24])


def test_half_a_character_at_the_cut_is_left_out(repository: Path, guide: Guide) -> None:
    (repository / "AGENTS.md").write_text("x" + "ä" * 1000)
    assert guide.first(repository) == "x" + "ä" * 511


def test_no_bytes_are_no_files(repository: Path, home: Path, skills: Skills) -> None:
    (home / "AGENTS.md").write_text("mine")
    (repository / "AGENTS.md").write_text("ours")
    assert Guide(ProjectDocs(home, 0), skills).first(repository) is None


def test_link_of_a_repository_into_the_home_folder_tells_nothing(
    repository: Path, home: Path, guide: Guide
) -> None:
    (home / "secret.md").write_text("secret")
    (repository / "AGENTS.override.md").symlink_to(home / "secret.md")
    assert guide.first(repository) is None


def test_folder_that_is_entered_later_tells_only_what_is_new(repository: Path, guide: Guide) -> None:
    (repository / "sub").mkdir()
    (repository / "AGENTS.md").write_text("outer")
    (repository / "sub/AGENTS.md").write_text("inner")
    write(repository / ".agents/skills", "outer")
    write(repository / "sub/.agents/skills", "inner")
    text = guide.further(str(repository / "sub"), [str(repository)]) or ""
    assert text.startswith("inner\n\n## Skills\n")
    assert "outer" not in text
    assert guide.further(str(repository), [str(repository / "sub")]) is None
    assert (guide.further(str(repository), ["/"]) or "").startswith("outer\n\n## Skills\n")
