"""Arrivals of a claimed session: the entries of its SQ, and the results of its effects.

All of them wait in one inbox, in the order of arrival, with what a decision needs to know of other agents
already looked up. This module does not know what an arrival means, nor whether the step that decides it is
committed; only how far the SQ was read and decided.
"""

from __future__ import annotations

import asyncio
import posixpath
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from orchestrator.broker.errors import BrokerError, Corrupt
from orchestrator.broker.records import START, Refused, SqEntry
from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core.commit_parts import REAP_BELOW_TIMER, REAP_TIMER, watchdog_timer
from orchestrator.core.decide.call import reply_of
from orchestrator.core.decide.draft import Note
from orchestrator.core.decide.task import located
from orchestrator.core.frozen import replace
from orchestrator.core.history import MAX_IMAGE_BYTES, Item, check_image_url
from orchestrator.core.ids import SessionId
from orchestrator.core.settings import NO_HISTORY
from orchestrator.core.state import State
from orchestrator.core.tree import ROOT
from orchestrator.instructions.skills import RecordedSkills, no_skill
from orchestrator.protocol import ops
from orchestrator.protocol.inputs import (
    ImageInput,
    InputItem,
    LocalImageInput,
    MentionInput,
    SkillInput,
    TextInput,
)
from orchestrator.protocol.ops import (
    CancelAgent,
    ConfigureSession,
    GetPath,
    MessageAgent,
    OverrideTurnContext,
    Shutdown,
    UpdateQueued,
    UserTurn,
)
from orchestrator.protocol.wire import written
from orchestrator.runtime import log
from orchestrator.runtime.committing import Delta
from orchestrator.runtime.lookups import NOISE_BYTES, TreeLookups
from orchestrator.runtime.machine_files import PATIENCE_S, sent_image
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.runner_context import RunnerContext
from orchestrator.runtime.sq_entries import Unreadable, with_signature, with_texts
from orchestrator.runtime.unserved_cancels import taken_at_once

SQ_PAGE = 100


