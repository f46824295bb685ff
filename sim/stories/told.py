"""The story of a calm run: what everybody outside sees and what lasts, a section for each who sees it.

Sections hold what happened in the order in which their observer sees it; there is no order between them.
Sessions are called by their tree and agent, other ids by the order in which a section names them. Times are
left out, but for those of an entry of a log, which stand as distances from its own.
"""

from __future__ import annotations

import re
from base64 import b64decode
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import orjson

from orchestrator.model.prompt import Prompt
from sim.fixture import Fixture
from sim.stories.calm import AT_MOMENTS, CalmWorld

if TYPE_CHECKING:
    from sim.double import Double

_SESSION = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HEAD = re.compile(r"(?<=[-.])[0-9a-f]{8}(?=\.)")
"""The beginning of a chain's head, in cursors and names of segments."""
_HEX = re.compile(r"\b(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{16,}\b")
_MS = re.compile(r"\b1[89]\d{11}(?:\.\d+)?\b")
_S = re.compile(r"\b1[89]\d{8}(?:\.\d+)?\b")
_ISO = re.compile(r"\b20\d\d-\d\d-\d\dT\d\d[:-]\d\d[:-]\d\d(?:\.\d+)?(?:Z|\+00:00)?")
_NUMBER = re.compile(r"\b\d{14,18}\b")
_PACE = re.compile(r'"paces":\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}|\\"paces\\":\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}')
_LASTED = re.compile(r'(?<=durationMs":)\d+(?:\.\d+)?')
"""How long a turn or an item took."""
_UNHEARD = re.compile(r"not heard from for \w+")
"""A part that depends on when a worker was heard last: a story says nothing of it."""
_DAY = re.compile(r"\b20\d\d/\d\d/\d\d\b")
_CURSOR = re.compile(r'(?<=[cC]ursor":")[A-Za-z0-9+/_-]{8,}={0,2}(?=")')
_WORKER = re.compile(r"\bw\d+\b")
"""Which of several workers had a session is chance."""
_TAIL = re.compile(r"\b[0-9a-f]{4}\b")
KERNEL = frozenset({"begins", "finished", "killed", "hears"})
PERSON = frozenset({"creates", "submits", "refused", "forks", "forks not", "adds", "attaches", "throws in"})
UPKEEP = frozenset({"job", "did", "failed"})
FAULTS = frozenset({*AT_MOMENTS, "kills"})
_OF_TIME = ("has done nothing for", "no answer from Redis", "the connection was lost")
"""Of warnings: how many processes met one fault, and which first."""
DELTAS = frozenset(
    {"agent_message_delta", "agent_message_content_delta", "exec_command_output_delta", "plan_delta"}
)
"""Events whose pieces are told as one: how they are cut is a matter of time."""
SHORT_S = 2.2
"""Shorter ones are told as one."""
PIECES = ("delta", "chunk")


class Names:
    """Names in the place of ids and times, for one section."""

    def __init__(self, session: Callable[[str], str]) -> None:
        self._session = session
        self._known: dict[str, str] = {}

    def plain(self, text: str, at_ms: int | None = None) -> str:
        text = _CURSOR.sub(_decoded, text)
        text = _SESSION.sub(self._uuid, text)
        text = _HEAD.sub("<head>", text)
        text = _HEX.sub(self._hex, text)
        text = _MS.sub(lambda found: _distance(float(found[0]), at_ms), text)
        text = _S.sub("<s>", text)
        text = _NUMBER.sub("<n>", text)
        text = _PACE.sub("<paces>", text)
        text = _LASTED.sub(_lasted, text)
        text = _UNHEARD.sub("not heard from for <time>", text)
        text = _ISO.sub("<time>", text)
        return _DAY.sub("<day>", text)

    def _uuid(self, found: re.Match[str]) -> str:
        name = self._session(found[0])
        return name if name != found[0] else self._named("u", found[0])

    def _hex(self, found: re.Match[str]) -> str:
        return self._named("h", found[0])

    def _named(self, kind: str, id: str) -> str:
        if id not in self._known:
            self._known[id] = f"<{kind}{len(self._known) + 1}>"
        return self._known[id]


