"""The settings of a task, the facts of a session, and the rules that its worker adds.

`TurnSettings` are the sticky settings of the protocol (`user_turn`,
`override_turn_context`); a task keeps the ones it began with. `SessionFacts` never
change. `Rules` belong to the worker that runs the session, not to the log: `decide`
gets them with each command, and everything that they led to is in the entries.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import asdict, field, fields
from functools import lru_cache
from operator import attrgetter
from typing import Final, Literal, TypeAlias, TypedDict

from orchestrator.core.blobs import is_reference
from orchestrator.core.client_tools import ClientTools
from orchestrator.core.frozen import record, replace
from orchestrator.core.ids import AgentId, SessionId, TreeId
from orchestrator.core.record_json import LIST, Form, form, reader_of, writer_of
from orchestrator.core.sender import Sender, sender_of, sender_wire
from orchestrator.protocol.ids import CallId, SubmissionId
from orchestrator.protocol.wire import JsonMapping, JsonObject, JsonValue

SENDER: Mapping[str, Form] = form(read=sender_of, write=sender_wire)
"""The form of a field that names a sender, or nobody."""


@record
class Setting:
    """Where a setting of a turn may come from, beside its name, its type and its default.

    What a configuration file calls it, and whether a folder's own file may loosen it, says the table of that
    file: the field of the same name in `SessionDefaults`.
    """

    named_by: Literal["turns", "session", ""] = "turns"
    """The operations that name it. `turns`: all that name settings, and so does the line before each request.
    `session`: `configure_session` alone. Empty: none."""
    guarded: bool = False
    """Whether it says what commands may do and who is asked before: past what a person has set, it takes the
    scope `approve`."""
    later: bool = False
    """Whether logs and snapshots state it only where it is set: those of earlier versions have none."""


def _setting(
    named_by: Literal["turns", "session", ""] = "turns", *, guarded: bool = False, later: bool = False
) -> Mapping[str, Setting]:
    return {"setting": Setting(named_by, guarded, later)}


EXTERNAL_SANDBOX = "external-sandbox"
"""The mode of a session that something outside confines: read in old logs, served as read-only."""


@record
class TurnSettings:
    """The protocol's turn context; policies are kept in their wire form (sandbox tag `mode`).

    This is the list of settings. A new one is a field here and in `SettingsChanges`, at the end; a test names
    each record of a wire or of the file that it is missing from.
    """

    cwd: str = field(metadata=_setting())
    approval_policy: str = field(metadata=_setting(guarded=True))
    sandbox_policy: JsonMapping = field(metadata=_setting(guarded=True))
    model: str = field(metadata=_setting())
    model_provider: str = field(default="openai", metadata=_setting("session"))
    effort: str | None = field(default=None, metadata=_setting())
    summary: str = field(default="auto", metadata=_setting())
    verbosity: str | None = field(default=None, metadata=_setting("session"))
    window: int | None = field(default=None, metadata=_setting(""))
    """A context window set by hand; None asks the table."""
    personality: str | None = field(default=None, metadata=_setting(later=True))
    """The model's way of speaking, if it was ever chosen."""
    collaboration_mode: JsonMapping | None = field(default=None, metadata=_setting(later=True))
    """The mode with its settings in their wire form; None is as good as `code`."""
    item_events: str | None = field(default=None, metadata=_setting("session", later=True))
    """The items whose lifecycle is told: `plan` (None too), or `all`."""

    @classmethod
    def of(cls, wire: JsonMapping) -> TurnSettings:
        return cls(**{name: readable_setting(value) for name, value in wire.items() if name in TURN_SETTINGS})

    def wire(self) -> JsonObject:
        named: JsonObject = dict(zip(TURN_SETTINGS, _values_of(self), strict=True))
        for name in NEW_SETTINGS:
            if named[name] is None:
                del named[name]
        return named

    def changed(self, changes: JsonMapping) -> TurnSettings:
        """With the fields named in `changes` set; a new model forgets a window set for the old one."""
        known = {name: readable_setting(value) for name, value in changes.items() if name in TURN_SETTINGS}
        if "model" in known and known["model"] != self.model:
            known.setdefault("window", None)
        return replace(self, **known)

    @property
    def context_window(self) -> int | None:
        return context_window(self.model, self.window)

    @property
    def full_access(self) -> bool:
        """Whether nothing confines what the task runs."""
        return bool(self.sandbox_policy["mode"] == "danger-full-access")


