"""Skills as a working folder has them; what a hostile repository can do to those who look."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from orchestrator.instructions import skills as module
from orchestrator.instructions.skills import OFFER_BYTES, Skills
from orchestrator.protocol.catalog import SkillMetadata, SkillScope


def write(root: Path, name: str, description: str = "Does it.", body: str = "Do it.\n") -> Path:
    file = root / name / "SKILL.md"
    file.parent.mkdir(parents=True)
    file.write_text(f"---\nname: {name}\ndescription: {description}\n---\n{body}")
    return file


def names(skills: Skills, cwd: Path, *, anew: bool = False) -> list[str]:
    return [skill.name for skill in skills.listed(str(cwd), anew=anew).skills]


def errors(skills: Skills, cwd: Path) -> dict[str, str]:
    return {error.path: error.message for error in skills.listed(str(cwd)).errors}


def test_nearest_folder_comes_first_then_the_person_then_the_machine(
    repository: Path, home: Path, tmp_path: Path, skills: Skills
) -> None:
    write(repository / ".agents/skills", "outer")
    write(repository / "sub/.dendro/skills", "inner")
    write(home / "skills", "own")
    write(tmp_path / "anna/.agents/skills", "hers")
    write(tmp_path / "etc", "admins")
    found = skills.listed(str(repository / "sub")).skills
    assert [(skill.name, skill.scope) for skill in found] == [
        ("inner", SkillScope.REPO),
        ("outer", SkillScope.REPO),
        ("own", SkillScope.USER),
        ("hers", SkillScope.USER),
        ("admins", SkillScope.ADMIN),
    ]


def test_without_a_folder_the_skills_of_the_person_and_of_the_machine_are_listed(
    repository: Path, home: Path, tmp_path: Path, skills: Skills, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(repository)
    other = write(repository / ".agents/skills", "other")
    own = write(home / "skills", "own")
    write(tmp_path / "etc", "admins")
    entry = skills.listed("")
    assert ([skill.name for skill in entry.skills], entry.errors) == (["own", "admins"], ())
    assert skills.content("", str(own))[0].name == "own"
    with pytest.raises(ValueError, match="is no skill of this machine: `list_skills`"):
        skills.content("", str(other))


def test_skills_around_a_folder_that_is_no_repository_are_not_its_own(tmp_path: Path, skills: Skills) -> None:
    write(tmp_path / "plain/.agents/skills", "around")
    (tmp_path / "plain/sub").mkdir()
    assert names(skills, tmp_path / "plain/sub") == []


def test_short_description_is_read_from_the_metadata(repository: Path, skills: Skills) -> None:
    file = write(repository / ".agents/skills", "x")
    file.write_text("---\nname: x\ndescription: long\nmetadata:\n  short-description: brief\n---\n")
    (skill,) = skills.listed(str(repository)).skills
    assert skill.short_description == "brief"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Do it.", "it has no front matter: its first line has to be `---`"),
        (b"---\nname: x\n---\n", "its front matter has no `description`"),
        (b"---\ndescription: x\n---\n", "its front matter has no `name`"),
        (b"---\nname: '\x1b'\ndescription: x\n---\n", "its front matter is no YAML"),
        (b"---\nname: " + b"n" * 65 + b"\ndescription: x\n---\n", "its `name` has more than 64 characters"),
        (b"---\nname: x\ndescription: " + b"d" * 1025 + b"\n---\n", "its `description` has more than 1,024"),
        (b"---\nname: \xff\ndescription: x\n---\n", "it is not UTF-8"),
        (b"---\nname: x\ndescription: x\n---\n" + b"x" * (64 << 10), "it has more than 65,536 bytes"),
    ],
)
def test_skill_that_cannot_be_used_is_an_error_beside_the_good_ones(
    content: bytes, message: str, repository: Path, skills: Skills
) -> None:
    bad = write(repository / ".agents/skills", "bad")
    bad.write_bytes(content)
    write(repository / ".agents/skills", "good")
    assert names(skills, repository) == ["good"]
    assert errors(skills, repository)[str(bad)].startswith(message)


@pytest.mark.parametrize("kind", ["pipe", "device", "endless", "hidden", "outside", "folder"])
def test_planted_skill_file_holds_nobody_up_and_tells_nothing(
    kind: str, repository: Path, home: Path, tmp_path: Path, skills: Skills
) -> None:
    folder = repository / ".agents/skills/planted"
    folder.mkdir(parents=True)
    file = folder / "SKILL.md"
    match kind:
        case "pipe":
            os.mkfifo(file)
        case "device":
            file.symlink_to("/dev/zero")
        case "endless":
            with file.open("wb") as sparse:
                sparse.truncate(1 << 40)
        case "hidden":
            file.symlink_to(write(home / "skills", "own"))
        case "outside":
            file.symlink_to(write(tmp_path / "elsewhere", "other"))
        case _:
            file.mkdir()
    listed = skills.listed(str(repository))
    assert [skill for skill in listed.skills if skill.path == str(file)] == []
    assert [error.path for error in listed.errors] == [str(file)]


def test_link_of_a_repository_leads_to_skills_inside_of_it_only(
    repository: Path, tmp_path: Path, skills: Skills
) -> None:
    write(tmp_path / "elsewhere", "stranger")
    write(repository / "shared", "shared")
    (repository / ".agents/skills").mkdir(parents=True)
    (repository / ".agents/skills/out").symlink_to(tmp_path / "elsewhere")
    (repository / ".agents/skills/in").symlink_to(repository / "shared")
    (repository / ".dendro").symlink_to(tmp_path)
    (tmp_path / "skills").symlink_to(tmp_path / "elsewhere")
    assert names(skills, repository) == ["shared"]


def test_persons_own_folder_of_skills_may_be_a_link(repository: Path, tmp_path: Path, skills: Skills) -> None:
    write(tmp_path / "dotfiles", "mine")
    (tmp_path / "anna/.agents").mkdir(parents=True)
    (tmp_path / "anna/.agents/skills").symlink_to(tmp_path / "dotfiles")
    assert names(skills, repository) == ["mine"]


def test_folders_in_a_circle_and_deep_ones_end(repository: Path, skills: Skills) -> None:
    root = repository / ".agents/skills"
    write(root / "1/2/3", "fourth")
    write(root / "1/2/3/4", "fifth")
    (root / "1/again").symlink_to(root)
    listed = skills.listed(str(repository))
    assert {skill.name for skill in listed.skills} == {"fourth"}


def test_repository_full_of_skills_or_of_files_is_looked_at_in_part(
    repository: Path, skills: Skills, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 3)
    for number in range(5):
        write(repository / ".agents/skills", f"s{number}")
    assert names(skills, repository) == ["s0", "s1", "s2"]
    assert list(errors(skills, repository).values()) == ["the rest was left out: 3 skills are listed"]
    monkeypatch.setattr(module, "MOST_ENTRIES", 2)
    (found,) = skills.listed(str(repository), anew=True).errors
    assert found.message == "the rest was left out: 2 files and folders were looked at"


@pytest.mark.parametrize("broken", [0, 1, 2])
@pytest.mark.parametrize("near", range(6))
def test_files_of_skills_are_counted_over_all_folders_with_those_that_are_broken(
    near: int, broken: int, repository: Path, home: Path, skills: Skills, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 3)
    roots = [repository / ".agents/skills", repository / ".dendro/skills", home / "skills"]
    files = [write(roots[0], f"s{number}") for number in range(near)]
    files += [write(root, f"{root.parent.name}{number}") for root in roots[1:] for number in range(2)]
    for file in files[:broken]:
        file.write_text("no skill")
    listed = skills.listed(str(repository))
    assert [skill.path for skill in listed.skills] == [str(file) for file in files[broken:3]]
    left = [error.path for error in listed.errors if error.message.endswith("3 skills are listed")]
    assert left == [
        str(root) for root, last in zip(roots, (near, near + 2, near + 4), strict=True) if last > 3
    ]
    assert len(listed.errors) == broken + len(left)


def test_folder_of_too_many_entries_takes_no_skill_from_another(
    repository: Path, home: Path, skills: Skills, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_FILES", 3)
    monkeypatch.setattr(module, "MOST_ENTRIES", 6)
    for number in range(7):
        (repository / f".agents/skills/{number}").mkdir(parents=True)
    for name in ("a", "b", "c"):
        write(home / "skills", name)
    listed = skills.listed(str(repository))
    assert [error.path for error in listed.errors] == [str(repository / ".agents/skills")]
    assert [skill.name for skill in listed.skills] == ["a", "b", "c"]


def test_folder_that_is_not_there_is_one_error(tmp_path: Path, skills: Skills) -> None:
    entry = skills.listed(str(tmp_path / "none"))
    assert (entry.skills, [error.message for error in entry.errors]) == ((), ["no folder of this machine"])
    (tmp_path / "none").mkdir()
    assert skills.listed(str(tmp_path / "none")).errors == ()


def test_listing_is_kept_until_a_file_or_a_root_changes(repository: Path, skills: Skills) -> None:
    root = repository / ".agents/skills"
    file = write(root, "x", "one")
    kept = skills.listed(str(repository))
    assert skills.listed(str(repository)) is kept
    file.write_text(file.read_text().replace("one", "two"))
    os.utime(file, ns=(1, 1))
    assert skills.listed(str(repository)).skills[0].description == "two"
    write(root, "y")
    os.utime(root, ns=(2, 2))
    assert names(skills, repository) == ["x", "y"]


def good(name: str) -> str:
    return f"---\nname: {name}\ndescription: Does it.\n---\n"


def unlinked(file: Path) -> None:
    file.rmdir() if file.is_dir() and not file.is_symlink() else file.unlink()


@pytest.mark.parametrize("scope", [SkillScope.REPO, SkillScope.USER, SkillScope.ADMIN])
@pytest.mark.parametrize(
    "fault", ["no front matter", "no name", "not UTF-8", "too long", "pipe", "folder", "link to nothing"]
)
def test_each_skill_that_could_not_be_used_is_listed_once_it_is_mended_and_an_error_when_it_breaks_again(
    fault: str, scope: SkillScope, repository: Path, home: Path, tmp_path: Path, skills: Skills
) -> None:
    roots = {
        SkillScope.REPO: repository / ".agents/skills",
        SkillScope.USER: home / "skills",
        SkillScope.ADMIN: tmp_path / "etc",
    }
    files = {name: write(roots[scope], name) for name in ("a", "b", "c", "d")}
    broken = {"a", "b", "d"}
    changes = iter(range(1, 100))

    def breaks(file: Path) -> None:
        file.unlink()
        match fault:
            case "no front matter":
                file.write_text("Do it.")
            case "no name":
                file.write_text("---\ndescription: x\n---\n")
            case "not UTF-8":
                file.write_bytes(b"---\nname: \xff\ndescription: x\n---\n")
            case "too long":
                file.write_text(good(file.parent.name) + "x" * (64 << 10))
            case "pipe":
                os.mkfifo(file)
            case "folder":
                file.mkdir()
            case _:
                file.symlink_to(file.parent / "written-later")
        if fault != "link to nothing":
            os.utime(file, ns=(0, next(changes)))

    def mends(file: Path) -> None:
        if file.is_symlink():
            file.resolve().write_text(good(file.parent.name))
        elif file.is_file():
            file.write_text(good(file.parent.name))
        else:
            unlinked(file)
            file.write_text(good(file.parent.name))
        os.utime(file, ns=(0, next(changes)))

    def listed() -> tuple[set[str], set[str]]:
        entry = skills.listed(str(repository))
        return {skill.name for skill in entry.skills}, {
            Path(error.path).parent.name for error in entry.errors
        }

    for name in broken:
        breaks(files[name])
    assert listed() == (set(files) - broken, broken)
    for name in ("d", "a", "b"):
        mends(files[name])
        broken.discard(name)
        assert listed() == (set(files) - broken, broken)
        assert listed() == (set(files) - broken, broken)
    for name in ("d", "c"):
        (files[name].parent / "written-later").unlink(missing_ok=True)
        files[name].unlink(missing_ok=True)
        files[name].touch()
        breaks(files[name])
        broken.add(name)
        assert listed() == (set(files) - broken, broken)


def test_model_is_offered_a_skill_that_was_mended_since_the_last_offer(
    repository: Path, skills: Skills
) -> None:
    files = [write(repository / ".agents/skills", name) for name in ("x", "y", "z")]
    for file in files[1:]:
        file.write_text("Do it.")
    assert "- y: " not in (skills.offer(str(repository)) or "")
    for time_ns, file in enumerate(files[1:], 1):
        file.write_text(good(file.parent.name))
        os.utime(file, ns=(0, time_ns))
        assert f"- {file.parent.name}: " in (skills.offer(str(repository)) or "")
        assert skills.content(str(repository), str(file))[0].name == file.parent.name


def test_new_folder_two_levels_down_is_found_by_force(repository: Path, skills: Skills) -> None:
    write(repository / ".agents/skills/group", "x")
    assert names(skills, repository) == ["x"]
    write(repository / ".agents/skills/group", "y")
    assert names(skills, repository) == ["x"]
    assert names(skills, repository, anew=True) == ["x", "y"]


def test_listings_of_many_folders_do_not_add_up(tmp_path: Path, skills: Skills) -> None:
    for number in range(module.MOST_KEPT + 5):
        skills.listed(str(tmp_path / f"{number}"))
    assert len(skills._kept) == module.MOST_KEPT


def test_listing_that_was_made_last_is_kept_longest(tmp_path: Path, skills: Skills) -> None:
    folders = [str(tmp_path / f"{number}") for number in range(module.MOST_KEPT + 1)]
    kept = {folder: skills.listed(folder) for folder in folders[:-1]}
    again = skills.listed(folders[0], anew=True)
    skills.listed(folders[-1])
    assert skills.listed(folders[0]) is again
    assert skills.listed(folders[2]) is kept[folders[2]]
    assert skills.listed(folders[1]) is not kept[folders[1]]


def test_skill_of_a_repository_that_is_known_is_handed_out_where_git_does_not_tell_of_it(
    repository: Path, skills: Skills, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.instructions.project.git", lambda *words: "")
    file = write(repository / ".agents/skills", "x", body="Do this.\n")
    (repository / "sub").mkdir(exist_ok=True)
    folder = str(repository / "sub")
    assert "x" not in names(skills, repository / "sub")
    assert [skill.path for skill in skills.listed(folder, top=str(repository)).skills] == [str(file)]
    skill, text = skills.content(folder, str(file))
    assert (skill.name, text.endswith("Do this.\n")) == ("x", True)


def test_only_a_listed_file_can_be_handed_to_a_model(
    repository: Path, home: Path, tmp_path: Path, skills: Skills
) -> None:
    file = write(repository / ".agents/skills", "x", body="Do this.\n")
    skill, text = skills.content(str(repository), str(file))
    assert (skill.name, text.endswith("Do this.\n")) == ("x", True)
    other = write(tmp_path / "elsewhere", "other")
    for path in (other, home / "SKILL.md", file.parent / "../x/SKILL.md", Path("/etc/passwd")):
        with pytest.raises(ValueError, match="is no skill of"):
            skills.content(str(repository), str(path))


def test_skill_that_came_since_the_last_look_can_be_handed_to_a_model(
    repository: Path, skills: Skills
) -> None:
    write(repository / ".agents/skills/group", "x")
    skills.listed(str(repository))
    file = write(repository / ".agents/skills/group", "y")
    assert skills.content(str(repository), str(file))[0].name == "y"


def test_model_is_offered_what_its_commands_can_read(repository: Path, home: Path, skills: Skills) -> None:
    file = write(repository / ".agents/skills", "x", "For x.")
    write(home / "skills", "hidden")
    offer = skills.offer(str(repository)) or ""
    assert f"- x: For x. (file: {file})\n" in offer
    assert "hidden" not in offer


def test_model_is_offered_the_skills_of_its_portable_folder_before_those_of_the_machine(
    home: Path, tmp_path: Path, skills: Skills
) -> None:
    own = write(tmp_path / "anna/.agents/skills", "own", "For me.")
    near = SkillMetadata(name="near", description="For it.", path="/w/S/SKILL.md", scope=SkillScope.REPO)
    offer = skills.offer("", recorded=(near,)) or ""
    assert offer.endswith(f"- near: For it. (file: /w/S/SKILL.md)\n- own: For me. (file: {own})\n")


def test_folder_without_skills_offers_nothing(repository: Path, skills: Skills) -> None:
    assert skills.offer(str(repository)) is None


def test_offer_of_many_skills_is_cut_at_a_line(repository: Path, skills: Skills) -> None:
    for number in range(40):
        write(repository / ".agents/skills", f"s{number:02}", "ä" * 200)
    offer = skills.offer(str(repository)) or ""
    assert OFFER_BYTES - 1000 < len(offer.encode()) <= OFFER_BYTES
    assert offer.endswith("more, which are not shown\n")


def test_two_hundred_skills_that_are_known_cost_a_millisecond(repository: Path, skills: Skills) -> None:
    for number in range(200):
        write(repository / ".agents/skills", f"s{number}")
    skills.listed(str(repository))
    spent = []
    for _ in range(5):
        began = time.process_time()
        skills.listed(str(repository))
        spent.append(time.process_time() - began)
    # A millisecond as it is measured alone; a busy machine counts some of its own into it.
    assert min(spent) < 0.003
