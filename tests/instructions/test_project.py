"""`AGENTS.md`: which files count, in which order, and how much of them."""

from __future__ import annotations

import os
import re
from functools import cache
from itertools import combinations, permutations
from pathlib import Path

import pytest

from orchestrator.instructions import project
from orchestrator.instructions.project import ProjectDocs
from orchestrator.instructions.skills import Guide, Instructions, Skills
from tests.gateways.test_workspace_mark import git
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
    text = guide.first(repository / "sub").text or ""
    assert text.startswith("mine\n\nouter\n\ninner\n\n## Skills\n")


def test_override_and_then_the_other_names_stand_in_for_the_file(repository: Path, guide: Guide) -> None:
    (repository / "README.md").write_text("read me")
    assert guide.first(repository).text == "read me"
    (repository / "CLAUDE.md").write_text("claude")
    assert guide.first(repository).text == "claude"
    (repository / "AGENTS.md").write_text("agents")
    assert guide.first(repository).text == "agents"
    (repository / "AGENTS.override.md").write_text("override")
    assert guide.first(repository).text == "override"
    (repository / "AGENTS.override.md").write_text("")
    assert guide.first(repository).text is None, "an empty one stands in as well"


def test_persons_override_stands_in_for_the_persons_file(repository: Path, home: Path, guide: Guide) -> None:
    (home / "AGENTS.md").write_text("mine")
    (home / "AGENTS.override.md").write_text("today")
    assert guide.first(repository).text == "today"


def test_other_names_stand_in_for_no_file_of_the_persons(repository: Path, home: Path, guide: Guide) -> None:
    (home / "README.md").write_text("what is in this folder")
    assert guide.first(repository).text is None


def test_files_have_only_so_many_bytes_together(repository: Path, home: Path, guide: Guide) -> None:
    (repository / "sub").mkdir()
    (home / "AGENTS.md").write_text("m" * 2000)
    (repository / "AGENTS.md").write_text("ä" * 500)
    (repository / "sub/AGENTS.md").write_text("x" * 2000)
    assert guide.first(repository / "sub").text == "\n\n".join(["m" * 1024, "ä" * 500, "x" * 24])


def test_files_of_a_portable_folder_have_only_so_many_bytes_together(guide: Guide) -> None:
    contents = {"AGENTS.md": "ä".encode() * 500, "sub/AGENTS.md": b"x" * 2000, "sub/deep/AGENTS.md": b"y"}
    found = guide.docs.of_contents(["", "sub", "sub/deep"], contents)
    assert found == "\n\n".join(["ä" * 500, "x" * 24])


NAMES = ("AGENTS.override.md", "AGENTS.md", "CLAUDE.md", "README.md")
SOME = [some for count in range(len(NAMES) + 1) for some in combinations(NAMES, count)]


def test_files_of_a_portable_folder_stand_in_for_each_other_as_those_of_a_folder_here(
    repository: Path, guide: Guide
) -> None:
    below = repository / "sub"
    below.mkdir()
    for outer, inner in zip(SOME, reversed(SOME), strict=True):
        contents = {name: f"outer {name}".encode() for name in outer}
        contents |= {f"sub/{name}": f"inner {name}".encode() for name in inner}
        for path, content in contents.items():
            (repository / path).write_bytes(content)
        here = guide.docs.of_folder(below, pytest.fail, top=str(repository))
        assert guide.docs.of_contents(["", "sub"], contents) == here
        first = [f"outer {outer[0]}"] if outer else []
        assert here == ("\n\n".join([*first, *([f"inner {inner[0]}"] if inner else [])]) or None)
        for path in contents:
            (repository / path).unlink()


@pytest.mark.parametrize("place", ["keys", "copies"])
def test_link_inside_of_a_repository_to_what_is_hidden_from_commands_tells_nothing(
    repository: Path, home: Path, place: str
) -> None:
    """A person's archive, copies or keys may lie in the very repository that an agent works in."""
    hidden = tuple(repository / name for name in ("keys", "copies"))
    for folder in hidden:
        write(folder, "planted", body="swordfish-4711\n")
    (repository / "AGENTS.md").symlink_to(repository / place / "planted/SKILL.md")
    (repository / ".agents/skills").mkdir(parents=True)
    (repository / ".agents/skills/linked").symlink_to(repository / place / "planted")
    (repository / ".dendro").mkdir()
    (repository / ".dendro/skills").symlink_to(repository / place)
    skills = Skills(home, home.parent / "anna", home.parent / "etc", hidden)
    guide = Guide(ProjectDocs(home, 1024, hidden=hidden), skills)
    assert guide.first(repository).text is None
    assert guide.further(str(repository), []).text is None
    listed = skills.listed(str(repository))
    assert listed.skills == ()
    assert len(listed.errors) == 2