def _decoded(found: re.Match[str]) -> str:
    """The content of a cursor, where that is a text."""
    text = found[0].replace("-", "+").replace("_", "/")
    try:
        told = b64decode(text + "=" * (-len(text) % 4), validate=True).decode()
    except ValueError:
        return found[0]
    return told if told.isprintable() else found[0]


def _distance(ms: float, at_ms: int | None) -> str:
    """Whole seconds: a round trip more changes none, as a rule. All short ones are the same."""
    if at_ms is None:
        return "<ms>"
    seconds = (ms - at_ms) / 1000
    return "<now>" if abs(seconds) < SHORT_S else f"<{round(seconds):+}s>"


def _lasted(found: re.Match[str]) -> str:
    """How long something took, by a power of two: many durations are nobody's choice."""
    seconds = float(found[0]) / 1000
    return f"<below {2 ** max(1, seconds.__ceil__().bit_length())}s>"


class Story:
    """Takes down a calm run, while it goes on and at its end."""

    def __init__(self, world: CalmWorld) -> None:
        self._world = world
        self._sections: dict[str, list[str]] = defaultdict(list)
        self._names: dict[str, Names] = {}
        self._prompts: dict[str, tuple[str, list[str]]] = {}
        heard = world.site.model.heard

        def asked(prompt: Prompt) -> None:
            heard(prompt)
            self._asked(prompt)

        world.site.model.heard = asked
        world.trace.heard = self._heard
        world.story = self

    def lines(self) -> list[str]:
        """The whole story: each section under its name."""
        found: list[str] = []
        for name in sorted(self._sections):
            found += [f"## {name}", *self._sections[name]]
        return found

    def tell(self, section: str, line: str, at_ms: int | None = None) -> None:
        names = self._names.get(section)
        if names is None:
            names = self._names[section] = Names(self._world.name_of)
        if self._world.nemesis.plan.workers > 1:
            line = _WORKER.sub("<w>", line)
        self._sections[section].append(names.plain(line, at_ms).replace("\n", "\\n"))

    # ── while it goes on ──────────────────────────────────────────────────────────────────────

    def _asked(self, prompt: Prompt) -> None:
        """A request: of its input what was not in the request before, where that stands as it was."""
        name = self._world.name_of(prompt.session_id)
        section = f"model of {name}"
        about = {
            key: getattr(prompt, key)
            for key in (
                *("model", "instructions", "tools", "effort", "summary", "verbosity", "supports_reasoning"),
                *("parallel_tool_calls", "store", "output_schema"),
            )
        }
        about["previous"] = prompt.previous_response_id
        about["together"] = sorted(prompt.together)
        head, items = _json(about), [_json(item) for item in prompt.input]
        head_before, before = self._prompts.get(name, ("", []))
        same = next(
            (at for at, (a, b) in enumerate(zip(items, before, strict=False)) if a != b),
            min(len(items), len(before)),
        )
        self._prompts[name] = head, items
        self.tell(section, f"asked, {len(items)} items, the first {same} as before")
        if head != head_before:
            self.tell(section, f"  {head}")
        for item in items[same:]:
            self.tell(section, f"  {item}")

    def _heard(self, client: str, way: str, message: bytes) -> None:
        for line in message.decode("utf-8", "replace").splitlines():
            self._message(f"client {client}", way, line)

    def _about(self, told: Mapping[str, Any]) -> str:
        """The thread that a notification is about: between threads there is no order."""
        params = told.get("params")
        if "method" not in told or not isinstance(params, Mapping):
            return ""
        thread = params.get("threadId") or params.get("conversationId") or ""
        thread = thread or (params.get("thread") or {}).get("id", "")
        return f" of {self._world.name_of(str(thread))}" if thread else ""

    def _message(self, section: str, way: str, line: str) -> None:
        told = orjson.loads(line)
        if way == "<":
            section += self._about(told)
            told.pop("emittedAtMs", None)
            lines = self._sections[section]
            if "delta" in (params := told.get("params") or {}) and isinstance(params["delta"], str):
                delta, params["delta"] = params["delta"], ""
                self.tell(section, f"< {_json(told)} <- {_json(delta)[1:-1]}")
                here = lines.pop()
                if lines and " <- " in lines[-1] and lines[-1].split(" <- ")[0] == here.split(" <- ")[0]:
                    lines[-1] += here.split(" <- ", 1)[1]
                else:
                    lines.append(here)
                return
        self.tell(section, f"{way} {orjson.dumps(told, option=orjson.OPT_SORT_KEYS).decode()}")

    # ── at its end ────────────────────────────────────────────────────────────────────────────

    def at_rest(self, fixture: Fixture) -> None:
        """Takes down all that lasts."""
        world, watch = self._world, self._world.site.watch
        for session, seen in watch.sessions.items():
            name = world.name_of(session)
            for _, fields in seen.stored:
                self._entry(f"log of {name}", fields[b"p"].decode("utf-8", "replace"))
            events = world.double.stream_after(watch.keys.eq(session), 0)
            self._events(f"events of {name}", events)
            places = [
                f"{_number(at)}:{int(fields[b's'])}:{int(fields.get(b'x', 0))}" for at, fields in events
            ]
            self.tell(f"places of the events of {name}", " ".join(places))
            for given in seen.given:
                told = f"{given.op} {given.id} about={given.about} agent={given.agent_id}"
                self.tell(f"given to {name}", told)
            if seen.tree == session:
                self._tree(f"tree {name}", world.double.tree_after(watch.keys, session, 0))
        self._people()
        self._rows()
        self._keys()
        self._outside()

    def _entry(self, section: str, line: str) -> None:
        told = orjson.loads(line)
        at_ms = _ms_of(told.pop("timestamp", None))
        self.tell(section, _json(told), at_ms)

    def _events(self, section: str, entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> None:
        for line in _joined(orjson.loads(fields[b"p"]) for _, fields in entries):
            self.tell(section, line)

    def _tree(self, section: str, entries: Sequence[tuple[bytes, Mapping[bytes, bytes]]]) -> None:
        for _, fields in entries:
            told = {key.decode(): fields[key].decode("utf-8", "replace") for key in (b"s", b"q", b"d", b"a")}
            at_ms = int(fields[b"t"]) if fields.get(b"t") else None
            self.tell(section, f"{_json(told)} {fields[b'p'].decode('utf-8', 'replace')}", at_ms)

    def _people(self) -> None:
        """Events that people were told, where they are others than another person of the session was told."""
        known: dict[str, list[tuple[str, list[str]]]] = defaultdict(list)
        for (person, session), events in self._world.diary.seen.items():
            name = self._world.name_of(session)
            told = list(_joined({"id": event.id, "msg": dict(event.msg)} for event in events))
            section = f"{person} at {name}"
            as_ = next((other for other, lines in known[name] if lines == told), None)
            if as_ is not None:
                self.tell(section, f"hears what {as_} hears")
                continue
            known[name].append((person, told))
            for line in told:
                self.tell(section, line)

    def _rows(self) -> None:
        """Notes of the run: what people did, what the kernel ran, upkeep's jobs, the product's warnings."""
        tails = {session[-4:]: self._world.name_of(session) for session in self._world.site.watch.sessions}

        def named(text: str) -> str:
            return _TAIL.sub(lambda found: tails.get(found[0], found[0]), text)

        for _, who, what, details in self._world.trace.rows():
            words = " ".join(str(one) for one in details)
            if who == "log":
                if what in ("warning", "error", "critical") and not any(one in words for one in _OF_TIME):
                    self.tell("log of the product", f"{what} {words}")
            elif what in KERNEL and details and who.startswith("w"):
                whose = tails.get(str(details[0]), "") if what != "hears" else "servers"
                self.tell(f"kernel of {whose}", f"{what} {' '.join(str(one) for one in details[1:])}")
            elif what in UPKEEP:
                self.tell("upkeep", f"{what} {named(words)}")
            elif what in PERSON and not who.startswith("w"):
                self.tell(f"acts of {who}", f"{what} {named(words)}")
            elif who == "nemesis" and what in FAULTS:
                self.tell("faults", f"{what} {named(words)}")

    def _keys(self) -> None:
        """Takes down how many keys of each kind Redis has, and what stands in hashes and sorted sets."""
        double = self._world.double
        for key in _keys_of(double):
            kind = _kind(key)
            if any(f":{one}" in kind for one in _PASSING):
                continue
            self.tell("keys", kind)
            self._key(key, kind)
        for section in [name for name in self._sections if name.startswith(("redis ", "upkeep"))]:
            self._sections[section].sort()
        self._sections["keys"] = [
            f"{kind} {sum(1 for _ in some)}" for kind, some in groupby(sorted(self._sections["keys"]))
        ]

    def _key(self, key: str, kind: str) -> None:
        double, section = self._world.double, f"redis {kind}"
        what = double.look("TYPE", key)
        what = what.decode() if isinstance(what, bytes) else str(what)
        if what == "hash":
            fields = {_text(name): _text(value) for name, value in double.hash(key).items()}
            fields = {name: value for name, value in fields.items() if not name.startswith("turn:")}
            told = {name: value for name, value in sorted(fields.items()) if name not in _LEFT_OUT}
            self.tell(section, f"{key} {_json(told)}")
        elif what == "zset":
            members = sorted(_text(member) for member in double.members(key))
            self.tell(section, f"{key} {len(members)}")

    def _outside(self) -> None:
        """Folders as they are, files of rollouts, and objects of the archive."""
        site = self._world.site
        for name in sorted(site.objects._content):
            self.tell("archive", name)
        for path in sorted(site.files.content):
            self.tell("files", f"{path} {len(site.files.content[path].splitlines())} lines")


_PASSING = (
    "control",
    "clock",
    "ready",
    "eq:",
    "snapshot",
    "heard",
    "confirmed",
    "released",
    "watched",
    "workers",
    "open",
)
"""Keys that come and go with time, or with the worker that was first."""
_LEFT_OUT = frozenset(
    {
        "head",
        "cum",
        "claim",
        "holder",
        "snapshot_seq",
        "tries",
        "epoch",
        "lease",
        "mac",
        "salt",
        "chain",
        "deadline",
    }
)


def _keys_of(double: Double) -> list[str]:
    """The keys that are there, of those that anybody has named."""
    found: dict[bytes, None] = {}
    for _, command in double.journal:
        script = command[0] in (b"EVALSHA", b"EVAL")
        found |= dict.fromkeys(command[3 : 3 + int(command[2])] if script else command[1:2])
    return sorted(_text(key) for key in found if double.look("EXISTS", key))


def _kind(key: str) -> str:
    """A key without the ids in it."""
    return re.sub(r"[0-9a-f]{8,}(-[0-9a-f]{4,})*", "*", key)


def _text(value: bytes) -> str:
    return value.decode("utf-8", "backslashreplace")


def _ms_of(timestamp: Any) -> int | None:
    from datetime import datetime

    if not isinstance(timestamp, str):
        return None
    return round(datetime.fromisoformat(timestamp).timestamp() * 1000)


def _number(entry_id: bytes) -> int:
    return int(entry_id.partition(b"-")[0])


def _joined(told: Iterator[Mapping[str, Any]]) -> Iterator[str]:
    """Events as lines; pieces of one text that follow each other are one line."""
    last: tuple[Any, ...] = ()
    text = ""
    for event in told:
        message = event["msg"]
        piece = next((key for key in PIECES if key in message), None)
        if message["type"] in DELTAS and piece is not None and isinstance(message[piece], str):
            rest = {key: value for key, value in message.items() if key != piece}
            kind = (event.get("id"), _json(rest))
            if kind == last:
                text += message[piece]
                continue
            if last:
                yield f"{last[0]} {last[1]} <- {_json(text)}"
            last, text = kind, message[piece]
            continue
        if last:
            yield f"{last[0]} {last[1]} <- {_json(text)}"
            last = ()
        yield f"{event.get('id')} {_json(message)}"
    if last:
        yield f"{last[0]} {last[1]} <- {_json(text)}"


def _json(value: Any) -> str:
    return orjson.dumps(value, default=_plain).decode("utf-8", "replace")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | frozenset | set):
        return sorted(value) if isinstance(value, frozenset | set) else list(value)
    return str(value)