class Arrivals:
    """The arrivals of one session that are not decided yet, and the signal that there are more."""

    def __init__(self, context: RunnerContext) -> None:
        claimed = context.claimed
        self.inbox: deque[Arrival] = deque()
        self.unread = claimed.sq_tip != claimed.cursor
        """Whether the SQ may hold entries that were not read."""
        self.cursor = claimed.cursor
        """The place of the SQ entry decided last; the log has consumed it once that step is committed."""
        self.resting = False
        """Whether the runner waits for news, so that no step is under way."""
        self._context = context
        self._read_to = claimed.cursor
        self._wake = asyncio.Event()

    def __bool__(self) -> bool:
        """Whether anything is left to read or to decide."""
        return bool(self.inbox) or self.unread

    # ── what is told ──────────────────────────────────────────────────────────────────────────

    def notify(self, tip: str | None) -> None:
        """Notes that the SQ may hold news; `tip`, if known, is its last entry."""
        if tip is None or self._is_news(tip):
            self.unread = True
            self.wake()

    def tip_is(self, tip: str) -> None:
        """Notes the SQ's tip that a commit saw; the runner, in a step, looks again without being woken."""
        self.unread = self.unread or self._is_news(tip)

    def push(self, command: c.Command) -> None:
        """Adds the result of an effect."""
        self.add((command, None))

    def add(self, arrival: Arrival) -> None:
        self.inbox.append(arrival)
        self.wake()

    def wake(self) -> None:
        self._wake.set()

    async def news(self) -> None:
        """Returns when an arrival, or a sign of one, has come since the last time."""
        self.resting = True
        await self._wake.wait()
        self._wake.clear()
        self.resting = False

    # ── the SQ ────────────────────────────────────────────────────────────────────────────────

    async def accept_first(self) -> None:
        """Takes the entries that came with the claim."""
        first = self._context.claimed.first
        await self._accept(first)
        if not self._is_news(self._context.claimed.sq_tip):
            self.unread = False

    async def read(self) -> None:
        """Reads the SQ to its end, or until a step has enough to decide."""
        session = self._context.claim.session
        while self.unread and len(self.inbox) < SQ_PAGE:
            self.unread = False
            page = await self._context.writing.insist(
                lambda: self._context.ports.broker.logs.read_sq(session, self._read_to, SQ_PAGE)
            )
            if page is None:
                return
            # A notice during the read may be about an entry that came after it.
            self.unread = self.unread or len(page) == SQ_PAGE
            await self._accept(page)

    async def _accept(self, entries: tuple[SqEntry, ...]) -> None:
        for entry in entries:
            self.inbox.append((await self._command(entry), entry.place))
            self._read_to = entry.id

    async def _command(self, entry: SqEntry) -> c.Command | Note | Unreadable:
        try:
            command = with_signature(self._context, await with_texts(self._context, entry))
            command = await self._with_lookups(command, entry)
            if not isinstance(command, c.Submitted):
                return command
            return await with_files(self._context.ports, self._context.journal.state, command, self._folder)
        except BrokerError as error:
            if not isinstance(error, Corrupt):
                raise
            # What is damaged beside the session's own log is no reason to do nothing of the session any more.
            return Unreadable(entry.submission, error)
        except Exception as error:
            # It is told of in its turn, behind what came before it.
            return Unreadable(entry.submission, error)

    def pass_over_first(self, instead: Callable[[str], Note]) -> None:
        """Replaces the oldest entry that came with the claim by the note `instead` of its id."""
        first = self._context.claimed.first[:1]
        for entry in first:
            place = next(at for at, (_, sq_place) in enumerate(self.inbox) if sq_place == entry.place)
            self.inbox[place] = (instead(entry.submission), entry.place)

    async def _with_lookups(self, command: c.Command | Note, entry: SqEntry) -> c.Command | Note:
        """Looks up the agents and requests below that a timer or a person's op may be meant for."""
        if isinstance(command, c.TimerFired):
            return await self._with_agents(command)
        state, writing = self._context.journal.state, self._context.writing
        if isinstance(command, c.Submitted) and isinstance(command.op, ConfigureSession):
            return await self._with_history(command)
        if not isinstance(command, c.Submitted) or not state.facts.is_root:
            return command
        lookups = TreeLookups.of(self._context.ports, state.facts)
        match command.op:
            case op if isinstance(op, c.AnswerOp) and state.tree.children:
                return await self._with_requests(command, op, lookups, entry.at_ms)
            case MessageAgent(agent_id=agent_id) | CancelAgent(agent_id=agent_id):
                spoken_to = self._spoken_to()
                agents = await writing.insist(lambda: lookups.target_and_below(agent_id, spoken_to))
                return replace(command, agents=agents or ())
            case _:
                return command

    def _spoken_to(self) -> frozenset[int]:
        """The agents that earlier entries have messages for, which no registry knows of yet."""
        earlier = (each.op for each, _ in self.inbox if isinstance(each, c.Submitted))
        return frozenset(op.agent_id for op in earlier if isinstance(op, MessageAgent))

    async def _with_agents(self, command: c.TimerFired) -> c.TimerFired:
        """Looks up what the log does not tell of the agents that a timer is about."""
        if command.id in (REAP_TIMER, REAP_BELOW_TIMER):
            return replace(command, left=await self._reap())
        context, state = self._context, self._context.journal.state
        stays = {ROOT, state.facts.agent_id}
        watched = [id for id in state.tree.watchdogs if id not in stays and watchdog_timer(id) == command.id]
        if not watched:
            return command
        lookups = TreeLookups.of(context.ports, state.facts)
        view = await context.writing.insist(lookups.registry)
        if view is None:
            return command
        agent = view.agents.get(watched[0])
        if agent is None or view.is_marked(agent):
            return replace(command, over=True)
        return replace(command, parent=agent.record["parent_session_id"])

    async def _with_history(self, command: c.Submitted) -> c.Submitted:
        """Looks up the sender's history of prompts, for the answer that tells of it."""
        ports = self._context.ports
        if not ports.library.keeps_history:
            return command
        noise = ports.random_bytes(NOISE_BYTES)
        head = await self._context.writing.insist(
            lambda: ports.broker.requests.history_head(command.who, noise)
        )
        return replace(command, history=head or NO_HISTORY)

    def _folder(self, op: ops.Op) -> str:
        """The folder that an input will find: the one that was named last before it, or by itself."""
        state = self._context.journal.state
        before: list[tuple[str, ops.Op]] = [(each.id, each.turn.op) for each in state.queue]
        before += [(each.id, each.op) for each, _ in self.inbox if isinstance(each, c.Submitted)]
        if isinstance(op, UpdateQueued):
            # Words in the place of others find what those would have found.
            place = next((at for at, (id, _) in enumerate(before) if id == op.submission_id), len(before))
            before = before[: place + 1]
        folder = state.settings.cwd
        for named in (*(each for _, each in before), op):
            folder = located(_cwd_named(named) or folder, folder)
        return folder

    async def _with_requests(
        self, command: c.Submitted, op: c.AnswerOp, lookups: TreeLookups, at_ms: int
    ) -> c.Submitted:
        """Looks up what an answer can mean in the tree: pending requests, or else those settled before."""
        writing = self._context.writing
        below = await writing.insist(lambda: lookups.pending_below(at_ms)) or ()
        task = self._context.journal.state.task
        own: set[str] = {call.call_id for call in task.requests} if task is not None else set()
        own |= {asked.id for asked in task.open_elicitations} if task is not None else set()
        reply = reply_of(op)
        # What a turn asks for by now does not keep an answer from being late for what it asked before; nor
        # does what other agents ask for, where it names its agent.
        open_now = (reply.agent_id in (None, ROOT) and reply.id in own) or any(
            reply.id == asked.call_id or (reply.id == asked.turn and reply.fits(asked.kind))
            for asked in below
            if reply.agent_id in (None, asked.agent_id)
        )
        if open_now:
            return replace(command, below=below)
        # An answer for the root itself is told apart from those that the root has sent on.
        agent = op.agent_id or None
        decided = await writing.insist(lambda: lookups.decided_below(reply.id, agent))
        return replace(command, below=below, decided=decided or ())

    async def _reap(self) -> bool:
        """Takes cancelled agents from workers that do nothing with them; whether any agent has yet to end.

        This worker ends the agents that no worker held, which needs no folder and no model of theirs.
        """
        context, state = self._context, self._context.journal.state
        ending = [SessionId(child.session) for child in state.tree.children.values() if child.ending]
        found = await context.writing.insist(
            lambda: taken_at_once(context.ports.broker, context.claim.tree, state.facts.agent_id, ending)
        )
        if found is None:
            return False
        context.config.adopt(found.lying)
        return found.left

    def _is_news(self, tip: str) -> bool:
        return _number(tip) > _number(self._read_to)

    # ── the cursor ────────────────────────────────────────────────────────────────────────────

    @property
    def moved(self) -> bool:
        """Whether entries were decided that the log has not consumed."""
        return self.cursor != self._consumed

    def rewind(self) -> None:
        """Goes back to the log's cursor: the step that decided the last entries was not committed."""
        self.cursor = self._consumed

    @property
    def _consumed(self) -> str:
        return self._context.writing.cursor(self._context.claimed.cursor)


