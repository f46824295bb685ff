"""A workload in which a person redacts words while turns run, workers die, and sessions are archived."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from random import Random
from typing import Any

from orchestrator.broker.blobs import Blobs, Texts
from orchestrator.broker.errors import BrokerError
from orchestrator.broker.records import AT_REST
from orchestrator.core.facts import Claimed
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.sender import Sender
from orchestrator.protocol import ops
from orchestrator.rollouts import RolloutError
from orchestrator.rollouts.deletion import NotDeleted, delete_everywhere
from orchestrator.rollouts.object_store import ArchiveUnavailable
from orchestrator.rollouts.redaction import Act, Plan, StoredLogs, Wanted, plan_of, redact
from orchestrator.rollouts.segments import BrokenArchive, Segment
from orchestrator.runtime.loader import restore_session
from sim.archive_moves import NEVER, UpkeepRules
from sim.double import EPOCH_S
from sim.fixture import Fixture, new_session, perhaps_agents
from sim.loop import Lane
from sim.machines import Clock, Process, archive_of, broker_on, storage_of
from sim.people import Person, words
from sim.redactions import Gone, Planned, as_stored
from sim.triggers import takes_a_prompt

WHY = "a customer's number"
UPKEEP_S = 75.0
"""Upkeep looks each minute for what a redaction has left."""
TRIES = 12
WRITES_BESIDE = 0.4
"""How often somebody else writes to an agent who has the words among their prompts."""
OWES_A_PROMPT = 0.3
"""How often another session of the person's has the words to add to their history, and no worker."""
FORKED = 0.6
"""How often a session is forked between its words and their redaction."""


async def redactions(fixture: Fixture) -> None:
    """Sessions whose person redacts what was said: by a pattern, or entry by entry; who redacts may die."""
    rng, nemesis, odds = fixture.rng, fixture.nemesis, fixture.site.model.odds
    odds.asks, odds.agents, odds.large, odds.patches = 0.0, 0.5, 0.3, 0.0
    odds.verbs |= {"subagent_spawn": 10, "subagent_fork": 6, "subagent_watchdog": 0}
    nemesis.weights |= {"rewind_1s": 4, "kill": 12}
    sealing = rng.choice((5, 20))
    nemesis.keep_up(
        UpkeepRules(processes=1, seal_after=sealing, archive_after_s=rng.choice((0.0, 30.0, NEVER)))
    )
    plays = []
    for _ in range(rng.choice((1, 2))):
        person = fixture.person()
        person.habits |= {"compact": 2}
        facts: dict[str, Any] = {
            "on_user_input": rng.choice(("replace", "steer")),
            **perhaps_agents(rng, 0.6),
        }
        session = await new_session(fixture, person, "never", **facts)
        plays.append(person.does(_tells(fixture, person, session), "tells"))
    await asyncio.wait(plays)
    await nemesis.calm.wait()
    await _all_finished(fixture)
    fixture.site.watch.redactions.ended()
    fixture.site.watch.redactions.look(rests=True)
    other = fixture.person()
    for session in filter(fixture.site.watch.fields, sorted(fixture.site.watch.trees)):
        other.does(other.follows(session), "follows")
    await asyncio.sleep(3.0)
    _heard_nothing(fixture, other)


