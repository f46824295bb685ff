"""Answers whose texts stand beside the log: met in the queue, and read again for a request to the model.

Nothing here is logged but names.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import orjson

from orchestrator.broker.errors import SecretsFull
from orchestrator.broker.records import Place, SqEntry
from orchestrator.core import commands as c
from orchestrator.core import entries as e
from orchestrator.core.decide.draft import Note
from orchestrator.core.frozen import replace
from orchestrator.core.ids import TreeId
from orchestrator.core.secrets import SET_APART, put_back, secret_name
from orchestrator.core.state import State
from orchestrator.protocol.codec import encode_submission, short_id
from orchestrator.protocol.ops import UserInputAnswer
from orchestrator.protocol.submission import Submission
from orchestrator.protocol.wire import JsonMapping, JsonObject
from orchestrator.runtime.intake import command_of
from orchestrator.runtime.patience import patiently
from orchestrator.runtime.ports import Ports
from orchestrator.runtime.runner_context import RunnerContext

NOT_KEPT_ANY_MORE = (
    "the answer's texts are not kept any more: they stand beside the log for a day; what was asked stays "
    "open, answer again"
)


async def with_texts(context: RunnerContext, entry: SqEntry) -> c.Command | Note:
    """The command of an entry, with the texts of an answer that stand beside the queue.

    Texts that came in clear, from an older client, are set apart first: they may be secret.
    """
    name = secret_name(entry.client, entry.submission)
    if entry.kind == SET_APART:
        if not (texts := await _texts(context, name)):
            return Note((e.error(short_id(entry.submission), NOT_KEPT_ANY_MORE),))
        entry = replace(entry, payload=put_back(entry.payload, texts))
        command = command_of(entry)
        return replace(command, secret=name) if isinstance(command, c.Submitted) else command
    command = command_of(entry)
    match command:
        case c.Submitted(op=UserInputAnswer() as op) if op.response.answers:
            return replace(command, secret=await _kept(context, entry.id, name, op), in_clear=True)
        case c.MailArrived(kind="answer", payload={"secret": str(name)}):
            texts = await _texts(context, name)
            response: JsonObject | None = orjson.loads(texts) if texts else None
            return replace(command, payload={**command.payload, "response": response})
    return command


async def _texts(context: RunnerContext, name: str) -> bytes:
    tree = context.claim.tree
    return await context.writing.insist(lambda: context.ports.broker.requests.secret(tree, name)) or b""


async def _kept(context: RunnerContext, sq_id: str, name: str, op: UserInputAnswer) -> str:
    """The name under which the texts stand apart; empty if there is no room: the model reads none then."""
    frame: JsonObject = orjson.loads(encode_submission(Submission(short_id(""), op)))
    texts, claim = orjson.dumps(frame["op"]["response"]), context.claim
    place = Place(claim.session, claim.tree, claim.pool)
    try:
        await context.writing.insist(
            lambda: context.ports.broker.requests.keep_secret(place, sq_id, name, texts)
        )
    except SecretsFull:
        return ""
    return name


async def kept_answers(ports: Ports, state: State) -> Sequence[tuple[str, JsonMapping]]:
    """The answers with secret texts that requests of the task show, by the ids of their calls."""
    told: list[tuple[str, JsonMapping]] = []
    tree = TreeId(state.facts.tree_id)
    for secret in state.task.secrets if state.task is not None else ():
        what = f"session {state.facts.session_id}: an answer"
        read = partial(ports.broker.requests.secret, tree, secret.name)
        texts = await patiently(read, ports.sleep, what)
        if texts:
            told.append((secret.call_id, orjson.loads(texts)))
    return told