def _cwd_named(op: ops.Op) -> str | None:
    if isinstance(op, ops.UserInput):
        return op.overrides.cwd if op.overrides is not None else None
    return op.cwd if isinstance(op, OverrideTurnContext | ConfigureSession | UserTurn) else None


def _number(place: str) -> int:
    return int((place or START).partition("-")[0])


# ── bisect ────────────────────────────────────────────────────────────────────────────────────────
# Bisection of a refused step: when the tree refuses it, its parts are decided again, one by one.
#
# A step holds several decisions, and its commit is taken or refused as a whole. Refused, it is thrown
# away: what arrived goes back to the front, in order, and is decided one command a step, until the one
# that the tree does not take is alone. That one becomes `CommitRefused`.


Arrived = c.Command | Note | Delta | Unreadable
Arrival = tuple[Arrived, str | None]
"""Something to decide (or decided already, or only to be shown), and the place of its entry in the SQ."""


class RefusedTwice(RuntimeError):
    """The decision in the place of a refused command was refused as well: a rule is wrong."""


@dataclass(slots=True)
class Bisect:
    """The commands of the step at hand, in the order in which they were decided."""

    arrived: list[Arrival] = field(default_factory=list)
    made: list[c.Command] = field(default_factory=list)
    """Commands that the runner made itself; it would make them again."""
    singly: int = 0
    """How many more commands are decided one a step."""

    def begin(self) -> None:
        self.arrived, self.made = [], []

    @property
    def full(self) -> bool:
        """Whether the step may take no more commands."""
        return bool(self.singly) and bool(self.arrived or self.made)

    def asks_for_file(self, before: State) -> str:
        """The first submission because of which the rollout's file is to be brought up to date."""
        ops = (command for command, _ in self.arrived if isinstance(command, c.Submitted))
        asked = (command.id for command in ops if isinstance(command.op, GetPath | Shutdown))
        return next(asked, before.closing or "")

    def committed(self) -> None:
        self.singly = max(0, self.singly - 1)

    def refused(self, answer: Refused, inbox: deque[Arrival]) -> None:
        """Puts back what arrived, or what it became."""
        decided = [*self.arrived, *((command, None) for command in self.made)]
        commands = [arrival for arrival in decided if not isinstance(arrival[0], (Delta, Note, Unreadable))]
        if len(commands) != 1:
            inbox.extendleft(reversed(self.arrived))
            self.singly = len(decided)
            return
        (command, sq_place) = commands[0]
        assert not isinstance(command, (Delta, Note, Unreadable))
        if isinstance(command, c.CommitRefused) and answer.reason == "budget_free":
            # Room was made between the two commits: it is tried once more.
            instead: c.Command = command.command
        elif isinstance(command, c.CommitRefused):
            raise RefusedTwice(f"{command.reason}, then {answer.reason} {answer.detail}")
        else:
            instead = c.CommitRefused(command, answer.reason, answer.detail, _budget(answer))
        # Beside it stand words that no rule decides on, also where the runner made the command itself.
        kept = [(instead, sq_place) if arrival is commands[0] else arrival for arrival in decided]
        inbox.extendleft(reversed(kept))