class SettingsChanges(TypedDict, total=False):
    """The settings that an operation may name, in their wire form: those that change."""

    cwd: str
    approval_policy: str
    sandbox_policy: JsonMapping
    model: str
    model_provider: str
    effort: str | None
    summary: str
    verbosity: str | None
    personality: str | None
    collaboration_mode: JsonObject | None
    item_events: str | None


TURN_SETTINGS: Mapping[str, Setting] = {spec.name: spec.metadata["setting"] for spec in fields(TurnSettings)}
NEW_SETTINGS: Mapping[str, None] = {name: None for name, each in TURN_SETTINGS.items() if each.later}
"""Settings that logs and snapshots state only where they are set."""
_values_of = attrgetter(*TURN_SETTINGS)
NAMED_BY_OPS: Final = tuple(name for name, each in TURN_SETTINGS.items() if each.named_by)
GUARDED: Final = frozenset(name for name, each in TURN_SETTINGS.items() if each.guarded)


def _of_turns() -> tuple[str, ...]:
    """Those that are always set before those that are left out while they are None."""
    named = [spec for spec in fields(TurnSettings) if TURN_SETTINGS[spec.name].named_by == "turns"]
    return tuple(spec.name for spec in sorted(named, key=lambda spec: spec.default is None))


OF_TURNS: Final = _of_turns()
"""The settings that a turn brings along, in the order in which a log states them."""


def readable_setting(value: JsonValue) -> JsonValue:
    """A setting so long that an earlier version stored it beside its entry is none that can be used."""
    if value is None or type(value) is str:
        return value
    return f"[{value['bytes']} bytes]" if is_reference(value) else value


@record
class TreeRules:
    """The rules for every agent of a tree, as settled when its root was made.

    `slots` and `spawned` are the limits that the tree begins with. They stand beside the tree's counters,
    where they can be raised, and are checked by the commit that debits.
    """

    slots: int = 8
    spawned: int = 200
    depth: int = 4
    """Generations below the root."""
    autosubmit: bool = True
    """Whether a child's result wakes an idle parent."""
    await_floor_s: float = 300.0
    await_cap_s: float = 1800.0
    watchdog_floor_s: float = 30.0
    watchdogs: int = 16
    """Watchdogs that one agent may keep."""
    budgets: Mapping[str, int] = field(default_factory=dict)
    """The tree's budgets at first: `tokens`, `cost` (millionths), `requests`, `wall` (milliseconds)."""

    @classmethod
    def of(cls, wire: JsonMapping) -> TreeRules:
        known = {spec.name for spec in fields(cls)}
        return cls(**{name: value for name, value in wire.items() if name in known})

    def wire(self) -> JsonObject:
        return {spec.name: getattr(self, spec.name) for spec in fields(self)}


@record
class HistoryHead:
    """A person's history of prompts: its id, and how many entries were ever written."""

    log_id: int = 0
    count: int = 0


NO_HISTORY = HistoryHead()


MARK_BYTES = 256
"""Bytes that are read of a mark's file."""


@record
class WorkspaceMark:
    """The mark that tells a session's folder from another at the same path: a random id in its own file."""

    path: str
    """The folder."""
    file: str
    id: str


