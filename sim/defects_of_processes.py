"""Defects of commands that go on behind their calls, and of the reading of scripts."""

from __future__ import annotations

from orchestrator.core import decide, outstanding
from orchestrator.core.calls import approval_policy
from orchestrator.core.calls.approval_policy import DESTRUCTIVE_REASON
from orchestrator.core.decide import agent, call_end, mail_arrival, ops, takeover, task
from orchestrator.tools.commands import bash, safety
from orchestrator.tools.exec import supervisor_process
from orchestrator.tools.exec.worker_processes import LiveProcess, LiveProcesses
from orchestrator.tools.exec_command import WriteStdinTool
from sim.mutant import Mutant, swapped, text

_PLAY, _SCRIPTS = "left_running", "scripts"

DEFECTS = (
    Mutant(
        "an interrupt leaves processes alone",
        "what goes on behind its call is not killed with the turn",
        text(task, "stop", "if reason in KILLING:", "if False:"),
        "processes",
    ),
    Mutant(
        "processes of a lost worker live on",
        "a take-over does not record that the processes are gone",
        text(
            takeover,
            "took_over",
            "lose(draft, processes, WORKER_LOST, shown=command.shown)",
            "pass",
        ),
        "processes",
    ),
    Mutant(
        "a session is given back over its process",
        "a session with a process owes nothing, and its claim is released",
        text(outstanding, "_owed", "for one in state.processes.living", "for one in ()"),
        "processes",
    ),
    Mutant(
        "an end is told to the turn that runs",
        "the end of a process comes under the id of the task that meets it",
        text(call_end, "_over", "e.event(process.turn, over.end)", "e.event(draft.task_id, over.end)"),
        "processes",
    ),
    Mutant(
        "an interrupt kills the first process",
        "of several processes the oldest alone is killed with what stops",
        text(agent, "stop_processes", "tuple(living)", "tuple(living[:1])"),
        _PLAY,
    ),
    Mutant(
        "a replaced task takes its processes along",
        "new input kills what goes on behind its call",
        text(task, "stop", "if reason in KILLING:", "if True:"),
        _PLAY,
    ),
    Mutant(
        "an interrupt of a task that stops kills nothing",
        "a task that is being replaced is interrupted, and its processes live on",
        text(task, "stop", "if reason in KILLING:", "if reason in KILLING and not task.stopping:"),
        _PLAY,
    ),
    Mutant(
        "a configuration leaves processes",
        "what goes on lives on under a new configuration",
        text(ops, "_configure", "    stop_processes(draft)\n", ""),
        _PLAY,
    ),
    Mutant(
        "a shutdown leaves processes of an idle session",
        "a session without a task is closed over its processes",
        text(ops, "_shutdown", "    stop_processes(draft)\n", ""),
        _PLAY,
    ),
    Mutant(
        "a cancel leaves processes of an idle agent",
        "an agent without a task is cancelled, and its processes live on",
        text(mail_arrival, "_begin_canceling", "    agent.stop_processes(draft)\n", ""),
        _PLAY,
    ),
    Mutant(
        "what outlives a stopped call is not stopped",
        "a command that goes on as its task is stopped is no part of what is stopped",
        text(
            call_end,
            "keep_process",
            "if task.stopping or draft.state.closing or draft.state.tree.canceling:",
            "if False:",
        ),
        _PLAY,
    ),
    Mutant(
        "a proof counts for what began behind it",
        "a task is over by a proof that is older than its last process",
        text(takeover, "stopped", "if not draft.state.processes.stopping:", "if True:"),
        _PLAY,
    ),
    Mutant(
        "a cancel drops the takeover",
        "what a lost worker had begun is told as stopped where the takeover meets a cancel",
        text(decide, "_ended", "elif isinstance(refused, c.TookOver):", "elif False:"),
        _PLAY,
        test="tests/core/test_tree_ending.py"
        "::test_cancel_that_refuses_a_takeover_leaves_what_was_begun_in_doubt_and_the_end_presumed",
    ),
    Mutant(
        "input begins while a session is being closed",
        "a session takes input that has still to end what is below it",
        text(ops, "_is_free", " and not draft.state.closing", ""),
        _PLAY,
    ),
    Mutant(
        "last words are lost",
        "what a process said last is not kept for the model",
        text(call_end, "process_finished", "command.over.unread))", '""))'),
        _PLAY,
    ),
    Mutant(
        "last words are read again",
        "what a process said last stays unread",
        text(call_end, "write_stdin", "draft.add(f.ProcessRead(asked.number))", "pass"),
        _PLAY,
    ),
    Mutant(
        "looks repeat",
        "each look tells again what was told before",
        text(
            LiveProcess,
            "take",
            "self._unread.kept(), Capture(KEPT_BYTES)",
            "self._unread.kept(), self._unread",
        ),
        _PLAY,
    ),
    Mutant(
        "typing under other policies",
        "a turn under other policies types to what was started before",
        text(call_end, "_not_writable", "process.rights != rights_of(settings) or ", ""),
        _PLAY,
    ),
    Mutant(
        "processes by number alone",
        "a worker finds the process of another session or claim that has the same number",
        text(
            LiveProcesses,
            "get",
            "self._living.get((claim, number))",
            "next((one for key, one in self._living.items() if key[1] == number), None)",
        ),
        _PLAY,
    ),
    Mutant(
        "a look is none",
        "the half hour counts from a process's beginning, whoever looks",
        text(LiveProcess, "wait", "self._looked_at = self._loop.time()", "pass"),
        _PLAY,
    ),
    Mutant(
        "nobody ends what nobody looks at",
        "a process at which nobody looks lives on",
        text(LiveProcess, "_forgotten", "self.kill()", "pass"),
        _PLAY,
    ),
    Mutant(
        "an idle agent's lost process is proved dead",
        "what was lost while its agent was being cancelled counts as seen",
        text(call_end, "lose", " or draft.state.tree.canceling", ""),
        _PLAY,
    ),
    Mutant(
        "the model hears of no lost process",
        "what is gone with its worker is told to clients alone",
        text(
            call_end,
            "lose",
            'say_to_model(draft, PROCESS_GONE.format(message), SubmissionId(f"process-{lost[0].number}"))',
            "pass",
        ),
        _PLAY,
    ),
    Mutant(
        "the first lost process alone is told",
        "of several processes that are gone the model is told of one",
        text(call_end, "lose", 'message = "\\n".join(lines)', "message = lines[0]"),
        _PLAY,
    ),
    Mutant(
        "refused words count as typed",
        "the model is not told that nothing was typed",
        text(WriteStdinTool, "run", 'output if typed else f"{NOT_TYPED}\\n{output}"', "output"),
        _PLAY,
    ),
    Mutant(
        "thawed supervisors start behind a deadline",
        "a supervisor that stood still starts for a claim whose deadline it has not acted on",
        text(
            supervisor_process._Supervisor,
            "_run",
            "if self._deadlines.get(claim, 0.0) <= _now():",
            "if claim not in self._deadlines:",
        ),
        "thawed",
    ),
    Mutant(
        "late readers are asked again",
        "a reader of scripts that was late is kept, and its late answer is taken for the next one",
        text(bash, "_ask", "except OSError:", "except ConnectionError:"),
        _SCRIPTS,
    ),
    Mutant(
        "a lost reader is not replaced",
        "a script whose reader was lost is not read by another one",
        text(
            bash,
            "ask",
            "        with suppress(OSError):\n            return _ask(kind, source)\n",
            "",
        ),
        _SCRIPTS,
    ),
    Mutant(
        "lost readers are left behind",
        "a reader that was lost or late is not killed",
        text(bash, "_ask", "_reader.end()", "pass"),
        _SCRIPTS,
    ),
    Mutant(
        "readers that do not start are left behind",
        "a reader that does not say that it is there is not killed",
        text(bash._Reader, "__init__", "self.end()", "pass"),
        _SCRIPTS,
    ),
    Mutant(
        "a piece of an answer is taken for all of it",
        "a reader's answer is read once, however much of it comes",
        text(bash._Reader, "_receive", "while len(data) < length:", "if length:"),
        _SCRIPTS,
    ),
    Mutant(
        "lost answers are kept",
        "a script that cost two readers counts as empty, now and later",
        text(
            bash,
            "_beginnings",
            "found = ask(BEGINNINGS, source)",
            "found = []\n    with suppress(OSError):\n        found = ask(BEGINNINGS, source)",
        ),
        _SCRIPTS,
    ),
    Mutant(
        "what nobody can read is destructive",
        "a script that cost two readers is asked about as a destructive one",
        text(safety, "dangers", "fault = fault or found", "destroys = True"),
        _SCRIPTS,
    ),
    Mutant(
        "what nobody can read is harmless",
        "a script that cost two readers counts as one that destroys nothing",
        text(safety, "dangers", "fault = fault or found", "pass"),
        _SCRIPTS,
    ),
    Mutant(
        "scripts in scripts need not be read",
        "a script within another one that cost two readers counts as harmless",
        text(safety, "dangers", "fault = fault or found", "fault = fault or (found if depth == 0 else '')"),
        _SCRIPTS,
    ),
    Mutant(
        "what a script begins with is all of it",
        "the first command of a script alone is looked at",
        text(safety, "dangers", "for below in found]", "for below in found[:1]]"),
        _SCRIPTS,
    ),
    Mutant(
        "unread commands are refused as dangerous",
        "the model is told that a command is dangerous which nobody could read",
        text(
            approval_policy,
            "_judged_risky",
            '"the command is dangerous" if command.dangerous else _risk(command)',
            '"the command is dangerous"',
        ),
        _SCRIPTS,
    ),
    Mutant(
        "unread commands run",
        "nobody is asked about a command that cannot be read",
        swapped(
            approval_policy, "_risk", lambda real: lambda command: command.dangerous and DESTRUCTIVE_REASON
        ),
        _SCRIPTS,
    ),
)