async def _tells(fixture: Fixture, person: Person, session: str) -> None:
    """Says what is to be redacted, and redacts it; goes on with the session."""
    rng = fixture.rng
    apart = Random(f"forks:{rng.getstate()[1][:4]}")
    # Drawn from beside the others, and not in calm runs: kept stories stay as they are.
    calm = fixture.site.network.instant
    beside = None if calm else Random(f"beside:{rng.getstate()[1][:4]}")
    owing = None if calm else Random(f"owing:{rng.getstate()[1][:4]}")
    for _ in range(rng.choice((1, 2, 3))):
        secret = f"ACME-{rng.getrandbits(48):012x}"
        text = f"the number is {secret}"
        if rng.random() < 0.2:
            text += ", and more of the page" * 300
        await person.submits(session, words(text))
        await person.works(session, rng.choice((0, 1, 2)))
        if beside is not None and beside.random() < WRITES_BESIDE:
            await _writes_beside(fixture, session, text, beside)
        if rng.random() < 0.4:
            await person.submits(session, ops.AddToHistory(text=text))
        if rng.random() < 0.3:
            await person.submits(session, ops.Compact())
        if rng.random() < 0.2:
            await person.shuts(session)
        await asyncio.sleep(rng.choice((2.0, 4.0, 20.0, 80.0)) * rng.uniform(0.5, 1.5))
        find = re.compile(secret) if rng.random() < 0.6 else None
        fork = await person.forks(session) if apart.random() < FORKED else None
        if owing is not None and owing.random() < OWES_A_PROMPT:
            await _owes_a_prompt(fixture, person, text, owing)
        for tried in range(TRIES):
            redactor = Redactor(fixture, Random(rng.getrandbits(64)))
            await asyncio.wait([redactor.begins(session, find, is_first=tried == 0)])
            if redactor.done:
                if rng.random() < 0.2 and not fixture.nemesis.calm.is_set():
                    await fixture.nemesis._restart(rng.uniform(0.1, 4.0))
                break
            if redactor.died and fork is not None and apart.random() < 0.9:
                # The claim of who died is over by then, and upkeep has not looked yet.
                await asyncio.sleep(apart.uniform(6.0, 12.0))
                removing = person.does(_removes(fixture, session), "removes")
                await asyncio.wait([removing])
                if removing.result():
                    return
            if redactor.died and rng.random() < 0.6:
                # Nobody redacts again: the rest is upkeep's.
                break
            await asyncio.sleep(rng.uniform(2.0, 15.0))
        await person.works(session, rng.choice((0, 1)))


async def _owes_a_prompt(fixture: Fixture, person: Person, text: str, rng: Random) -> None:
    """A session of the person's takes the words as a prompt, and no worker is left to add it."""
    nemesis = fixture.nemesis
    if nemesis.calm.is_set():
        return
    own = await person.creates("never")
    nemesis.desert_at(takes_a_prompt, rng.uniform(4.0, 12.0))
    await person.submits(own, ops.AddToHistory(text=text))
    for _ in range(20):
        await asyncio.sleep(0.1)
        if nemesis.deserted:
            fixture.site.watch.reach.saw("prompt_owed")
            break
    await asyncio.sleep(rng.uniform(0.0, 2.0))


async def _writes_beside(fixture: Fixture, session: str, text: str, rng: Random) -> None:
    """Somebody else has the words among their prompts, of a session of their own, and writes to an agent."""
    agents = fixture.site.watch.members.get(session, {}).values()
    numbers = sorted(its.state.facts.agent_id for its in agents if its.state.facts.agent_id)
    if not numbers:
        return
    name = f"w{rng.getrandbits(32):08x}"
    other = Person(fixture.site, name, rng, fixture.diary)
    own = await other.creates("never")
    await other.submits(own, ops.AddToHistory(text=text))
    await other.submits(session, ops.MessageAgent(agent_id=rng.choice(numbers), text=f"look, {name}"))


async def _removes(fixture: Fixture, session: str) -> bool:
    """A person deletes a tree (`dendro rm`) whose redaction may not be done; False if it stays."""
    site = fixture.site
    clock = Clock(site.loop, 0.0, 1.0)
    broker, connection = broker_on(site, "removes", clock)
    site.watch.archive_moves.by_people.add(session)
    site.watch.redactions.removes(session)
    try:
        _, heads = await broker.trees.heads_at_once(TreeId(session))
        if all(head.status in AT_REST for head in heads):
            await delete_everywhere(storage_of(site, broker, connection, clock), heads, by="p1")
    except NotDeleted:
        site.watch.reach.saw("redaction_owed")
    except (BrokerError, ArchiveUnavailable):
        pass
    return not site.watch.fields(session)