@record
class FolderSetup:
    """The script that prepares a portable folder, as it was when the session's tree was made.

    The text is part of the log: what an agent makes of the file that it came from is never run.
    """

    script: str
    network: bool = False
    """Whether it reaches the network."""
    timeout_ms: int = 600_000
    origin: str = ""
    """The file or the setting that it came from, for people."""


_read_setup, _write_setup = reader_of(FolderSetup), writer_of(FolderSetup)


def _setup_of(wire: JsonMapping | None) -> FolderSetup | None:
    return None if wire is None else _read_setup(wire)


def _setup_wire(setup: FolderSetup | None) -> JsonObject | None:
    return None if setup is None else _write_setup(setup)


@record
class PortableFolder:
    """A folder that any worker makes: fixed when its session is made."""

    root: str
    """The folder below which every worker of the pool makes it (`workspace.root`)."""
    name: str
    include: tuple[str, ...] = field(default=(), metadata=LIST)
    """Globs of ignored files that are recorded all the same."""
    exclude: tuple[str, ...] = field(default=(), metadata=LIST)
    """Globs of files that are never recorded."""
    source: JsonMapping | None = None
    """The place that its first content is fetched from, by the worker that makes it first; None: the log
    names its first snapshot, or it begins empty."""
    ignored: tuple[str, ...] = field(default=(), metadata=LIST)
    """Rules of the person's own, which the folder does not have: weaker than those that it has."""
    untold: bool = False
    """The model is not told of the folder's own instructions when the session is made: they are read from its
    first snapshot."""
    setup: FolderSetup | None = field(default=None, metadata=form(read=_setup_of, write=_setup_wire))
    """The script that runs in it after it was made, before the first call that needs it."""

    def path(self, tree: TreeId) -> str:
        """The folder's path, on every machine."""
        return f"{self.root.rstrip('/')}/{tree}/{self.name}"


read_portable, _write_portable = reader_of(PortableFolder), writer_of(PortableFolder)


def portable_wire(folder: PortableFolder | None) -> JsonObject | None:
    """As it stands among the facts, whose field says what it is."""
    return None if folder is None else _write_portable(folder)


Origin: TypeAlias = Literal["spawn", "fork"]


@record
class Fact:
    """Where a fact comes from in a session that goes on with another one's log, and how it is stored."""

    forked: bool = False
    """Whether a fork has that of its source, unless the command line names another."""
    imported: Literal["file", "owner", "new"] = "file"
    """The fact of an imported session. `file`: the file's. `owner`: the file's, but the importer's own where
    the file is a stranger's. `new`: set as for each session that is created."""
    later: bool = False
    """Whether logs and snapshots state it only where it is not its default: those of earlier versions have
    none."""
    empty_text: bool = False
    """Whether its None is an empty text in a log and in a snapshot."""


def _fact(
    imported: Literal["file", "owner", "new"] = "file",
    *,
    forked: bool = False,
    later: bool = False,
    empty_text: bool = False,
) -> Mapping[str, Fact]:
    return {"fact": Fact(forked, imported, later, empty_text)}


