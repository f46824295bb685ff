"""Secret answers on their way through a worker: kept apart, shown while the turn goes on, and gone."""

from __future__ import annotations

import orjson

from orchestrator.broker.records import Place, SqEntry, Submit
from orchestrator.core.commands import MailArrived
from orchestrator.core.ids import SessionId, TreeId
from orchestrator.core.secrets import NOT_KEPT
from orchestrator.model.prompt import ItemDone
from orchestrator.model.provider_errors import FatalKind, FatalModelError, RetryableModelError
from orchestrator.protocol import ops
from orchestrator.protocol.codec import encode_submission
from orchestrator.protocol.ids import SubmissionId
from orchestrator.protocol.plans import RequestUserInputAnswer, RequestUserInputResponse
from orchestrator.protocol.submission import Submission
from orchestrator.runtime.runner import Ended
from orchestrator.runtime.runner_context import RunnerContext
from orchestrator.runtime.sq_entries import with_texts
from tests.runtime.harness import Harness, runner_config
from tests.runtime.players import message

SECRET = "hunter2-hunter2"
QUESTION = {"id": "token", "header": "Token", "question": "Which?", "isOther": True, "isSecret": True}
ASKS = ItemDone(
    {
        "type": "function_call",
        "name": "request_user_input",
        "arguments": orjson.dumps({"questions": [QUESTION]}).decode(),
        "call_id": "c1",
    }
)
ANSWER = ops.UserInputAnswer(
    id="c1", response=RequestUserInputResponse(answers={"token": RequestUserInputAnswer(answers=(SECRET,))})
)


async def asked(harness: Harness) -> SessionId:
    """A parked session whose call waits for a secret."""
    session = await harness.session()
    harness.models.will([ASKS], [message("thanks")])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    return session


async def logged(harness: Harness, session: SessionId) -> bytes:
    return b"".join([stored.payload for stored in await harness.log(session)])


async def kept(harness: Harness, session: SessionId) -> object:
    return await harness.broker.command("EXISTS", harness.broker.keys.secrets(TreeId(session)))


async def test_answer_of_an_older_client_is_served_with_a_warning_and_is_in_no_log(harness: Harness) -> None:
    session = await asked(harness)
    payload = encode_submission(Submission(SubmissionId("a1"), ANSWER))
    await harness.broker.commits.submit(Submit(session, "old-client", "a1", payload))
    assert await harness.run(session) is Ended.PARKED
    (warned,) = await harness.logged_events(session, "warning")
    assert "handed the answer in in clear" in warned["message"]
    assert SECRET in harness.models.outputs()["c1"]
    assert SECRET.encode() not in await logged(harness, session)
    assert not await kept(harness, session)


async def test_texts_of_answers_that_come_too_late_together_all_go(harness: Harness) -> None:
    session = await asked(harness)
    await harness.submit(session, ops.Interrupt(), "stop")
    for id in ("a1", "a2"):
        await harness.submit(session, ANSWER, id)
    assert await kept(harness, session)
    assert await harness.run(session) is Ended.PARKED
    assert not await kept(harness, session)


async def test_answer_whose_texts_are_gone_is_an_error_and_the_question_stays_open(harness: Harness) -> None:
    session = await asked(harness)
    await harness.submit(session, ANSWER, "a1")
    await harness.broker.command("DEL", harness.broker.keys.secrets(TreeId(session)))
    assert await harness.run(session) is Ended.PARKED
    (error,) = await harness.logged_events(session, "error")
    assert "what was asked stays open, answer again" in error["message"]
    await harness.submit(session, ANSWER, "a2")
    assert await harness.run(session) is Ended.PARKED
    assert SECRET in harness.models.outputs()["c1"]


async def test_request_whose_secret_is_gone_says_so_and_is_not_stuck(harness: Harness) -> None:
    session = await asked(harness)
    await harness.submit(session, ANSWER, "a1")
    forget = harness.broker.keys.secrets(TreeId(session))

    async def forgets(args: object) -> None:
        await harness.broker.command("DEL", forget)

    harness.connection.after["commit"] = forgets
    assert await harness.run(session) is Ended.PARKED
    assert orjson.loads(harness.models.outputs()["c1"])["answers"]["token"]["answers"] == [NOT_KEPT]


async def test_error_of_a_provider_that_quotes_its_request_names_no_secret(harness: Harness) -> None:
    session = await harness.session()
    quotes = FatalModelError(FatalKind.BAD_REQUEST, f"cannot read {SECRET!r}", "bad_request")
    harness.models.will([ASKS], [quotes])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    await harness.submit(session, ANSWER, "a1")
    assert await harness.run(session) is Ended.PARKED
    (error,) = await harness.logged_events(session, "error")
    assert NOT_KEPT in error["message"]
    assert SECRET.encode() not in await logged(harness, session)
    assert not await kept(harness, session)


async def test_retried_error_of_a_provider_that_quotes_its_request_names_no_secret(harness: Harness) -> None:
    session = await harness.session()
    quotes = RetryableModelError(f"cannot read {SECRET!r}", delay_s=0.0)
    harness.models.will([ASKS], [quotes], [message("done")])
    await harness.say(session)
    assert await harness.run(session) is Ended.PARKED
    await harness.submit(session, ANSWER, "a1")
    assert await harness.run(session) is Ended.PARKED
    (error,) = await harness.logged_events(session, "stream_error")
    assert NOT_KEPT in error["message"]
    assert SECRET.encode() not in await logged(harness, session)
    assert SECRET not in orjson.dumps(await harness.logged_events(session, "stream_error")).decode()


async def test_answer_that_was_given_at_the_root_reaches_an_agent_with_its_texts(harness: Harness) -> None:
    session = await harness.session()
    await harness.say(session)
    texts = orjson.dumps({"answers": {"token": {"answers": [SECRET]}}})
    claimed = await harness.claimed(session)
    place = Place(session, TreeId(session), claimed.claim.pool)
    await harness.ports.broker.requests.keep_secret(place, "99-0", "kept", texts)
    body = orjson.dumps({"kind": "answer", "id": "c1", "secret": "kept"})
    entry = SqEntry("99-0", "mail", body, "parent", "k1", "", 1, 0)
    context = RunnerContext.of(harness.ports, runner_config({}), claimed)
    command = await with_texts(context, entry)
    assert isinstance(command, MailArrived)
    assert command.payload["response"] == orjson.loads(texts)


async def test_compaction_in_the_turn_that_asked_is_shown_no_secret(harness: Harness) -> None:
    """The window is full when the answer is there; what a compaction says of the conversation is logged."""
    session = await asked(harness)
    full = FatalModelError(FatalKind.CONTEXT_LENGTH_EXCEEDED, "too long", "context_window_exceeded")
    harness.models._turns.clear()
    harness.models.will([full], [message("it was asked for a token")], [message("thanks")])
    await harness.submit(session, ANSWER, "a1")
    assert await harness.run(session) is Ended.PARKED
    first, compaction, *_ = harness.models.prompts[-3:]
    assert SECRET in str(first.input)
    assert compaction.tools == ()
    assert SECRET not in str(compaction.input)
    assert SECRET.encode() not in await logged(harness, session)
