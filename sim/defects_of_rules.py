"""Defects that rules of their own stand against: order, marks, evidence, what others are told, trust."""

from __future__ import annotations

from typing import Any

from orchestrator.core import decide, evolve, lines, outstanding, snapshot, user_turns
from orchestrator.core.calls import Call, ClientToolWork, Mcp, UserInputWork, approval_policy, ask
from orchestrator.core.decide import agent, call, call_end, mail_delivery, request, takeover, task
from orchestrator.core.decide.draft import Draft
from orchestrator.core.frozen import replace
from orchestrator.core.modes import Proposal
from orchestrator.runtime import lookups, model_request, runner, sq_entries
from orchestrator.runtime.renewal import Leases
from orchestrator.runtime.worker import Worker
from sim.mutant import Mutant, lua, swapped, text


def _forgets_outcomes(real: Any) -> Any:
    return lambda state, *place: real(replace(state, outcome=None), *place)


DEFECTS = (
    Mutant(
        "plan mode writes",
        "a task in plan mode keeps the sandbox of the session",
        swapped(task, "task_settings", lambda real: lambda settings: settings),
    ),
    Mutant(
        "folders stay relative",
        "a folder that is named from the session's own is looked for wherever the worker is",
        swapped(task, "_located", lambda real: lambda changes, folder: changes),
    ),
    Mutant(
        "plans stay in the message",
        "in plan mode the blocks are not cut out of what the agent says",
        swapped(request, "proposal", lambda real: lambda said: Proposal(said, None)),
    ),
    Mutant(
        "plan mode hears old approvals",
        "what was approved for the session before runs in plan mode too",
        text(call, "_approved", " or plans(draft.task.settings)", ""),
        "approvals",
    ),
    Mutant(
        "signature counts again",
        "a signature under an answer decides a later request of the same call, too",
        text(call, "counted_signature", "<= max(earlier, default=0)", "< 0"),
        test="tests/core/test_core_approvals.py"
        "::test_signature_of_a_confined_run_does_not_allow_the_one_without_the_sandbox",
    ),
    Mutant(
        "signature for any request",
        "a signature under an answer counts for another request of the same call, too",
        text(call, "counted_signature", "(*about, asked.request)", "(*about, signature.request)"),
        test="tests/core/test_core_approvals.py"
        "::test_signature_of_a_confined_run_does_not_allow_the_one_without_the_sandbox",
    ),
    Mutant(
        "signature under any decision",
        "a worker takes a signature for an answer whatever decision it is under",
        text(sq_entries, "_checked", "if holds or (", "if given.key or ("),
        "signed",
    ),
    Mutant(
        "unsigned approvals count",
        "where approvals have to be signed, one that nobody has signed counts",
        text(call, "needs_signature", 'signing(state.behalf) == "required"', 'signing(None) == "none"'),
        "signed",
    ),
    Mutant(
        "personality is forgotten",
        "the turn's context does not say which personality is in force",
        text(
            lines.ContextLine, "of", "if value is not None", 'if value is not None and name != "personality"'
        ),
    ),
    Mutant(
        "last input first",
        "of several inputs that wait the last one begins",
        text(
            task,
            "start_next",
            "begin_task(draft, state.queue[0])",
            "begin_task(draft, state.queue[-1])",
        ),
    ),
    Mutant(
        "queued input is dropped",
        "when one of several inputs that wait begins, the others are forgotten",
        text(evolve, "_task_begun", "*state.queue[place + 1 :]", ""),
    ),
    Mutant(
        "words to a closed root are dropped",
        "a message to the root that meets a closed session is answered with nothing",
        text(mail_delivery, "publish_undelivered", "draft.add(e.event(id, error))", "pass"),
        "several",
    ),
    Mutant(
        "words to ended agents are dropped",
        "a message to an agent that was cancelled first is answered with nothing",
        text(mail_delivery, "publish_undelivered", "draft.tree.publish(", "("),
        test="tests/core/test_tree_mail.py"
        "::test_person_is_told_at_the_root_of_a_message_to_an_agent_that_was_cancelled_first",
    ),
    Mutant(
        "failed responses used nothing",
        "what a response used that failed is not counted in its session",
        text(evolve, "_tokens_lost", "if usage else state", "if False else state"),
    ),
    Mutant(
        "a timer that is gone raises",
        "`fire` compares the moment of a timer that somebody else has fired or cleared",
        lua("fire", "if not at or tonumber(at) > now", "if tonumber(at) > now"),
        "watchdogs",
    ),
    Mutant(
        "marks stop nothing",
        "`commit` does not look whether an agent was cancelled meanwhile",
        lua("_commit_refusals", "for _, field in ipairs(unless_marked) do", "for _, field in ipairs({}) do"),
    ),
    Mutant(
        "cancelled above first",
        "an agent is reported canceled before those below it have ended",
        text(agent, "come_to_rest", "elif tree.ending_children or", "elif"),
        "ends",
    ),
    Mutant(
        "servers' calls run again",
        "a call of an MCP server that was lost with its worker is started anew",
        text(takeover, "_judge", "or call.repeatable or", "or call.kind == 'mcp' or"),
        "servers",
    ),
    Mutant(
        "servers' calls are never asked about",
        "the policy that asks about everything lets calls of MCP servers run",
        text(Mcp, "judged", "or self.read_only or", "or True or"),
        "servers",
    ),
    Mutant(
        "an allowed prefix allows destruction",
        "a command that looks destructive runs unasked if its prefix was allowed",
        text(approval_policy, "_remembered", "if _risk(command):", "if False:"),
        "approvals",
    ),
    Mutant(
        "lost calls of servers end unseen",
        "no event tells that a call of an MCP server was lost with its worker",
        text(Call, "broken_off", "PatchWork() | CustomWork() | McpWork() | MergeWork()", "PatchWork()"),
        "servers",
    ),
    Mutant(
        "every end is proved",
        "a new holder does not note that nobody saw the lost one's commands end",
        text(takeover, "took_over", 'draft.add(f.AgentChanged({"evidence": "presumed"}))', "pass"),
        "ends",
    ),
    Mutant(
        "only one is told",
        "of those who watch an agent the first is told, and nobody else",
        lua(
            "_commit_writes",
            "for _, watcher in ipairs(outcome.watchers) do tell(",
            "for _, watcher in ipairs({outcome.watchers[1]}) do tell(",
        ),
    ),
    Mutant(
        "decided requests stay open",
        "the fleet's queue keeps requests for approval that were decided",
        lua(
            "_commit_writes",
            "for _, key in ipairs(approvals_close) do",
            "for _, key in ipairs({}) do",
        ),
    ),
    Mutant(
        "lost look-ups are forgotten",
        "a new holder takes a look-up that was accepted before its claim for one that was answered",
        text(outstanding, "_lookups", "for lookup in state.lookups:", "for lookup in state.lookups[1:]:"),
    ),
    Mutant(
        "prompts are kept twice",
        "a prompt whose worker was lost before it was recorded is added to the history again",
        lua("add_to_history", "if s['k:' .. key] then return {'DUP', num(s['k:' .. key]), now} end", ""),
        test="tests/broker/test_history.py::test_prompt_that_is_added_twice_under_one_key_is_kept_once",
    ),
    Mutant(
        "pictures are left out",
        "the event that tells what somebody said leaves its pictures out",
        text(user_turns, "user_message_event", "images=images or None", "images=None"),
    ),
    Mutant(
        "earlier answers count",
        "an answer that was given to a question counts for the next one about the same call",
        text(
            call,
            "_meant",
            "return [call for call in named if call.asked_seq <= seen_seq]",
            "return named",
        ),
        "reruns",
    ),
    Mutant(
        "answered questions stay listed",
        "the answer to questions does not take them off the fleet's queue",
        text(call, "_end", "draft.close_approval(call.call_id)", "pass"),
        "asks",
    ),
    Mutant(
        "questions are settled by nobody",
        "the log does not say who answered questions",
        text(
            call,
            "_end",
            "draft.add(seen.told(answer))",
            "pass",
        ),
        "asks",
    ),
    Mutant(
        "clients that are gone hold turns for ever",
        "a call of a client's tool waits as long as people are waited for",
        text(
            call,
            "ask_out",
            "work.most_ms(draft.state.facts.approval_timeout_ms)",
            "draft.state.facts.approval_timeout_ms",
        ),
        "asks",
    ),
    Mutant(
        "failed calls of clients' tools are told as done",
        "clients are told that a client's tool has answered, whatever it said",
        text(ClientToolWork, "end_events", "end.decision == ANSWERED", "True"),
        "asks",
    ),
    Mutant(
        "images of clients' tools are told to the model alone",
        "clients are told the texts of a client's tool, and none of its images",
        text(ClientToolWork, "end_events", "end.output if isinstance(end.output, tuple) else None", "None"),
        "asks",
    ),
    Mutant(
        "models are shown images that are none",
        "an image of a client's tool is taken whatever it holds",
        text(ask, "_shown", "check_image_url(part.image_url)", "pass"),
        "asks",
    ),
    Mutant(
        "secrets stand in the log",
        "the log has secret answers as it has all others",
        text(UserInputWork, "settled", "(NOT_KEPT,) if id in hides else", ""),
        "asks",
    ),
    Mutant(
        "secrets outlive their turns",
        "the end of a turn leaves its secret answers where they are",
        text(Draft, "end_task", "self.drop_secret(secret.name)", "pass"),
        "asks",
    ),
    Mutant(
        "secrets of earlier answers count",
        "a request is shown the secret answers of the turn but for the last one",
        text(
            model_request,
            "follow_request",
            "await kept_answers(ports, state)",
            "(await kept_answers(ports, state))[:-1]",
        ),
        "asks",
    ),
    Mutant(
        "secrets that came too late stay",
        "an answer that settles nothing leaves its texts where they are",
        text(call, "answer", "draft.drop_secret(command.secret)", "pass"),
        "asks",
    ),
    Mutant(
        "questions of an ended turn stay listed",
        "the end of a turn withdraws approvals, and no questions",
        text(task, "_close", "if call.phase in ANSWERABLE:", "if call.phase.value != 'asking':"),
        "asks",
    ),
    Mutant(
        "summary in the place of what it sums up",
        "a person who goes back to before a compaction meets the conversation as it is now",
        text(lookups, "_state_after", "session, 0, turn.seq)", "session, 0, end.seq)"),
        "turns",
    ),
    Mutant(
        "words of then are not kept",
        "what people said in a conversation that was put back is lost with its next compaction",
        text(task, "_put_back", "tuple(texts), tuple(instructions)", "(), tuple(instructions)"),
        "turns",
    ),
    Mutant(
        "turns that were left stay known",
        "a person who goes back over a compaction may go on to the turns that lay behind it",
        text(evolve, "_restored", "if fact.response_id in turns:", "if False:"),
        "turns",
    ),
    Mutant(
        "servers' questions outlive their call",
        "a call that ends leaves the question of its server before people",
        text(call_end, "close", "withdraw(draft, call, with_task=with_task)", "pass"),
        "servers",
    ),
    Mutant(
        "answered questions of servers stay listed",
        "the decision on a server's question does not take it off the fleet's queue",
        text(call_end, "decide_elicitation", "draft.close_approval(asked.id)", "pass"),
        "servers",
    ),
    Mutant(
        "servers' questions have no deadline",
        "a question of a server that nobody answers in time stays open",
        text(decide, "_timer_of_task", "if command.id == parts.approval_timer(asked.id) and", "if False and"),
        "servers",
    ),
    Mutant(
        "people's commands leave the sandbox",
        "a command of a person runs unconfined, whatever the session's sandbox is",
        text(
            approval_policy,
            "judged",
            "return Run(sandboxed=not settings.full_access)",
            "return Run(sandboxed=False)",
        ),
        "commands",
    ),
    Mutant(
        "people's commands run again",
        "a command of a person that was lost with its worker is started anew",
        text(takeover, "_judge", "or call.repeatable or", "or call.name == 'user_shell' or"),
        "commands",
    ),
    Mutant(
        "modes confine people's commands",
        "a command of a person runs under the settings of the mode, and not the session's",
        text(
            task,
            "begin_task",
            "settings, command = draft.state.settings",
            "settings, command = task_settings(draft.state.settings)",
        ),
        "commands",
    ),
    Mutant(
        "raised twice",
        "a change of limits that is sent again counts again",
        lua(
            "raise_limits",
            "local fresh = redis.call('HEXISTS', KEYS[1], 'raised:' .. change) == 0",
            "local fresh = true",
        ),
        "budgets",
    ),
    Mutant(
        "renewed for twice as long",
        "`renew` prolongs a lease by two leases",
        lua("renew", "text(now + lease_ms)", "text(now + 2 * lease_ms)"),
    ),
    Mutant(
        "older workers may hold newer sessions",
        "`claim` does not look at the version that a session needs",
        lua("claim", "if num(s.min_core) > core then return {'OLD', num(s.min_core)} end", ""),
    ),
    Mutant(
        "state is not the log's",
        "what a worker remembers of where a call was asked about is off by one",
        text(
            Draft,
            "add",
            "stated(self.state, new, self._seq)",
            "stated(self.state, new, self._seq - 1)",
        ),
        "approvals",
    ),
    Mutant(
        "worker remembers what the log left out",
        "the state of a worker holds texts whole for which the log has references",
        text(Draft, "_append", " and encoded.entry is entry", ""),
    ),
    Mutant(
        "snapshots lose what few sessions have",
        "a snapshot has no look-ups, folders told of, approved plans and earlier turns",
        text(snapshot, "_stored", ", **write_extras(state.extras)", ""),
    ),
    Mutant(
        "snapshot is not the log's",
        "snapshots forget how the last task ended",
        swapped(runner, "encode_snapshot", _forgets_outcomes),
    ),
    Mutant(
        "trust from the answer",
        "a holder trusts its claim from when it heard the answer, and not from when it asked",
        text(Leases, "renew", "sent_at if counted", "self._clock() if counted"),
        "lapses",
    ),
    Mutant(
        "look-ups of two clients are one",
        "the answer to a client's look-up ends another client's of the same id",
        text(
            evolve, "_looked_up", "(asked.id, asked.client) != (fact.id, fact.client)", "asked.id != fact.id"
        ),
        "queues",
    ),
    Mutant(
        "requests outlive trust",
        "a worker does not end the work of a claim that it cannot trust any more",
        text(Worker, "_tick", "runner.lose()", "pass"),
    ),
    Mutant(
        "stands without its texts",
        "`commit` does not look whether Redis still has the texts that were stored for the step",
        lua("commit", " or check_texts()", ""),
        "texts",
    ),
    Mutant(
        "born without its texts",
        "`create` does not look whether Redis still has the texts that were stored for the session",
        lua("create", "if lost then return lost end", ""),
        "heirs",
    ),
    Mutant(
        "texts of a session run out",
        "`create` leaves the texts of a session their end, which they have while nobody has made it",
        lua("create", "for i = 16, 16 + texts do redis.call('PERSIST', KEYS[i]) end", ""),
        "heirs",
    ),
    Mutant(
        "texts of nobody stay",
        "texts that are stored for a session that is never made are kept for ever",
        lua("put_blob", "    redis.call('PEXPIRE', KEYS[key], text(unborn_ms))", ""),
        "heirs",
    ),
)
