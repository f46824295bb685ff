"""The model of a crash run's sessions: its answers leave traces that can be counted.

Every command appends `<session> <call id>` to a ledger before anything else, every patch
adds two files that are named after its call. Answers follow from the request alone, so a
request that is sent again by another worker is answered as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import orjson

from orchestrator.stub.answers import Answer, Call, OutputItem, Step, StubConversation, StubRequest, Text

WORDS = ("exec", "exec", "slow", "big", "patch", "pair", "think")
IN_DOUBT = "in doubt"


def errand(random: Random, number: int) -> str:
    """A task's text: what is to be done, word by word."""
    words = random.choices(WORDS, k=random.randint(1, 4))
    return f"errand {number}: {' '.join(words)}"


@dataclass
class Ledger:
    """The script of the stub, and where its calls leave their traces."""

    folder: Path
    name: str = "ledger"
    told: set[tuple[str, str]] = field(default_factory=set)
    """(session, call id) of the calls that a request reported in doubt."""
    cut: set[str] = field(default_factory=set)

    @property
    def path(self) -> Path:
        return self.folder / "ledger"

    def executions(self) -> list[tuple[str, str]]:
        """(session, call id) of each command that ran, in order."""
        if not self.path.exists():
            return []
        return [(s, c) for s, c in (line.split() for line in self.path.read_text().splitlines())]

    def answer(self, request: StubRequest) -> Answer:
        conversation = StubConversation.of(request.body)
        self._note_doubts(request)
        step = self.step(conversation, request)
        return Answer(self._maybe_cut(step, request), conversation.turn, request.digest)

    def step(self, conversation: StubConversation, request: StubRequest) -> Step:
        """The first word of the task that was not done yet."""
        words = conversation.task.partition(": ")[2].split()
        word = _next(words, len(conversation.calls))
        if word is None:
            return Step(items=(Text(f"Finished {len(words)} words, as you asked, in good order."),))
        return self._word(word, request.session, conversation.turn)

    def _maybe_cut(self, step: Step, request: StubRequest) -> Step:
        """Now and then the provider itself fails: the first time that it sees a request."""
        if int(request.digest, 16) % 9 or request.digest in self.cut:
            return step
        self.cut.add(request.digest)
        return Step(items=step.items, drop_after=3)

    def _note_doubts(self, request: StubRequest) -> None:
        for item in request.body.get("input") or ():
            if str(item.get("type", "")).endswith("_output") and IN_DOUBT in orjson.dumps(item).decode():
                self.told.add((request.session, item["call_id"]))

    def _word(self, word: str, session: str, turn: int) -> Step:
        call_id = f"c{turn}"
        items: tuple[OutputItem, ...]
        match word:
            case "patch":
                items = (self._patch(session, call_id),)
            case "think":
                items = (Text("Let me think about it for a moment."), self._shell(session, call_id))
            case "pair":
                items = (self._shell(session, f"{call_id}a"), self._shell(session, f"{call_id}b"))
            case "slow":
                items = (self._shell(session, call_id, "echo begun; sleep 0.2; echo done"),)
            case "long":
                # Writes its process id at once, and that it lived on only if nobody killed it.
                alive = f"{self.folder}/alive-{call_id}"
                items = (self._shell(session, call_id, f"echo $$ > {alive}; sleep 9; touch {alive}-on"),)
            case "big":
                items = (self._shell(session, call_id, "seq 1 2500"),)
            case _:
                items = (self._shell(session, call_id),)
        return Step(items=items)

    def _shell(self, session: str, call_id: str, then: str = "echo done") -> Call:
        script = f"echo {session} {call_id} >> {self.path}; {then}"
        return Call("shell", {"command": ["bash", "-c", script]}, call_id)

    def _patch(self, session: str, call_id: str) -> Call:
        names = patch_files(self.folder, session, call_id)
        added = "".join(f"*** Add File: {name}\n+{call_id}\n" for name in names)
        return Call("apply_patch", {"input": f"*** Begin Patch\n{added}*** End Patch"}, call_id)


def _next(words: list[str], calls: int) -> str | None:
    """The first word that no call was made for yet."""
    for word in words:
        if calls <= 0:
            return word
        calls -= 2 if word == "pair" else 1
    return None


def patch_files(folder: Path, session: str, call_id: str) -> tuple[Path, Path]:
    """Files that the patch of this call adds."""
    return folder / f"{session}-{call_id}-1", folder / f"{session}-{call_id}-2"


def settings_environ(home: Path, redis_url: str, model_url: str, pool: str) -> Mapping[str, str]:
    """The environment of every worker of a run: nothing of the tester's own."""
    return {
        "PATH": "/usr/local/bin:/usr/bin:/bin",
        "HOME": str(home),
        "DENDRO_HOME": str(home / "dendro"),
        "DENDRO_REDIS_URL": redis_url,
        "DENDRO_WORKER_POOLS": pool,
        "DENDRO_LOG_SNAPSHOT_EVERY": "24",
        "OPENAI_BASE_URL": model_url,
        "OPENAI_API_KEY": "none",
    }
