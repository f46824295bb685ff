"""Defects of meaning: one place breaks a rule of the documentation, planted by a hand that read the product.

Each is a patch of one file in `sim/mutation/meaning/`, in a folder named after the hand that planted it. Its
head says which kind it is, what is wrong, and the sentence of a page that it breaks:

    kind: forgotten branch
    wrong: a question of an agent is not put to a client that resumes the root
    breaks: docs/doors/app-server.md: whoever resumes a root is asked what its agents ask

    --- a/orchestrator/…

`docs/defects-of-meaning.md` has the protocol of planting, and what found each.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from sim.foreign.trial import Unfit, commit, promised
from sim.mutation.change import ROOT, Change
from sim.mutation.python_operators import statements
from sim.mutation.table import finder
from sim.mutation.verdicts import Verdict

FOLDER = Path(__file__).with_name("meaning")
KINDS = (
    "forgotten branch",
    "wrong owner",
    "stale read",
    "lost in a batch",
    "only for the first",
    "only for one client",
    "off by one commit",
    "wrong order of two effects",
    "told but not done",
    "done but not told",
)
PAGE = ROOT / "docs" / "defects-of-meaning.md"
BEGIN, END = "<!-- defects of meaning: begin -->", "<!-- defects of meaning: end -->"
_HEAD = {"kind", "wrong", "breaks"}


@dataclass(frozen=True, slots=True)
class Meaning:
    """A defect of meaning, as its patch has it, and the change of the file that it makes."""

    hand: str
    name: str
    kind: str
    wrong: str
    page: str
    sentence: str
    change: Change

    @property
    def package(self) -> str:
        """The part of the product: the folder below `orchestrator`."""
        return self.change.path.split("/")[1].removesuffix(".py")


def planted(hands: Sequence[str] = ()) -> list[Meaning]:
    """Defects of these hands, or all, in the order of their names; raises `Unfit` for a misfit."""
    files = sorted(FOLDER.glob("*/*.patch"))
    if unknown := set(hands) - {file.parent.name for file in files}:
        raise Unfit(f"no defects were planted by {', '.join(sorted(unknown))}")
    return _read([file for file in files if not hands or file.parent.name in hands])


def read(file: Path) -> Meaning:
    """Raises `Unfit` if the head lacks a line, the page the sentence, or the patch does not apply."""
    return _read([file])[0]


def _read(files: Sequence[Path]) -> list[Meaning]:
    patches = [_patch(file) for file in files]
    return [
        Meaning(
            it.file.parent.name, it.file.stem, it.kind, it.wrong, it.page, it.sentence, _change(it, after)
        )
        for it, after in zip(patches, _applied(patches), strict=True)
    ]


@dataclass(frozen=True, slots=True)
class _Patch:
    """A file of `meaning/` as it is read, of one file of the product that has this text."""

    file: Path
    kind: str
    wrong: str
    page: str
    sentence: str
    diff: str
    path: str
    before: str

    @property
    def told(self) -> str:
        return f"{self.file.parent.name}/{self.file.stem}"


def _patch(file: Path) -> _Patch:
    head, begin, diff = file.read_text(encoding="utf-8").partition("\n--- a/")
    known = dict(line.partition(": ")[::2] for line in head.splitlines() if line)
    page, _, sentence = known.get("breaks", "").partition(": ")
    if known.keys() != _HEAD or not (begin and known["wrong"] and sentence) or known["kind"] not in KINDS:
        raise Unfit(
            f"{file.name}: its head is `kind: …` (one of: {'; '.join(KINDS)}), `wrong: …`, "
            "`breaks: docs/PAGE: SENTENCE`"
        )
    promised(file.stem, page, sentence)
    diff = f"{begin.lstrip()}{diff}"
    path = _changed(file, diff)
    before = (ROOT / path).read_text(encoding="utf-8")
    return _Patch(file, known["kind"], known["wrong"], page, sentence, diff, path, before)


def _changed(file: Path, diff: str) -> str:
    paths = {line[6:] for line in diff.splitlines() if line.startswith("--- a/")}
    if len(paths) != 1:
        raise Unfit(f"{file.name} changes {len(paths)} files: a defect of meaning is in one")
    (path,) = paths
    if not path.startswith("orchestrator/") or not path.endswith((".py", ".lua")):
        raise Unfit(f"{file.name} changes {path}, which is no code of the product")
    return path


def _change(patch: _Patch, after: str) -> Change:
    """A change from the first changed line to the last: seeds and tests are looked up there."""
    before = patch.before
    same = min(len(before), len(after))
    start = next((at for at in range(same) if before[at] != after[at]), same)
    # Whole lines: what was cut away has the place where it stood.
    start = before.rfind("\n", 0, start) + 1
    most = same - start
    tail = next((at for at in range(most) if before[-1 - at] != after[-1 - at]), most)
    end = len(before) - tail
    old, new = before[start:end], after[start : len(after) - tail]
    line = before.count("\n", 0, start) + 1
    function = _function(patch.path, before, line)
    names = (patch.told, patch.told, patch.told)
    return Change(patch.path, function, patch.kind, line, start, end, old, new, *names)


def _applied(patches: Sequence[_Patch]) -> list[str]:
    """The text that each makes of its file; git applies all at once, each in a folder of its own."""
    with TemporaryDirectory(prefix="meaning-") as made:
        files = [Path(made) / one.told / one.path for one in patches]
        for file, one in zip(files, patches, strict=True):
            file.parent.mkdir(parents=True)
            file.write_text(one.before, encoding="utf-8")
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"],
            cwd=made,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(Path(made).parent)},
            input="".join(_in_its_folder(one) for one in patches),
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return [file.read_text(encoding="utf-8") for file in files]
    if len(patches) == 1:
        name = patches[0].file.name
        raise Unfit(f"{name} does not apply any more, plant it anew: {done.stderr.strip()}")
    # Of several git applies none: each by itself tells which one it is.
    return [text for one in patches for text in _applied([one])]


def _in_its_folder(patch: _Patch) -> str:
    old, new, rest = patch.diff.split("\n", 2)
    return "\n".join((f"{old[:6]}{patch.told}/{old[6:]}", f"{new[:6]}{patch.told}/{new[6:]}", rest))


def _function(path: str, text: str, line: int) -> str:
    """The innermost function around a line; '' for a script or a module's own level."""
    if path.endswith(".lua"):
        return ""
    around = [found for found in _functions(text) if found[0] <= line <= found[1]]
    return max(around)[2] if around else ""