def test_bytes_that_are_no_text_count_as_what_stands_for_them(repository: Path, guide: Guide) -> None:
    (repository / "sub").mkdir()
    (repository / "AGENTS.md").write_bytes(b"\xff" * 1000)
    (repository / "sub/AGENTS.md").write_text("x" * 2000)
    told = guide.first(repository / "sub").text
    assert told is not None
    assert len(told.replace("\n\n", "").encode()) <= 1024
    contents = {"AGENTS.md": b"\xff" * 1000, "sub/AGENTS.md": b"x" * 2000}
    assert guide.docs.of_contents(["", "sub"], contents) == told


def test_half_a_character_at_the_cut_is_left_out(repository: Path, guide: Guide) -> None:
    (repository / "AGENTS.md").write_text("x" + "ä" * 1000)
    assert guide.first(repository).text == "x" + "ä" * 511


def test_no_bytes_are_no_files(repository: Path, home: Path, skills: Skills) -> None:
    (home / "AGENTS.md").write_text("mine")
    (repository / "AGENTS.md").write_text("ours")
    assert Guide(ProjectDocs(home, 0), skills).first(repository).text is None


def test_link_of_a_repository_into_the_home_folder_tells_nothing(
    repository: Path, home: Path, guide: Guide
) -> None:
    (home / "secret.md").write_text("secret")
    (repository / "AGENTS.override.md").symlink_to(home / "secret.md")
    assert guide.first(repository).text is None


@pytest.mark.parametrize("name", ["AGENTS.md", "AGENTS.override.md", "CLAUDE.md"])
@pytest.mark.parametrize("later", [False, True])
def test_link_that_leads_out_of_a_repository_tells_no_model_of_a_persons_file(
    repository: Path, guide: Guide, tmp_path: Path, name: str, later: bool
) -> None:
    """It is read before any command runs, and outside of every sandbox."""
    key = tmp_path / "person/.ssh/id_rsa"
    key.parent.mkdir(parents=True)
    key.write_text("swordfish-4711")
    below = repository / "sub"
    below.mkdir()
    (below / name).symlink_to(key)
    told = guide.further(str(below), [str(repository)]) if later else guide.first(below)
    assert told.text is None
    (warning,) = told.warnings
    assert (
        f"{below / name} was left out of the instructions: it is a link that leads out of {repository}"
        in (warning)
    )
    assert "id_rsa" not in warning


def test_session_is_warned_of_each_link_that_leads_out_of_its_repository(
    repository: Path, guide: Guide, tmp_path: Path
) -> None:
    below = repository / "sub/deep"
    below.mkdir(parents=True)
    links = [repository / "AGENTS.md", repository / "sub/AGENTS.override.md", below / "CLAUDE.md"]
    for link in links:
        link.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").write_text("swordfish-4711")
    (repository / "sub/AGENTS.md").write_text("ours")
    told = guide.first(below)
    assert told.text == "ours"
    assert [warning.partition(" was left out")[0] for warning in told.warnings] == [
        str(each) for each in links
    ]


def test_link_that_stays_inside_of_a_repository_tells_what_it_leads_to(
    repository: Path, guide: Guide
) -> None:
    (repository / "sub").mkdir()
    (repository / "CLAUDE.md").write_text("ours")
    (repository / "sub/AGENTS.md").symlink_to("../CLAUDE.md")
    assert guide.first(repository / "sub") == Instructions("ours\n\nours")


def test_persons_own_file_may_be_a_link_to_anywhere(
    repository: Path, home: Path, guide: Guide, tmp_path: Path
) -> None:
    (tmp_path / "dotfiles.md").write_text("mine")
    (home / "AGENTS.md").symlink_to(tmp_path / "dotfiles.md")
    assert guide.first(repository) == Instructions("mine")