async def _all_finished(fixture: Fixture) -> None:
    """Waits until upkeep has removed what redactions have left."""
    watch = fixture.site.watch
    for _ in range(TRIES):
        owed = [s for s in watch.sessions if watch.fields(s).get(b"redacting", b"")]
        if not owed:
            return
        await asyncio.sleep(UPKEEP_S / 3)
    watch.broken("words_gone", f"{owed}: copies are owed, and upkeep does not remove them")


def _heard_nothing(fixture: Fixture, person: Person) -> None:
    """A follower that has come since is not told words that are gone."""
    watch = fixture.site.watch
    for gone in watch.redactions.standing():
        if gone.stays or watch.redactions.written_since(gone):
            continue
        for (name, session), events in fixture.diary.seen.items():
            for event in events if name == person.name else ():
                if any(word in repr(event.msg) for word in gone.words):
                    watch.broken("words_gone", f"{session}: a new follower is told {gone.words!r:.80}")


class Redactor(Process):
    """`dendro redact`, in a process that may die."""

    def __init__(self, fixture: Fixture, rng: Random) -> None:
        site = fixture.site
        super().__init__(site, f"r{fixture.rng.getrandbits(16)}", rng)
        self._fixture, self._rng = fixture, rng
        broker, connection = broker_on(site, self.name, self.clock)
        self._storage = storage_of(site, broker, connection, self.clock)
        texts = Texts(Blobs(connection, broker.keys), archived=archive_of(site).text)
        self._source = StoredLogs(self._storage, texts)
        self.done = self.died = False
        self._why = f"{WHY} ({self.name})"
        self._planned: Planned | None = None
        self._unnamed = False
        """Whether segments were written anew that no manifest names yet."""

    @property
    def lanes(self) -> tuple[Lane, ...]:
        return (self.main,)

    def kill(self) -> None:
        if self.alive and not self.done:
            self.site.trace.note("nemesis", "kills", self.name)
            self.site.watch.reach.saw("redaction_died")
            if self._unnamed:
                self.site.watch.reach.saw("redaction_unnamed")
            if self._planned is not None and self.site.watch.redactions.left(self._planned):
                self.site.watch.reach.saw("redacted_whole")
            self.site.loop.kill(self.main)
            self.died = True
            self._end()

    def drain(self) -> None:
        self.kill()

    def begins(self, session: str, find: re.Pattern[str] | None, *, is_first: bool) -> asyncio.Future[None]:
        """Redacts; ends with the process. Behind all faults only the first one may die."""
        self._ended = asyncio.get_running_loop().create_future()
        self.site.loop.start(self.main, self._runs(session, find), "redacts")
        if self._fixture.nemesis.calm.is_set():
            if is_first and self._rng.random() < 0.6:
                self._is_to_die()
            return self._ended
        if self._rng.random() < 0.25:
            after_s = self._rng.choice((0.02, 0.1, 0.5)) * self._rng.random()
            self.site.loop.on(self.site.network.lane, self.kill, after=after_s)
        elif self._rng.random() < 0.7:
            self._is_to_die()
        return self._ended

    def _is_to_die(self) -> None:
        """Before another commit, when segments are written anew, or are to be named or removed."""
        commits, archive = self._storage.broker.commits, self._storage.archive
        match self._rng.choice(("commit", "commit", "commit", "rewrite", "remove")):
            case "commit":
                self._dies_before(commits, "commit", self._rng.choice((2, 2, 2, 3, 4)))
            case "rewrite":
                self._dies_before(commits, "rewrite", 1)
            case _:
                self._dies_before(archive, "remove_segment", 1)
        written = archive.rewrite_segment

        async def writes(*args: Any) -> Segment:
            self._unnamed = True
            return await written(*args)

        setattr(archive, "rewrite_segment", writes)  # noqa: B010

    def _dies_before(self, owner: Any, name: str, times: int) -> None:
        real, left = getattr(owner, name), [times]

        async def dying(*args: Any, **named: Any) -> Any:
            left[0] -= 1
            if not left[0]:
                self.site.loop.on(self.site.network.lane, self.kill, after=0.0)
                await asyncio.get_running_loop().create_future()
            return await real(*args, **named)

        setattr(owner, name, dying)

    async def _runs(self, session: str, find: re.Pattern[str] | None) -> None:
        try:
            with suppress(BrokerError, ArchiveUnavailable, BrokenArchive):
                await self._redacts(session, find)
        except RolloutError as error:
            self.site.trace.note(self.name, "refused", str(error)[:80])
        self._end()

    def _end(self) -> None:
        self.alive = False
        if not self._ended.done():
            self._ended.set_result(None)

    async def _redacts(self, session: str, find: re.Pattern[str] | None) -> None:
        watch, began_s = self.site.watch, self.site.loop.time()
        head = await self._source.broker.logs.head(SessionId(session))
        seen = watch.sessions.get(session)
        if head is None or seen is None:
            self.done = True
            return
        seqs: tuple[int, ...] = ()
        if find is None:
            able = [
                int(entry_id.partition(b"-")[0])
                for entry_id, fields in seen.stored[: head.seq]
                if b"d" not in fields
                and (b"ACME-" in fields[b"p"] or b"function_call_output" in fields[b"p"])
            ]
            if not able:
                self.done = True
                return
            seqs = (self._rng.choice(able),)
        plan = await plan_of(self._source, head, Wanted(SessionId(session), seqs, (), find))
        if not plan.count:
            self.done = True
            return
        self._plans(plan)
        for each in plan.entries:
            if plan.heads[each].archived:
                await restore_session(self._storage, each)
        by = Sender("p1@sim", "", "admin", "cli", "machine")
        now_ms = int((EPOCH_S + self.site.loop.time()) * 1000)
        act = Act(self._why, by, Claimed(self.name, self.name, "uid:1", "0"), now_ms)
        self.site.trace.note(self.name, "redacts", plan.count, "of", len(plan.entries))
        await redact(self._source, self._storage, plan, act)
        self.done = True
        self.site.trace.note(self.name, "redacted", plan.count)
        self._notes(plan, began_s)

    def _plans(self, plan: Plan) -> None:
        """Notes what is to be taken."""
        watch = self.site.watch
        watch.redactions.texts |= {(str(tree), digest) for tree, digest in plan.texts}
        entries = [
            (str(session), seq, as_stored(*watch.sessions[str(session)].stored[seq - 1]).covered)
            for session, seqs in plan.entries.items()
            for seq in seqs
            if str(session) in watch.sessions and len(watch.sessions[str(session)].stored) >= seq
        ]
        self._planned = Planned(self._why, tuple(entries), _whole(_told(plan)))
        watch.redactions.planned.append(self._planned)

    def _notes(self, plan: Plan, began_s: float) -> None:
        """Notes the words that are gone from now on."""
        watch = self.site.watch
        stays = frozenset(
            copy.place for copy in plan.copies if not copy.goes and not copy.what.endswith("was sent with it")
        )
        places = [
            (str(session), watch.sessions[str(session)].stored[seq - 1][1].get(b"d", b""))
            for session, seqs in plan.entries.items()
            for seq in seqs
            if str(session) in watch.sessions and len(watch.sessions[str(session)].stored) >= seq
        ]
        if not all(digest for _, digest in places):
            # Redis went back meanwhile.
            return
        ends = {str(session): head.seq for session, head in plan.heads.items()}
        gone = Gone(_whole(_told(plan)), tuple(places), stays, ends, began_s, watch.now_s)
        watch.redactions.gone.append(gone)
        watch.redactions.look(rests=False)


def _told(plan: Plan) -> tuple[str, ...]:
    return (plan.find.pattern,) if plan.find is not None else tuple(plan.words)


def _whole(told: Sequence[str]) -> tuple[str, ...]:
    """Words that stand nowhere by chance: no digests, which stay, and no words of tools about agents."""
    able = (word for word in told if len(word) >= 16 and word[0] != "{")
    return tuple(word for word in able if not re.fullmatch("[0-9a-f]{64}", word))