@cache
def _functions(text: str) -> list[tuple[int, int, str]]:
    """First and last line of each function, and its name."""
    return [
        (one.lineno, one.end_lineno or 0, one.name)
        for one in statements(ast.parse(text))
        if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


# ── told ──────────────────────────────────────────────────────────────────────────────────────


def figures(chosen: Iterable[Meaning], verdicts: Mapping[str, Verdict]) -> str:
    """By hand: how many were found by what, each by the first that is asked; rules, stories, tests.

    Then the share of rules, and that of stories alone, of those that seeds and stories come to.
    """
    heads = (
        *("hand", "defects", "seeds come to", "rules", "stories", "tests", "survive", "found"),
        *("rules, of those", "stories come to", "stories alone", "stories, of those"),
    )
    rows = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    some = list(chosen)
    hands = sorted({one.hand for one in some})
    for hand in (*hands, *(["all"] if len(hands) > 1 else [])):
        theirs = [verdicts[one.change.id] for one in some if hand in (one.hand, "all")]
        run = [one for one in theirs if one.reached]
        by = {kind: sum(one.by == kind for one in theirs) for kind in ("simulator", "stories", "tests", "")}
        storied, alone_told = (
            [one for one in theirs if one.storied],
            sum(bool(one.story) for one in theirs),
        )
        found, alone = 1 - by[""] / len(theirs), by["simulator"] / max(len(run), 1)
        cells = [
            hand,
            len(theirs),
            len(run),
            *by.values(),
            f"{found:.0%}",
            f"{alone:.0%}",
            len(storied),
            alone_told,
            f"{alone_told / max(len(storied), 1):.0%}",
        ]
        rows.append(f"| {' | '.join(str(cell) for cell in cells)} |")
    return "\n".join(rows)


def table(chosen: Iterable[Meaning], verdicts: Mapping[str, Verdict]) -> str:
    rows = ["| hand | kind | place | what is wrong | breaks | found by |", "|---|---|---|---|---|---|"]
    for one in chosen:
        link = one.page.removeprefix("docs/") if one.page.startswith("docs/") else f"../{one.page}"
        sentence = one.sentence.replace("|", "\\|")
        broken = f"[{link.removesuffix('.md').removeprefix('../')}]({link}): “{sentence}”"
        patch = f"../sim/mutation/meaning/{one.hand}/{one.name}.patch"
        place = f"[{one.change.path.removeprefix('orchestrator/')}:{one.change.line}]({patch})"
        found = finder(verdicts[one.change.id])
        rows.append(
            f"| {one.hand} | {one.kind} | {place} | {one.wrong} | {broken} | {found} |".replace("\n", " ")
        )
    return "\n".join(rows)


def write_page(chosen: Sequence[Meaning], verdicts: Mapping[str, Verdict]) -> None:
    """Writes figures and table between the page's marks, with the commit that they were found at."""
    before, begun, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not (begun and ended):
        raise ValueError(f"{PAGE} has no marks {BEGIN} and {END}")
    body = f"Made at commit `{commit()}`.\n\n{figures(chosen, verdicts)}\n\n{table(chosen, verdicts)}"
    PAGE.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}", encoding="utf-8")