def test_file_without_a_repository_is_no_link_out_of_its_folder(guide: Guide, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    (tmp_path / "key").write_text("swordfish-4711")
    (tmp_path / "alone/AGENTS.md").symlink_to("../key")
    told = guide.first(tmp_path / "alone")
    assert (told.text, len(told.warnings)) == (None, 1)


def test_strangers_configuration_makes_no_folder_around_it_a_part_of_the_repository(
    repository: Path, guide: Guide, tmp_path: Path
) -> None:
    """With `core.worktree` git itself names that folder, and files there would count, and links to them."""
    (tmp_path / "key").write_text("swordfish-4711")
    (tmp_path / "AGENTS.md").write_text("of another project")
    (repository / "AGENTS.md").symlink_to(tmp_path / "key")
    write(tmp_path / "elsewhere", "x")
    (repository / ".agents").mkdir()
    (repository / ".agents/skills").symlink_to(tmp_path / "elsewhere")
    git(repository, "config", "core.worktree", str(tmp_path))
    for top in (None, str(tmp_path)):
        told = guide.first(repository, top)
        assert (told.text, len(told.warnings)) == (None, 1)


def test_warning_about_a_name_that_is_no_utf_8_can_stand_in_an_event(
    repository: Path, guide: Guide, tmp_path: Path
) -> None:
    folder = repository / os.fsdecode(b"\xff")
    folder.mkdir()
    (tmp_path / "key").write_text("swordfish-4711")
    (folder / "AGENTS.md").symlink_to(tmp_path / "key")
    (warning,) = guide.first(folder).warnings
    assert "\\udcff/AGENTS.md was left out" in warning
    assert warning.encode()


def test_folder_that_is_entered_later_tells_only_what_is_new(repository: Path, guide: Guide) -> None:
    (repository / "sub").mkdir()
    (repository / "AGENTS.md").write_text("outer")
    (repository / "sub/AGENTS.md").write_text("inner")
    write(repository / ".agents/skills", "outer")
    write(repository / "sub/.agents/skills", "inner")
    text = guide.further(str(repository / "sub"), [str(repository)]).text or ""
    assert text.startswith("inner\n\n## Skills\n")
    assert "outer" not in text
    assert guide.further(str(repository), [str(repository / "sub")]).text is None
    assert (guide.further(str(repository), ["/"]).text or "").startswith("outer\n\n## Skills\n")


CHAINS = {
    ".": (".",),
    "a": (".", "a"),
    "a/b": (".", "a", "a/b"),
    "c": (".", "c"),
    "nested": ("nested",),
}
"""Folders of a repository, and those whose files count there; the last one is a repository of its own."""


@pytest.mark.parametrize("known", range(4))
def test_folder_that_is_entered_tells_what_none_of_the_known_folders_has_told_whatever_their_order(
    known: int, repository: Path, guide: Guide, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in CHAINS:
        (repository / name).mkdir(parents=True, exist_ok=True)
        (repository / name / "AGENTS.md").write_text(f"words of {name}")
        write(repository / name / ".agents/skills", f"skill-{list(CHAINS).index(name)}")
    git(repository / "nested", "init", "-q")
    monkeypatch.setattr(project, "git", cache(project.git))
    for folder, chain in CHAINS.items():
        for others in permutations(CHAINS, known):
            told = {name for other in others for name in CHAINS[other]}
            new = [name for name in chain if name not in told]
            paths = [str(repository / other) for other in others]
            text = guide.further(str(repository / folder), paths).text or ""
            assert re.findall("words of (.*)", text) == new, (folder, others)
            skills = [list(CHAINS)[int(number)] for number in re.findall("- skill-(.):", text)]
            assert skills == new[::-1], (folder, others)


@pytest.mark.parametrize("place", [".agents/skills", ".dendro/skills"])
@pytest.mark.parametrize("known", range(3))
def test_folder_that_is_entered_tells_what_is_its_own_though_others_have_the_same_by_name(
    known: int, place: str, repository: Path, guide: Guide, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another folder's file of the same name, and with the same words, is another file."""
    files = {}
    for name in CHAINS:
        (repository / name).mkdir(parents=True, exist_ok=True)
        (repository / name / "AGENTS.md").write_text("the same words")
        files[str(write(repository / name / place, "release"))] = name
    git(repository / "nested", "init", "-q")
    monkeypatch.setattr(project, "git", cache(project.git))
    first = guide.first(repository / "a/b").text or ""
    assert [files[path] for path in re.findall(r"\(file: (.*)\)", first)] == ["a/b", "a", "."]
    for folder, chain in CHAINS.items():
        for others in permutations(CHAINS, known):
            told = {name for other in others for name in CHAINS[other]}
            new = [name for name in chain if name not in told]
            paths = [str(repository / other) for other in others]
            text = guide.further(str(repository / folder), paths).text or ""
            assert text.count("the same words") == len(new), (folder, others)
            skills = [files[path] for path in re.findall(r"- release: .* \(file: (.*)\)", text)]
            assert skills == new[::-1], (folder, others)


@pytest.mark.parametrize("owner", ["repository", "home", "anna", "etc"])
def test_skill_of_one_name_is_offered_of_each_owner_that_has_it_and_once_to_a_session(
    owner: str, repository: Path, home: Path, guide: Guide, tmp_path: Path
) -> None:
    (repository / "sub").mkdir()
    roots = {
        "repository": repository / ".agents/skills",
        "home": home / "skills",
        "anna": tmp_path / "anna/.agents/skills",
        "etc": tmp_path / "etc",
    }
    there = write(roots[owner], "release")
    below = write(repository / "sub/.agents/skills", "release")
    # Dendro's own folder is hidden from commands: the model could not read a file there.
    outer = [] if owner == "home" else [str(there)]

    def told(text: str | None) -> list[str]:
        return re.findall(r"- release: .* \(file: (.*)\)", text or "")

    assert told(guide.first(repository / "sub").text) == [str(below), *outer]
    assert told(guide.first(repository).text) == outer
    assert told(guide.further(str(repository / "sub"), [str(repository)]).text) == [str(below)]
    assert told(guide.further(str(repository), [str(repository / "sub")]).text) == []
