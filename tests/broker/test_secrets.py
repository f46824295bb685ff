"""Texts that stand beside the log: written with their submission, bounded, and gone with a commit."""

from __future__ import annotations

import pytest

from orchestrator.broker.broker import Broker
from orchestrator.broker.connection import ScriptCall
from orchestrator.broker.errors import Corrupt, SecretsFull, SubmissionConflict
from orchestrator.broker.records import Submit
from orchestrator.broker.script_requests import SECRETS
from orchestrator.core.ids import SessionId
from orchestrator.core.secrets import SET_APART, secret_name
from tests.broker.actors import Backend, RecordingConnection, created, everything
from tests.broker.families import root_of

MOST = int(SECRETS["most"])


def answer(session: SessionId, id: str, payload: bytes = b"op", secret: bytes = b"texts") -> Submit:
    return Submit(session, "client", id, payload, SET_APART, secret=secret)


async def test_texts_stand_beside_the_queue_from_the_submission_on(broker: Broker) -> None:
    root = await root_of(broker)
    await broker.commits.submit(answer(root.session, "a1"))
    entry = (await broker.logs.read_sq(root.session))[-1]
    assert (entry.kind, entry.payload) == (SET_APART, b"op")
    assert await broker.requests.secret(root.tree, secret_name("client", "a1")) == b"texts"
    assert await broker.requests.secret(root.tree, secret_name("client", "a2")) == b""


async def test_texts_are_written_in_the_script_that_queues_their_submission(backend: Backend) -> None:
    connection = RecordingConnection(backend.connect())
    broker = backend.broker(connection=connection)
    session = await created(broker)
    connection.calls.clear()
    await broker.commits.submit(answer(session, "a1"))
    assert [one.script.name for one in connection.calls if isinstance(one, ScriptCall)] == ["submit"]
    await broker.aclose()


async def test_client_that_answers_twice_gets_the_first_answer_and_another_text_is_an_error(
    broker: Broker,
) -> None:
    root = await root_of(broker)
    await broker.commits.submit(answer(root.session, "a1"))
    name = secret_name("client", "a1")
    await root.does(secrets_dropped=(name,))
    assert (await broker.commits.submit(answer(root.session, "a1"))).duplicate
    assert await broker.requests.secret(root.tree, name) == b"", "what was dropped is not written again"
    with pytest.raises(SubmissionConflict):
        await broker.commits.submit(answer(root.session, "a1", b"another proof", b"other texts"))


async def test_commit_of_any_agent_of_the_tree_drops_texts(broker: Broker) -> None:
    root = await root_of(broker)
    child = await root.spawns(1)
    for id in ("a1", "a2"):
        await broker.commits.submit(answer(root.session, id))
    await child.does(secrets_dropped=(secret_name("client", "a1"),))
    assert await broker.requests.secret(root.tree, secret_name("client", "a1")) == b""
    assert await broker.requests.secret(root.tree, secret_name("client", "a2")) == b"texts"


async def test_commit_that_is_refused_drops_nothing(broker: Broker) -> None:
    root = await root_of(broker)
    await broker.commits.submit(answer(root.session, "a1"))
    name = secret_name("client", "a1")
    marked = {"cancel:1": b"x"}
    await root.does(summary=marked)
    await root.refused(unless_flagged=("cancel:1",), secrets_dropped=(name,))
    assert await broker.requests.secret(root.tree, name) == b"texts"


async def test_texts_are_forgotten_a_day_after_the_last_of_them(broker: Broker) -> None:
    root = await root_of(broker)
    await broker.commits.submit(answer(root.session, "a1"))
    await broker.command("PEXPIRE", broker.keys.secrets(root.tree), 3_600_000)
    await broker.commits.submit(answer(root.session, "a2"))
    left = await broker.command("PTTL", broker.keys.secrets(root.tree))
    assert isinstance(left, int)
    assert 86_000_000 < left <= 86_400_000, "23 hours later another one came"


async def test_tree_has_only_so_many_texts_apart_and_says_so(broker: Broker) -> None:
    root = await root_of(broker)
    for n in range(MOST):
        await broker.commits.submit(answer(root.session, f"a{n}"))
    with pytest.raises(SecretsFull, match="has 64 answers that no worker has read"):
        await broker.commits.submit(answer(root.session, "one more"))
    assert len(await broker.logs.read_sq(root.session)) == MOST + 1
    with pytest.raises(SecretsFull):
        await broker.requests.keep_secret(await broker.logs.place(root.session), "99-0", "another", b"x")
    await broker.requests.keep_secret(
        await broker.logs.place(root.session), "99-0", secret_name("client", "a1"), b"again"
    )
    await root.does(secrets_dropped=(secret_name("client", "a0"),))
    await broker.commits.submit(answer(root.session, "one more"))


async def test_texts_that_came_in_clear_do_not_come_back_behind_the_commit_that_dropped_them(
    broker: Broker,
) -> None:
    root = await root_of(broker)
    place = await broker.logs.place(root.session)
    await broker.requests.keep_secret(place, "1-0", "n", b"texts")
    assert await broker.requests.secret(root.tree, "n") == b"texts"
    await root.does(cursor="1-0", secrets_dropped=("n",))
    await broker.requests.keep_secret(place, "1-0", "n", b"texts")
    assert await broker.requests.secret(root.tree, "n") == b""


async def test_texts_go_with_their_tree(backend: Backend, broker: Broker) -> None:
    root = await root_of(broker)
    await broker.commits.submit(answer(root.session, "a1"))
    root.cursor = "2-0"
    await root.parks()
    await broker.trees.delete_tree(await broker.logs.heads([root.session]))
    left = await everything(backend.look())
    assert not [key for key in left if b"secrets" in key or root.session.encode() in key]


async def test_key_that_holds_something_else_is_named_before_anything_is_written(
    broker: Broker,
) -> None:
    root = await root_of(broker)
    await broker.command("SET", broker.keys.secrets(root.tree), b"x")
    with pytest.raises(Corrupt, match="secrets"):
        await broker.commits.submit(answer(root.session, "a1"))
    with pytest.raises(Corrupt, match="secrets"):
        await root.does(secrets_dropped=("n",))
    assert len(await broker.logs.read_sq(root.session)) == 1
    await root.does()
