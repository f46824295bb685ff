"""Fixtures of the patch tests: a file system in memory, a work tree on disk, a way to write patches."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.tools.patch.grammar import parse_patch
from orchestrator.tools.patch.plan import DiskFiles, FileImage, PatchPlan, plan_patch

RECORDED = Path(__file__).parent / "recorded"


class MemoryFiles:
    """Files without links, by absolute path; a path that others lie under is a folder."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self.images = {Path(path): FileImage(content, 0o100644) for path, content in contents.items()}

    def resolve(self, path: Path) -> Path:
        return path

    def read(self, path: Path) -> FileImage | None:
        if any(path in other.parents for other in self.images):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        return self.images.get(path)

    def put(self, plan: PatchPlan) -> None:
        for file in plan.files:
            if file.after is None:
                del self.images[file.target]
            else:
                self.images[file.target] = FileImage(file.after, 0o100000 | (file.mode or 0o644))

    def texts(self) -> dict[str, str]:
        return {str(path): image.content.decode() for path, image in sorted(self.images.items())}


@pytest.fixture
def memory() -> Callable[..., MemoryFiles]:
    def make(**contents: str) -> MemoryFiles:
        return MemoryFiles({f"/w/{name.replace('_', '.')}": text.encode() for name, text in contents.items()})

    return make


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A work tree like that of the recordings, with a git folder, beside a folder of others."""
    root = tmp_path / "w"
    (root / ".git").mkdir(parents=True)
    (root / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (root / ".git" / "config").write_text("[core]\n")
    (root / "README.md").write_text("hello\n")
    (root / "a.txt").write_text("one\ntwo\nthree\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "secret.txt").write_text("secret\n")
    return root


@pytest.fixture
def plan_on_disk(tree: Path) -> Callable[[str], PatchPlan]:
    def plan(*lines: str) -> PatchPlan:
        return plan_patch(parse_patch(patch_text(*lines)), tree, DiskFiles())

    return plan


def patch_text(*lines: str) -> str:
    return "\n".join(("*** Begin Patch", *lines, "*** End Patch", ""))


@pytest.fixture
def patch() -> Callable[..., str]:
    return patch_text


@pytest.fixture
def everything_below() -> Callable[[Path], dict[str, bytes | str]]:
    """All files, links and folders below a path, to be compared before and after."""

    def below(root: Path) -> dict[str, bytes | str]:
        found: dict[str, bytes | str] = {}
        for path in sorted(root.rglob("*")):
            name = str(path.relative_to(root))
            if path.is_symlink():
                found[name] = f"-> {path.readlink()}"
            else:
                found[name] = path.read_bytes() if path.is_file() else "folder"
        return found

    return below


@pytest.fixture
def recorded() -> Callable[[str], tuple[list[dict[str, object]], list[str]]]:
    """A recorded conversation: its events' messages, and the patches that its model sent."""

    def load(name: str) -> tuple[list[dict[str, object]], list[str]]:
        folder = RECORDED / name
        lines = [json.loads(line) for line in (folder / "sq_eq.ndjson").read_text().splitlines()]
        answers = json.loads((folder / "model.json").read_text())
        commands = [
            item["args"]["command"] for answer in answers for item in answer["items"] if "call" in item
        ]
        return [line["eq"]["msg"] for line in lines if "eq" in line], [command[1] for command in commands]

    return load
