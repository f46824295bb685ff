"""`outstanding`: what a state owes now. A restarted worker asks it, and so does a live one."""

from __future__ import annotations

from itertools import islice

from orchestrator.core.calls import Call, Phase
from orchestrator.core.frozen import record
from orchestrator.core.settings import Rules
from orchestrator.core.state import State, Task, lacks_setup, needs_folder

MOST_AT_ONCE = 16
"""Calls that run together: each that was running when its worker was lost takes several entries of the one
commit that takes over."""


@record
class OweRequest:
    """A model request is to be begun, but not before `not_before_ms` (Redis's clock; 0 is now)."""

    not_before_ms: int = 0


@record
class FollowRequest:
    """Request `n` was begun: its stream is to be read."""

    n: int
    epoch: int


@record
class AssessCall:
    """The call's turn has come: it is to be assessed."""

    call_id: str


@record
class RunCall:
    """The call was decided to start under `epoch`: it is to be running."""

    call_id: str
    epoch: int


@record
class AnswerServer:
    """A server's question in the middle of a running call is decided: its server is to hear the decision."""

    id: str
    decision: str


@record
class StopAll:
    """Everything that runs is to be stopped, then `Stopped` decided."""

    reason: str


@record
class FollowProcess:
    """A process lives under `epoch`: its end is awaited, and the claim is kept for it."""

    number: int
    epoch: int
    stopping: bool = False
    """Whether it is to be killed."""


@record
class CloseCalls:
    """The task's work is stopped: open calls are to be closed, and the task ends with the last of them."""


@record
class LookUp:
    """An accepted look-up is to be answered, beside whatever runs; `key` is its name in the state."""

    key: str


@record
class ReadInstructions:
    """The task works in a folder whose instructions its model has not been told."""

    folder: str


@record
class EndChildren:
    """The next of the children that are to end are to be told, or unread mail or input is to be let go."""


@record
class MakeFolder:
    """The folder of a portable session is to be made on the holder's machine, before what needs it."""


@record
class BeginSetup:
    """The session's script has not run in the folder: it is to be begun, before what needs the folder."""


@record
class RunSetup:
    """The script was decided to start under `epoch`: it is to be running."""

    epoch: int


@record
class SaveFolder:
    """The store has not got the folder's changes: it is tried again, and the claim is kept meanwhile."""


_TOLD_FOLDERS = ("user", "plan")
"""Tasks that are told of the instructions of the folder that they work in; a reviewer judges without them."""
MOST_LOOKED_UP = 4
"""Look-ups that run together: each may read folders for seconds."""

Work = (
    LookUp
    | ReadInstructions
    | OweRequest
    | FollowRequest
    | AssessCall
    | RunCall
    | AnswerServer
    | StopAll
    | CloseCalls
    | EndChildren
    | FollowProcess
    | MakeFolder
    | BeginSetup
    | RunSetup
    | SaveFolder
)


def outstanding(state: State, rules: Rules, epoch: int = 0) -> tuple[Work, ...]:
    """The work owed, in the order to start it in; empty when nothing can go on without news.

    `epoch` is the claim of whoever asks: a portable folder is made anew, or looked at, under each.
    """
    owed = _owed(state, rules)
    return owed if state.facts.portable is None else _in_folder(state, rules, owed, epoch)


def _in_folder(state: State, rules: Rules, owed: tuple[Work, ...], epoch: int) -> tuple[Work, ...]:
    """The work of a portable session: nothing that needs the folder begins without it, nor on a full disk."""
    known, unsaved = state.workspace, state.workspace.unsaved
    saving = unsaved is not None and unsaved.trying
    waiting = [work for work in owed if _waits_for_folder(state, rules, work)]
    made, blocked = known.epoch == epoch, unsaved is not None and unsaved.blocked
    unready = made and lacks_setup(state)
    if blocked or unready or not made:
        owed = tuple(work for work in owed if work not in waiting)
    if not made and (waiting or saving):
        return (MakeFolder(), *owed)
    if unready and waiting and known.setting_up == epoch:
        owed = (RunSetup(epoch), *owed)
    elif unready and waiting and not blocked:
        owed = (BeginSetup(), *owed)
    return (SaveFolder(), *owed) if saving else owed


def _waits_for_folder(state: State, rules: Rules, work: Work) -> bool:
    if not isinstance(work, AssessCall | RunCall) or state.task is None:
        return False
    call = state.task.call(work.call_id)
    return call is not None and needs_folder(call, rules)


def _owed(state: State, rules: Rules) -> tuple[Work, ...]:
    telling: tuple[Work, ...] = (EndChildren(),) if state.ends_in_pieces else ()
    return (
        *telling,
        *_lookups(state),
        *(FollowProcess(one.number, one.epoch, one.stopping) for one in state.processes.living),
        *(_of_task(state, state.task, rules) if state.task is not None else ()),
    )


def _lookups(state: State) -> list[Work]:
    """The look-ups to run now, oldest first; those of the history one by one, which keeps their order."""
    found: list[Work] = []
    history = False
    for lookup in state.lookups:
        if not (history and lookup.of_history) and len(found) < MOST_LOOKED_UP:
            found.append(LookUp(lookup.key))
        history = history or lookup.of_history
    return found


def _of_task(state: State, task: Task, rules: Rules) -> tuple[Work, ...]:
    if task.stopping:
        if task.ending:
            return (CloseCalls(),)
        # The task's end is told when nothing of it is left.
        return () if state.processes.stopping else (StopAll(task.stopping),)
    work: list[Work] = [RunCall(call.call_id, call.epoch) for call in task.running]
    work += [AnswerServer(asked.id, asked.decision) for asked in task.elicitations if asked.decision]
    work += [AssessCall(call.call_id) for call in _startable(state, task, rules)]
    if task.request is not None:
        work.append(FollowRequest(task.request.n, task.request.epoch))
    elif not task.calls.any_open and not task.wait and not state.tree.paused:
        told = task.settings.cwd in state.told_folders or state.instructions_to_come
        told = told or task.kind not in _TOLD_FOLDERS
        work.append(OweRequest(task.not_before_ms) if told else ReadInstructions(task.settings.cwd))
    return tuple(work)


def _startable(state: State, task: Task, rules: Rules) -> list[Call]:
    """Calls whose turn it is: in order, one at a time, but for runs of parallel-safe ones."""
    startable: list[Call] = []
    brought = state.facts.client_tools
    for place, call in enumerate(islice(task.calls.open, MOST_AT_ONCE)):
        safe = call.name in rules.parallel_safe or (brought and brought.named(call.name) is not None)
        if place and not safe:
            break
        if call.phase is Phase.PROPOSED:
            startable.append(call)
        if not safe:
            break
    return startable