def _budget(answer: Refused) -> dict[str, Any]:
    """The account that refused, as events tell of it."""
    found = next((account for account in answer.budget if account.kind == answer.detail), None)
    return {} if found is None else {"kind": found.kind, "limit": found.limit, "used": found.spent}


# ── input files ───────────────────────────────────────────────────────────────────────────────────
# Files that input items name, read where the session works; an op with one that cannot be read is an
# error.
#
# What was read goes into the log with the op, so nobody reads a file twice, and every worker goes on with
# the same content.


APP = "app://"
MOST_TOOLS = 64
MOST_SKILLS = 16
MOST_IMAGE_BYTES = 64 << 20
"""Bytes of the data URLs that one op makes of files."""


async def with_files(
    ports: Ports, state: State, command: c.Submitted, cwd: Callable[[ops.Op], str]
) -> c.Submitted | Note:
    """The op with its files read, as seen from the session's folder; or the `error` that answers it."""
    op = command.op
    if not isinstance(op, ops.UserInput | ops.UserTurn | ops.UpdateQueued):
        return command
    if all(isinstance(item, TextInput) for item in op.items):
        return command
    folder = cwd(op)
    reader = _Reader(ports, state, folder, op.items)
    read: list[Item] = []
    for place, item in enumerate(op.items):
        try:
            read.append(await reader.read(item))
        except TimeoutError:
            why = f"it did not answer within {PATIENCE_S:g} s; check the mount"
        except (OSError, ValueError) as error:
            why = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        if len(read) == place:
            text = f"items[{place}]: {_named(item, folder)} cannot be used: {why}; nothing was started"
            return Note((e.error(command.id, text),))
    return replace(command, items=tuple(read))


