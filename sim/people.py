"""Clients of a simulation: they type, change their minds, answer late and twice, and come again.

Each person is a process of its own with the product's client. What was acknowledged to them is
written down here, because it is what must not be lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

from orchestrator.broker.blobs import Texts
from orchestrator.broker.errors import (
    OutOfMemory,
    QueueFull,
    SessionArchived,
    SubmissionConflict,
    Unavailable,
    UnknownSession,
)
from orchestrator.broker.follow import BEGINNING, EqCursor
from orchestrator.broker.records import LimitChange, Submit
from orchestrator.core.birth import Birth, ForkedFrom, taken_facts
from orchestrator.core.ids import SessionId, TreeId, new_session_id
from orchestrator.core.sender import Sender
from orchestrator.core.settings import SessionFacts, TurnSettings
from orchestrator.core.tree import ROOT
from orchestrator.gateways.client import Client, ClientPorts
from orchestrator.gateways.fork import copy_texts, to_fork
from orchestrator.protocol import ops
from orchestrator.protocol.codec import encode_submission
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.plans import (
    PlanRequest,
)
from orchestrator.protocol.scalars import Delivery
from orchestrator.protocol.submission import Submission
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.redaction import StoredLogs
from orchestrator.rollouts.rollout_file import rollout_path
from orchestrator.runtime.loader import restore_session
from orchestrator.views import ViewError
from orchestrator.views.event import Event
from orchestrator.wiring.open_deployment import SealedLogs
from sim.answering import Answering
from sim.double import EPOCH_S
from sim.grammar_terms import BOTH, BRINGS, BROUGHT, FORM, MEANT, PNG, form_of
from sim.lookups import a_lookup
from sim.loop import Lane
from sim.machines import POOL, Clock, Site, storage_on

FOLDER = Path("/sim/sessions")
"""Where sessions that are to have a file have it."""
ENDS = ("task_complete", "turn_aborted")
SHOWS, NAMES, LOOKS = 0.06, 0.04, 0.06
"""How likely a picture comes with what is said, and a name or a look-up before an act."""
MANNERS = 0.3
"""How likely a turn comes with a personality, and with a mode."""
FREE = "danger-full-access"
HABITS = {
    "say": 10,
    "again": 3,
    "interrupt": 3,
    "compact": 1,
    "path": 1,
    "change": 1,
    "turn": 2,
    "back": 1,
    "configure": 1,
    "message": 1,
}
"""Actions of people with a session, and how often each is chosen against the rest."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """Redis said that it has this submission."""

    session: str
    id: str
    kind: str
    at_s: float
    """When it was acknowledged for the first time."""


@dataclass
class Diary:
    """Submissions of all people, and the events that they were sent."""

    acknowledged: dict[str, Acknowledged] = field(default_factory=dict)
    sent: dict[str, str] = field(default_factory=dict)
    """Kind of every submission that was ever sent, by id."""
    shown: dict[str, str] = field(default_factory=dict)
    """Pictures, by the submission that they came with."""
    seen: dict[tuple[str, str], list[Event]] = field(default_factory=dict)
    """Events by (person, session), in order."""
    attached: dict[tuple[str, str], int] = field(default_factory=dict)
    """How far the log was when somebody came who wants to see only what follows, by (person, session)."""
    created: dict[str, float] = field(default_factory=dict)


class _OldClient(Client):
    """A client that sets no texts apart."""

    def _request(self, session: SessionId, submission: Submission) -> Submit:
        payload = encode_submission(submission)
        by = self.by.encoded() if self.by is not None else b""
        return Submit(session, self.client_id, submission.id, payload, sender=self.who, by=by)


class Person(Answering):
    """A client process and its habits."""

    def __init__(self, site: Site, name: str, rng: Random, diary: Diary) -> None:
        super().__init__(site, name, rng)
        self.lane = Lane(name)
        self._diary = diary
        self.habits = dict(HABITS)
        self.speaks_of_old: frozenset[str] = frozenset()
        """Types of ops that this person hands in by a client of an older version."""
        self.delivers = False
        """Whether this person says where input goes, and which turn an op is for."""
        self.two_clients = False
        """Whether this person queues input by two clients that count their submissions alike."""
        self.looks_twice = False
        """Whether this person looks things up by both of them."""
        self.fickle = False
        """Whether this person's turns are under other policies than the turns before."""
        self.shows = SHOWS
        """How likely a picture comes with what this person says."""
        self.moody = False
        """Whether this person chooses modes and personalities between turns, too."""
        self.wants_forms = False
        """Whether this person asks for answers in a form, now and then."""
        self._moods = Random(f"{name}:moods:{rng.getstate()[1][:4]}")
        self.apart_s = 0.0
        """The time that passes before this person submits anything."""
        self.usual: dict[str, Any] = {}
        """Facts of the sessions that this person makes, where nothing else is said."""
        self.looks_back = 3
        """Turns among which this person chooses one to go back to."""
        self._policies: dict[str, tuple[str, str]] = {}
        """Approval policy and sandbox mode of the sessions that it made."""
        self._places: dict[str, EqCursor] = {}
        """Where it attached."""
        storage = storage_on(site, name, Clock(site.loop, rng.uniform(0, 1e6), 1.0))
        self._broker = storage.broker
        self._broker.logs.sealed = SealedLogs(lambda: storage.archive, site.loop.time).read
        texts = Texts(storage.blobs, archived=storage.archive.text)
        self._source = StoredLogs(storage, texts)
        ports = ClientPorts(
            self._broker,
            texts,
            rng.randbytes,
            asyncio.sleep,
            restore=lambda session: restore_session(storage, session),
            chain_key=site.knobs.chain_key,
        )
        by = Sender(name, scope="admin", via="cli", token="machine")
        self._client = Client(ports, f"client-{name}", name, by=by)
        self._old_client = _OldClient(ports, f"old-client-{name}", name, by=by)
        self._second_client = Client(ports, f"second-client-{name}", name, by=by)

    def does(self, habit: Any, name: str) -> asyncio.Task[Any]:
        """Starts something that this person does."""
        return self._site.loop.start(self.lane, habit, f"{self.name}:{name}")

    # ── acting ────────────────────────────────────────────────────────────────────────────────

    async def creates(
        self,
        policy: str,
        pool: str = POOL,
        *,
        kept: bool = False,
        mode: str = FREE,
        source: ForkedFrom | None = None,
        **facts: Any,
    ) -> str:
        site, now_ms = self._site, int((EPOCH_S + self._site.loop.time()) * 1000)
        shard = self._rng.randrange(site.config.shards)
        session = new_session_id(now_ms, shard, self._rng.getrandbits(62))
        facts = {**self.usual, **facts}
        if kept:
            facts["rollout_path"] = str(rollout_path(FOLDER, session, now_ms))
        given = SessionFacts(session, TreeId(session), ROOT, pool, **facts)
        settings = TurnSettings("/sim", policy, {"mode": mode}, "gpt-5")
        if source is not None:
            given, settings = taken_facts(source.state.facts, given, ()), source.state.settings
        self._policies[session] = policy, mode
        site.trace.note(self.name, "creates", session)
        while True:
            try:
                birth = Birth(given, settings, "0", now_ms, source=source)
                await self._client.create(birth, copies=lambda: self._copies(source, given.tree_id))
                break
            except OutOfMemory:
                await asyncio.sleep(0.5)
        self._diary.created[session] = site.loop.time()
        return session

    async def _copies(self, source: ForkedFrom | None, tree: TreeId) -> Sequence[str]:
        """The texts of a fork's source, as they were stored for it just then."""
        return await copy_texts(self._source, source, tree) if source is not None else ()

    async def forks(self, session: str) -> str | None:
        """Makes a session that goes on where another stands; None if that one cannot be forked just then."""
        try:
            source = await to_fork(self._source, session, None)
            policy, mode = self._policies[session]
            new = await self.creates(policy, mode=mode, source=source)
        except (ViewError, ArchiveUnavailable, OutOfMemory, Unavailable) as error:
            self._site.trace.note(self.name, "forks not", session[-4:], type(error).__name__)
            return None
        self._site.trace.note(self.name, "forks", session[-4:], new)
        return new

    async def submits(self, session: str, op: Any, id: str = "", client: Client | None = None) -> str:
        """Submits an op and writes down that it was acknowledged."""
        if self.apart_s:
            await asyncio.sleep(self.apart_s)
        self._numbered += 1
        chosen = id or f"{self.name}.{self._numbered}"
        self._diary.sent.setdefault(chosen, op.type)
        self._site.trace.note(self.name, "submits", session[-4:], chosen, op.type)
        self._site.watch.reach.met("op", op.type)
        try:
            usual = self._old_client if op.type in self.speaks_of_old else self._client
            await (client or usual).submit(SessionId(session), Submission(SubmissionId(chosen), op))
        except (
            SubmissionConflict,
            QueueFull,
            UnknownSession,
            SessionArchived,
            ArchiveUnavailable,
            OutOfMemory,
        ) as error:
            # Archived: each time that it was brought back, it went there again before the submission arrived.
            self._site.trace.note(self.name, "refused", chosen, type(error).__name__)
            return chosen
        now = self._site.loop.time()
        self._diary.acknowledged.setdefault(chosen, Acknowledged(session, chosen, op.type, now))
        return chosen

    async def says(self, session: str, id: str = "") -> str:
        if self.delivers and self._whims.random() < 0.5:
            return await self._says_where(session)
        said = words(f"words {self.name}.{self._numbered}")
        if self.wants_forms and not id and self._moods.random() < 0.3:
            self._numbered += 1
            id = f"{self.name}.{self._numbered}{FORM}"
            return await self.submits(
                session, said.model_copy(update={"final_output_json_schema": form_of(id)}), id
            )
        if self._whims.random() >= self.shows:
            return await self.submits(session, said, id)
        place, size = self._whims.getrandbits(32), self._whims.choice((12, 6_000))
        picture = f"data:image/png;base64,{PNG}{place:08x}{'A' * size}"
        id = id or f"{self.name}.shows{place}"
        self._diary.shown[id] = picture
        parts = (*said.items, {"type": "image", "image_url": picture})
        return await self.submits(session, ops.UserInput(items=cast(Any, parts)), id)

    async def _says_where(self, session: str) -> str:
        """Input for the turn that this person saw last, or with a word about where it goes."""
        self._numbered += 1
        id, text = f"{self.name}.{self._numbered}", f"words {self.name}.{self._numbered}"
        if self._whims.random() < 0.4:
            turn = self._turn_seen(session)
            op = words(text).model_copy(update={"expected_turn_id": turn})
            return await self.submits(session, op, f"{id}{MEANT}{turn}")
        delivery = self._whims.choice(tuple(Delivery))
        named: dict[str, Any] = {"delivery": delivery, "client_user_message_id": id}
        if self._whims.random() < 0.3:
            named["overrides"] = ops.OverrideTurnContext(summary=cast(Any, BROUGHT))
            id += f"{BRINGS}{BROUGHT}"
        return await self.submits(session, words(text).model_copy(update=named), id)

    async def _interrupts_turn(self, session: str) -> None:
        """Stops the turn that this person saw last, and no other."""
        self._numbered += 1
        turn = self._turn_seen(session)
        op = ops.Interrupt(expected_turn_id=turn)
        await self.submits(session, op, f"{self.name}.{self._numbered}{MEANT}{turn}")

    def _turn_seen(self, session: str) -> str:
        seen = self._diary.seen.get((self.name, session), ())
        begun = [event.id for event in seen if event.type == "task_started"]
        return begun[-1] if begun else "none"

    # ── habits ────────────────────────────────────────────────────────────────────────────────

    async def works(self, session: str, acts: int) -> None:
        """Uses a session: mostly talks, and sometimes does what people do."""
        rng = self._rng
        for _ in range(acts):
            await asyncio.sleep(rng.choice((0.0, 0.3, 2.0, 6.0)) * rng.random())
            await self._act(session)

    async def _act(self, session: str) -> None:
        if self._whims.random() < NAMES:
            name = f"the {self.name}.{self._numbered}"
            await self.submits(session, ops.SetThreadName(name=name))
        if self._whims.random() < LOOKS:
            await self.submits(session, a_lookup(self._whims, f"typed {self.name}.{self._numbered}"))
        if self.moody and self._moods.random() < 0.4:
            await self.submits(session, ops.OverrideTurnContext(**self._manners(self._moods, 0.6)))
        if self.looks_twice and self._whims.random() < 0.9:
            await self._looks_twice(session)
        match self._rng.choices(list(self.habits), list(self.habits.values()))[0]:
            case "say":
                await self.says(session)
            case "again":
                # The same submission from two windows, one of which had not heard the answer.
                self._numbered += 1
                id, op = f"{self.name}.{self._numbered}", words(f"twice {self.name}.{self._numbered}")
                await asyncio.gather(*(self.submits(session, op, id) for _ in range(2)))
            case "interrupt" if self.delivers and self._whims.random() < 0.5:
                await self._interrupts_turn(session)
            case "interrupt":
                await self.submits(session, ops.Interrupt(tree=self._rng.random() < 0.3))
            case "turn":
                await self.submits(session, self._turn(session))
            case "back":
                await self.goes_back(session)
            case "configure":
                told = {"user_instructions": f"heed {self.name}.{self._numbered}"}
                changes = told if self._rng.random() < 0.5 else {"effort": cast(Any, "low")}
                await self.submits(session, ops.ConfigureSession(**changes, **self._manners()))
            case "message":
                text, agent = f"message {self.name}.{self._numbered}", self._rng.choice((0, 1, 1, 2))
                word = ops.MessageAgent(agent_id=agent, text=text, interrupt=self._rng.random() < 0.4)
                await self.submits(session, word)
            case "run":
                ran = f"do {self.name}.{self._numbered}"
                await self.submits(session, ops.RunUserShellCommand(command=ran))
            case "plan":
                goal = self._whims.choice((*[f"plan {self.name}.{self._numbered}"] * 4, " "))
                await self.submits(session, ops.Plan(plan_request=PlanRequest(goal=goal)))
            case "review":
                await self.submits(session, self._review())
            case "compact":
                await self.submits(session, ops.Compact())
            case "requeue":
                await self._requeues(session)
            case "add":
                await self.submits(session, self._added())
            case "take_back":
                await self._takes_back(session)
            case "path":
                await self.submits(session, ops.GetPath())
            case _:
                await self.submits(session, ops.OverrideTurnContext(effort=cast(Any, "low")))

    async def _takes_back(self, session: str) -> None:
        """Takes the last words back when what they began is over, as far as this person has seen."""
        for _ in range(10):
            seen = self._diary.seen.get((self.name, session), ())
            turns = [event.type for event in seen if event.type in ("task_started", *ENDS)]
            if not turns or turns[-1] in ENDS:
                break
            await asyncio.sleep(1.0)
        await self.submits(session, ops.ThreadRollback(num_turns=self._rng.choice((1, 1, 2, 3))))

    async def _looks_twice(self, session: str) -> None:
        """Asks for something by two clients that know nothing of each other, under one id."""
        self._numbered += 1
        id, op = f"{self.name}.{self._numbered}{BOTH}", a_lookup(self._whims, f"typed {self.name}")
        # Of a coin of its own, so that nobody else does something else for it.
        if Random(f"{session}:{id}").random() < 0.75:
            op = ops.AddToHistory(text=f"typed {self.name}")
        await asyncio.gather(
            *(self.submits(session, op, id, client) for client in (None, self._second_client))
        )

    async def _requeues(self, session: str) -> None:
        """Lets inputs wait, and takes one of them back or puts them in another order before it looks."""
        waits = []
        for _ in range(self._whims.choice((1, 2, 2, 3))):
            self._numbered += 1
            id, text = f"{self.name}.{self._numbered}", f"words {self.name}.{self._numbered}"
            clients: tuple[Client | None, ...] = (None,)
            if self.two_clients and self._whims.random() < 0.5:
                id, clients = f"{id}{BOTH}", (None, self._second_client)
            for client in clients:
                said = words(f"{text} again" if client else text)
                await self.submits(session, said.model_copy(update={"delivery": Delivery.QUEUE}), id, client)
                waits.append(id)
        if self._whims.random() < 0.3:
            changed = words(f"changed {self.name}.{self._numbered}").items
            id = self._whims.choice(waits)
            await self.submits(session, ops.UpdateQueued(submission_id=id, items=changed))
        if self._whims.random() < 0.5:
            await self.submits(session, ops.RemoveQueued(submission_id=self._whims.choice(waits)))
            return
        begun = self._whims.random() < 0.5
        await self.submits(session, ops.ReorderQueue(submission_ids=tuple(reversed(waits[begun:]))))

    def _added(self) -> Any:
        """Messages without a turn; now and then one that is none."""
        messages = []
        for number in range(self._whims.choice((0, 1, 1, 2, 3))):
            role = self._whims.choice(("user", "developer", "assistant"))
            kind = "output_text" if role == "assistant" else "input_text"
            part = {"type": kind, "text": f"note {self.name}.{self._numbered}.{number}"}
            messages.append({"type": "message", "role": role, "content": [part]})
        return ops.InjectItems.model_validate({"items": messages})

    def _review(self) -> Any:
        """A review: by a target, by a prompt, or of nothing at all, which is an error."""
        target = self._whims.choice(("uncommittedChanges", "commit", "baseBranch"))
        named = {"commit": {"sha": "abc"}, "baseBranch": {"branch": "main"}}.get(target, {})
        prompt = {"prompt": self._whims.choice((f"look at {self.name}.{self._numbered}", " "))}
        request = {"target": {"type": target, **named}} if self._whims.random() < 0.6 else prompt
        return ops.Review.model_validate({"type": "review", "review_request": request})

    def _turn(self, session: str, back_to: str | None = None) -> Any:
        policy, mode = self._policies.get(session, ("never", FREE))
        if self.fickle and self._whims.random() < 0.6:
            policy = self._whims.choice(("never", "untrusted", "on-request"))
            mode = self._whims.choice((FREE, "workspace-write", "read-only"))
        said = words(f"turn {self.name}.{self._numbered}").items
        cwd = "." if self._numbered % 2 else "/sim"
        given: dict[str, Any] = {"cwd": cwd, "model": "gpt-5", "summary": "auto", "items": said}
        given |= {"approval_policy": policy, "sandbox_policy": {"mode": mode}}
        if self.fickle and mode == "workspace-write":
            roots = self._moods.choice(((), (), ("/srv/a",), ("/srv/b", "/srv/a")))
            given["sandbox_policy"] |= {
                "network_access": self._moods.random() < 0.3,
                "writable_roots": roots,
            }
        return ops.UserTurn(**given, **self._manners(), last_response_id=cast(Any, back_to))

    def _manners(self, whims: Random | None = None, often: float = MANNERS) -> dict[str, Any]:
        """A personality and a mode, each of them now and then."""
        chosen: dict[str, Any] = {}
        drawn = whims or self._whims
        if drawn.random() < often:
            chosen["personality"] = drawn.choice(("none", "friendly", "pragmatic"))
        if drawn.random() < often:
            kind = drawn.choice(("plan", "plan", "code", "pair_programming", "execute", "default"))
            chosen["collaboration_mode"] = {"mode": kind, "settings": {"model": "gpt-5"}}
            if whims is not None and whims.random() < 0.5:
                # Words of the person's own stand in the place of the mode's.
                own = f"Work as {self.name} says, in the way {whims.randrange(3)}."
                chosen["collaboration_mode"]["settings"]["developer_instructions"] = own
        return chosen

    async def goes_back(self, session: str) -> None:
        """Says something to the conversation as it was at the end of an earlier turn, or of none."""
        seen = self._diary.seen.get((self.name, session), ())
        known = [event.msg["response_id"] for event in seen if event.msg.get("response_id")]
        back_to = self._rng.choice([*known[-self.looks_back :], *known[-1:], "r-unknown"])
        if self._rng.random() < 0.5:
            await self.submits(session, self._turn(session, back_to))
            return
        said = words(f"back {self.name}.{self._numbered}")
        await self.submits(session, said.model_copy(update={"last_response_id": back_to}))

    async def adds(self, session: str, amounts: Mapping[str, int]) -> None:
        """Raises limits of the session's tree (`dendro budget --add`), again until it is answered."""
        self._numbered += 1
        change = LimitChange(f"{self.name}.{self._numbered}", amounts)
        self._site.trace.note(self.name, "adds", session[-4:], dict(amounts))
        while True:
            try:
                await self._broker.trees.raise_limits(TreeId(session), change)
                if self._rng.random() < 0.3:
                    await self._broker.trees.raise_limits(TreeId(session), change)
                return
            except (Unavailable, OutOfMemory):
                await asyncio.sleep(0.3)
            except UnknownSession:
                return

    async def shuts(self, session: str) -> None:
        await self.submits(session, ops.Shutdown())

    async def writes(self, session: str, letters: int, agents: int) -> None:
        """Writes to agents of the session's tree, several times in a row."""
        for _ in range(letters):
            await asyncio.sleep(self._rng.choice((0.0, 0.05, 1.0)) * self._rng.random())
            op = ops.MessageAgent(
                agent_id=self._rng.randrange(agents + 1),
                text=f"letter {self.name}.{self._numbered}",
                interrupt=self._rng.random() < 0.2,
            )
            await self.submits(session, op)

    async def cancels(self, session: str, agent_id: int) -> None:
        await self.submits(session, ops.CancelAgent(agent_id=agent_id))

    async def follows(
        self, session: str, react: Callable[[Event], Any] | None = None, cursor: EqCursor = BEGINNING
    ) -> None:
        """Reads the session's events behind a cursor, for ever."""
        seen = self._diary.seen.setdefault((self.name, session), [])
        events = cast(Any, self._client.follow(SessionId(session), cursor))
        # A session whose birth was lost with Redis's last second is nobody's any more.
        with suppress(UnknownSession):
            async with aclosing(events):
                async for event in events:
                    seen.append(event)
                    if react is not None:
                        self.does(react(event), "answers")

    async def attaches(self, session: str) -> None:
        """Comes late, reads what happens from then on, and leaves."""
        head = await self._client.head(SessionId(session))
        if head is None:
            # Lost with Redis's last second.
            return
        self._diary.attached[self.name, session] = head.seq
        self._site.watch.reach.saw("events")
        self._places[session] = EqCursor.at(head)
        self._site.trace.note(self.name, "attaches", session[-4:], head.seq)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._rng.choice((0.1, 3.0, 20.0))):
                await self.follows(session, cursor=self._places[session])
        await asyncio.sleep(self._rng.choice((0.0, 1.0, 30.0)))

    async def comes_back(self, session: str) -> None:
        """Reads on behind what it has seen."""
        if session not in self._places:
            return
        seen = self._diary.seen.setdefault((self.name, session), [])
        while seen and seen[-1].cursor is None:
            # Left in the middle of what was read from the log: that is read again.
            seen.pop()
        cursor = seen[-1].cursor if seen else None
        await self.follows(session, cursor=cursor or self._places[session])


def words(text: str) -> Any:
    return ops.UserInput(items=cast(Any, ({"type": "text", "text": text},)))
