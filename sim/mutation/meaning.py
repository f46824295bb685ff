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
from pathlib import Path
from tempfile import TemporaryDirectory

from sim.foreign.trial import Unfit, commit, promised
from sim.mutation.change import ROOT, Change
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
    return [read(file) for file in files if not hands or file.parent.name in hands]


def read(file: Path) -> Meaning:
    """Raises `Unfit` if the head lacks a line, the page the sentence, or the patch does not apply."""
    head, begin, diff = file.read_text(encoding="utf-8").partition("\n--- a/")
    known = dict(line.partition(": ")[::2] for line in head.splitlines() if line)
    page, _, sentence = known.get("breaks", "").partition(": ")
    if known.keys() != _HEAD or not (begin and known["wrong"] and sentence) or known["kind"] not in KINDS:
        raise Unfit(
            f"{file.name}: its head is `kind: …` (one of: {'; '.join(KINDS)}), `wrong: …`, "
            "`breaks: docs/PAGE: SENTENCE`"
        )
    promised(file.stem, page, sentence)
    change = _change(file, known["kind"], f"{begin.lstrip()}{diff}")
    return Meaning(file.parent.name, file.stem, known["kind"], known["wrong"], page, sentence, change)


def _change(file: Path, kind: str, patch: str) -> Change:
    """A change from the first changed line to the last: seeds and tests are looked up there."""
    paths = {line[6:] for line in patch.splitlines() if line.startswith("--- a/")}
    if len(paths) != 1:
        raise Unfit(f"{file.name} changes {len(paths)} files: a defect of meaning is in one")
    (path,) = paths
    if not path.startswith("orchestrator/") or not path.endswith((".py", ".lua")):
        raise Unfit(f"{file.name} changes {path}, which is no code of the product")
    before = (ROOT / path).read_text(encoding="utf-8")
    after = _applied(file, path, before, patch)
    same = min(len(before), len(after))
    start = next((at for at in range(same) if before[at] != after[at]), same)
    # Whole lines: what was cut away has the place where it stood.
    start = before.rfind("\n", 0, start) + 1
    most = same - start
    tail = next((at for at in range(most) if before[-1 - at] != after[-1 - at]), most)
    end = len(before) - tail
    old, new = before[start:end], after[start : len(after) - tail]
    line = before.count("\n", 0, start) + 1
    told = f"{file.parent.name}/{file.stem}"
    return Change(path, _function(path, before, line), kind, line, start, end, old, new, told, told, told)


def _applied(file: Path, path: str, text: str, patch: str) -> str:
    with TemporaryDirectory(prefix="meaning-") as made:
        (Path(made) / path).parent.mkdir(parents=True)
        (Path(made) / path).write_text(text, encoding="utf-8")
        done = subprocess.run(
            ["git", "apply", "--whitespace=nowarn", "-"],
            cwd=made,
            env={"PATH": "/usr/local/bin:/usr/bin:/bin", "GIT_CEILING_DIRECTORIES": str(Path(made).parent)},
            input=patch,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise Unfit(f"{file.name} does not apply any more, plant it anew: {done.stderr.strip()}")
        return (Path(made) / path).read_text(encoding="utf-8")


def _function(path: str, text: str, line: int) -> str:
    """The innermost function around a line; '' for a script or a module's own level."""
    if path.endswith(".lua"):
        return ""
    around = [
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.lineno <= line <= (node.end_lineno or 0)
    ]
    return max(around, key=lambda node: node.lineno).name if around else ""


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