class _Reader:
    """The reader of one op's items, which counts what it has read."""

    def __init__(self, ports: Ports, state: State, folder: str, items: Sequence[InputItem]) -> None:
        self._ports = ports
        self._library = ports.library
        self._state = state
        self._folder = folder
        self._images = [item.path for item in items if isinstance(item, LocalImageInput)]
        self._contents: Mapping[str, bytes | str] | None = None
        """Images in a portable folder, once they were read: all of them at once."""
        self._recorded_skills: RecordedSkills | None = None
        self._skills = 0
        self._bytes = 0

    async def read(self, item: InputItem) -> Item:
        match item:
            case TextInput():
                return written(item)
            case ImageInput(image_url=url):
                check_image_url(url)
                return written(ImageInput(image_url=url))
            case LocalImageInput():
                return await self._image(Path(self._folder, item.path))
            case SkillInput():
                return await self._skill(item)
            case MentionInput():
                return {
                    **written(MentionInput(name=item.name, path=item.path)),
                    "tools": await self._tools(item),
                }

    async def _image(self, path: Path) -> Item:
        within = self._state.facts.within(str(path))
        if within is None:
            url = await self._library.image(path)
        else:
            url = await sent_image(await self._recorded(within))
        self._bytes += len(url)
        if self._bytes > MOST_IMAGE_BYTES:
            raise ValueError(f"the images of one op have at most {MOST_IMAGE_BYTES:,} bytes together")
        return {**written(ImageInput(image_url=url)), "path": str(path)}

    async def _recorded(self, path: str) -> bytes:
        """An image in the portable folder."""
        if self._contents is None:
            named = (self._state.facts.within(str(Path(self._folder, image))) for image in self._images)
            paths = dict.fromkeys(path for path in named if path is not None)
            self._contents = await self._ports.folders.read(self._state, list(paths), MAX_IMAGE_BYTES)
        content = self._contents[path]
        if isinstance(content, str):
            raise ValueError(content)
        return content

    async def _tools(self, item: MentionInput) -> list[str]:
        """The tools of the MCP server that an app stands for; none if there is no such server."""
        if not item.path.startswith(APP):
            return []
        try:
            async with asyncio.timeout(PATIENCE_S):
                names = await self._ports.tools.of_servers(self._state, item.path.removeprefix(APP))
        except Exception as error:
            # Without its tools it is an unknown app: the person is warned, and the rest is done.
            log.warning("the tools of %s could not be listed", item.path, exc_info=error)
            return []
        return list(names)[:MOST_TOOLS]

    async def _skill(self, item: SkillInput) -> Item:
        self._skills += 1
        if self._skills > MOST_SKILLS:
            raise ValueError(f"at most {MOST_SKILLS} skills can be named at once")
        path = str(Path(self._folder, item.path))
        content = await self._skill_text(path)
        return {**written(SkillInput(name=item.name, path=path)), "content": content}

    async def _skill_text(self, path: str) -> str:
        facts = self._state.facts
        if facts.within(self._folder) is None:
            return await self._library.skill(self._folder, path)
        if facts.within(path) is None:
            return await self._library.skill("", path)
        if self._recorded_skills is None:
            self._recorded_skills = await self._ports.folders.skills(self._state, self._folder)
        text = self._recorded_skills.texts.get(posixpath.normpath(path))
        if text is None:
            raise no_skill(path, self._folder)
        return text


def _named(item: Any, folder: str) -> str:
    match item:
        case LocalImageInput():
            return f"the image {Path(folder, item.path)}"
        case SkillInput():
            return f"the skill {item.name}"
        case _:
            return f"the {item.type}"