@record
class SessionFacts:
    """The facts of a session that are fixed when it is made.

    This is the list of facts: a new one says here whether forks and imports take it over.
    """

    session_id: SessionId = field(default=SessionId(""), metadata=_fact("new"))
    tree_id: TreeId = field(default=TreeId(""), metadata=_fact("new"))
    agent_id: AgentId = field(default=AgentId(0), metadata=_fact("new"))
    pool: str = field(default="default", metadata=_fact("new"))
    base_instructions: str | None = field(default=None, metadata=_fact(forked=True, empty_text=True))
    """None: Dendro's own."""
    rollout_path: str | None = field(default=None, metadata=_fact("new", empty_text=True))
    """None: the session has no file."""
    on_user_input: Literal["replace", "steer"] = field(default="replace", metadata=_fact(forked=True))
    """The effect of input on a running task: end it and start anew, or join it."""
    approval_timeout_ms: int | None = field(default=None, metadata=_fact(forked=True))
    """None: approvals wait for ever."""
    workspace: WorkspaceMark | None = field(default=None, metadata=_fact())
    """None: the folder could not be marked, or the pool is one host's and the path says enough."""
    agent_path: str = field(default="0", metadata=_fact())
    """The agent ids from the root down to this session, joined by `/`."""
    parent_session: SessionId | None = field(default=None, metadata=_fact(empty_text=True))
    """None for a root."""
    grandparent_session: SessionId | None = field(default=None, metadata=_fact(empty_text=True))
    """The session whose event queue tells of the parent's inbox; None below a root."""
    origin: Origin | None = field(default=None, metadata=_fact(empty_text=True))
    """The way an agent came to be."""
    born_in: SubmissionId | None = field(default=None, metadata=_fact(empty_text=True))
    """The parent's task that made the agent: the id of the events that tell of the agent."""
    helper_call: CallId | None = field(default=None, metadata=_fact(empty_text=True))
    """The `spawn_subagent` call that waits for the agent; such an agent makes no agents itself."""
    agents: bool = field(default=False, metadata=_fact("owner", forked=True))
    """Whether the model is offered the tools that make agents."""
    tree_rules: TreeRules = field(default_factory=TreeRules, metadata=_fact("owner"))
    web_search: bool = field(default=False, metadata=_fact("owner", forked=True, later=True))
    """Whether the model is offered the search that its provider runs itself."""
    view_image: bool = field(default=True, metadata=_fact("owner", forked=True, later=True))
    """Whether the model may look at image files of the machine."""
    update_plan: bool = field(default=True, metadata=_fact("owner", forked=True, later=True))
    """Whether the model is offered the tool that shows the steps of its work."""
    apply_patch: bool = field(default=True, metadata=_fact("owner", forked=True, later=True))
    """Whether the model is offered the tool that edits files by patches."""
    patch_freeform: bool = field(default=False, metadata=_fact("owner", forked=True, later=True))
    """Whether `apply_patch` is offered as a free-form tool."""
    unified_exec: bool = field(default=False, metadata=_fact("owner", forked=True, later=True))
    """Whether `exec_command` and `write_stdin` are offered in the place of `shell`."""
    portable: PortableFolder | None = field(default=None, metadata=_fact(later=True))
    """The folder that any worker makes; None: the session works in a folder that is there."""
    client_tools: ClientTools | None = field(default=None, metadata=_fact("owner", later=True))
    """The tools that the client of a root brings along."""
    imported_from: str | None = field(default=None, metadata=_fact("new", later=True))
    """The file that the session was imported from, as its machine names it; None for a session of no file."""
    behalf: Sender | None = field(default=None, metadata=_fact(later=True))
    """The one who gave the task of the root in which the agent was made, or the agent above it."""

    @classmethod
    def of(cls, wire: JsonMapping) -> SessionFacts:
        known = {spec.name for spec in fields(cls)}
        given = {name: value for name, value in wire.items() if name in known}
        if "tree_rules" in given:
            given["tree_rules"] = TreeRules.of(given["tree_rules"])
        if given.get("workspace"):
            given["workspace"] = WorkspaceMark(**given["workspace"])
        if given.get("portable"):
            given["portable"] = read_portable(given["portable"])
        if given.get("client_tools"):
            given["client_tools"] = ClientTools.of(given["client_tools"])
        if "behalf" in given:
            given["behalf"] = sender_of(given["behalf"])
        return cls(**{**given, **{name: given[name] or None for name in FACTS_EMPTY if name in given}})

    def wire(self) -> JsonObject:
        plain = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        plain["workspace"] = asdict(self.workspace) if self.workspace else None
        plain["portable"] = portable_wire(self.portable)
        plain["client_tools"] = self.client_tools.wire() if self.client_tools else None
        plain["tree_rules"] = self.tree_rules.wire()
        plain["behalf"] = sender_wire(self.behalf)
        plain |= {name: "" for name in FACTS_EMPTY if plain[name] is None}
        return {name: value for name, value in plain.items() if value != USUAL_FACTS.get(name, _STATED)}

    def within(self, path: str) -> str | None:
        """The path in the portable folder that an absolute one leads to, "" for the folder.

        None without such a folder, and for what lies elsewhere.
        """
        if self.portable is None:
            return None
        top, named = self.portable.path(self.tree_id), posixpath.normpath(path)
        if named == top:
            return ""
        return named.removeprefix(f"{top}/") if named.startswith(f"{top}/") else None

    @property
    def is_root(self) -> bool:
        return self.agent_id == 0

    @property
    def ancestors(self) -> tuple[int, ...]:
        """The agent ids above this one, the root's first."""
        return tuple(int(part) for part in self.agent_path.split("/")[:-1])

    @property
    def depth(self) -> int:
        """Generations below the root."""
        return len(self.ancestors)


