"""The demo's claims at its end, and the check of each claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from orchestrator.core.counts import counted
from orchestrator.core.frozen import record
from orchestrator.core.ids import TreeId
from orchestrator.core.registry import Agent, fold_tree, projected
from orchestrator.demo.play import Role, Story
from orchestrator.rollouts.replay import fold_session
from orchestrator.rollouts.tree_log import differs, tree_log
from orchestrator.wiring.open_deployment import Opened

REPORT = "REPORT.md"
FEWEST = 6


@record
class Statement:
    """Something that was shown, or was not; `detail` says what is wrong."""

    text: str
    true: bool
    detail: str = ""


@record
class Shown:
    """A command that the demo runs as a person would, and what it said."""

    words: str
    text: str
    failed: bool


async def claims(found: Opened, story: Story, workspace: Path, shown: Sequence[Shown]) -> list[Statement]:
    """The demo's claims, checked against Redis, the clone, and the commands that were run behind the play."""
    tree = TreeId(story.root)
    registry = projected(await found.broker.trees.agents(tree))
    wrong = differs(fold_tree(await tree_log(found.broker, tree)), registry)
    return [
        Statement("the root finished", story.finished),
        _crowd(story, folders=_has_folders(workspace)),
        _ends(story, registry.agents),
        Statement("an agent asked for permission, and was answered at the root", bool(story.allowed)),
        Statement("an agent asked a question, and got its answer", bool(story.answered)),
        Statement("an agent had its plan approved before it began", bool(story.planned)),
        Statement(
            "a worker was killed, and another one went on with all that it held",
            bool(story.lost) and story.lost.keys() <= story.resumed.keys(),
        ),
        _report(story, workspace / REPORT),
        *([_merged(story, workspace, shown)] if shown else []),
        await _replays(found, story),
        Statement("the tree's log, folded, gives the registry", not wrong, wrong),
    ]


def _has_folders(workspace: Path) -> bool:
    return any(path for path in workspace.glob("[!.]*/*") if path.is_file())


def _crowd(story: Story, *, folders: bool) -> Statement:
    agents = [role for role in story.roles.values() if role.number]
    deep = max((role.generation for role in agents), default=0)
    forks = sum(role.origin == "fork" for role in agents)
    text = f"{counted(len(agents), 'agent')} worked, {counted(deep, 'generation')} of them, {forks} by a fork"
    enough = not folders or (len(agents) >= FEWEST and deep >= 2)
    return Statement(text, bool(agents and forks and enough))


def _ends(story: Story, agents: Mapping[int, Agent]) -> Statement:
    """Checks the ends: one agent fails, one is redirected, all the others end well."""
    wrong = [role.who for number, role in story.roles.items() if number and not _ended_well(role, agents)]
    text = "every agent came to its end: one failed, one was redirected, the others are done"
    return Statement(text, not wrong, ", ".join(wrong))


def _ended_well(role: Role, agents: Mapping[int, Agent]) -> bool:
    agent = agents.get(role.number)
    if agent is None:
        return False
    expected = ("failed",) if role.label == "failing" else ("idle", "ready")
    return agent.status in expected and role.redirected == (role.label == "waiter")


def _report(story: Story, report: Path) -> Statement:
    """The report has a chapter for each agent of the root."""
    text = report.read_text() if report.is_file() else ""
    own = [role for role in story.roles.values() if role.generation == 1]
    missing = [role.who for role in own if f"(agent {role.number})" not in text]
    return Statement(
        f"{REPORT} was written, with all that they reported", bool(text) and not missing, ", ".join(missing)
    )


def _merged(story: Story, workspace: Path, shown: Sequence[Shown]) -> Statement:
    """The notes that agents wrote in folders of their own are in the clone, and every pack is whole."""
    wrote = story.surveyors
    missing = [role.who for role in wrote if not (workspace / f"survey/{role.label}.md").is_file()]
    failed = [each.words for each in shown if each.failed]
    count = counted(len(wrote), "agent")
    text = f"what {count} wrote in folders of their own was merged, applied to the clone, and verified"
    return Statement(text, not missing and not failed, ", ".join([*missing, *failed]))


async def _replays(found: Opened, story: Story) -> Statement:
    """Replays every session of the tree, as `dendro replay` does."""
    different = []
    for role in story.roles.values():
        head = await found.broker.logs.head(role.session)
        if head is None or not (await fold_session(found, head, None)).matches:
            different.append(role.who)
    text = f"a replay of each of the {len(story.roles)} logs gives the live state"
    return Statement(text, not different, ", ".join(different))