FACTS: Mapping[str, Fact] = {spec.name: spec.metadata["fact"] for spec in fields(SessionFacts)}
FORKED_FACTS: Final = tuple(name for name, each in FACTS.items() if each.forked)
USUAL_FACTS: Mapping[str, object] = {
    spec.name: spec.default for spec in fields(SessionFacts) if FACTS[spec.name].later
}
"""Facts that logs and snapshots state only where they are not these."""
_STATED = object()
"""Equal to no value: the other facts are always stated."""
FACTS_EMPTY: Final = tuple(name for name, each in FACTS.items() if each.empty_text)
"""Facts whose None is an empty text in a log and in a snapshot."""


HELD_WAIT_S = 5.0
"""The longest wait for a model provider that a worker sits out. A longer one is a timer, and nobody holds the
session meanwhile."""


Signing: TypeAlias = Literal["off", "wanted", "required"]
"""Whether answers of people have to be signed."""


@record
class Rules:
    """The worker's side of a decision."""

    stream_max_retries: int = 5
    request_max_retries: int = 4
    auto_compact_limit: int | None = None
    """Tokens; None is 90 % of the window."""
    show_raw_reasoning: bool = False
    plan_model: str | None = None
    """The model of planning sessions; None: the session's. The effort likewise."""
    plan_effort: str | None = None
    review_model: str | None = None
    """The model of code reviews; None: the session's."""
    parallel_safe: frozenset[str] = frozenset()
    """Tool names whose calls may run together."""
    repeatable: frozenset[str] = frozenset()
    """Tool names whose calls may run again after a crash (they only read)."""
    folder_free: frozenset[str] = frozenset()
    """Tool names whose calls need nothing of the session's folder."""
    signed_answers: Signing = "off"
    """Whether an answer is taken that nobody has signed."""
    signed_in: Mapping[str, Signing] = field(default_factory=dict)
    """The same for work that somebody of a namespace has given, by its name; the machine's own is `home`."""

    def signing(self, behalf: Sender | None) -> Signing:
        """Whether answers have to be signed in work that a sender has given, as the log says."""
        namespace = behalf.namespace if behalf is not None else ""
        return self.signed_in.get(namespace or "home", self.signed_answers)


# ── windows ───────────────────────────────────────────────────────────────────────────────────────
# Context windows of models, in tokens.


_WINDOWS = (
    ("codex-mini-latest", 200_000),
    ("gpt-5", 272_000),
    ("o3", 200_000),
    ("o4-mini", 200_000),
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
)
"""By the beginning of a model's name."""


def context_window(model: str, configured: int | None = None) -> int | None:
    """The model's window in tokens; None when the model is not known (then nothing compacts by itself)."""
    return _window(model) if configured is None else configured


@lru_cache(maxsize=64)
def _window(model: str) -> int | None:
    for prefix, window in _WINDOWS:
        if model.startswith(prefix):
            return window
    return None
