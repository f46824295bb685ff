"""The SQ/EQ over sockets: sessions opened and attached to, everything once, whatever is cut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.core.ids import SessionId
from orchestrator.gateways.sq_eq import parse_first_line
from orchestrator.gateways.wires.addresses import Address
from orchestrator.model.prompt import TextDelta
from orchestrator.protocol.submission import MalformedSubmission
from tests.commit_seed import examples
from tests.doors.sq_eq.client import LINE_LIMIT, LineClient, connect, gateway, opened
from tests.doors.test_app_server_turns import ports_of, working
from tests.runtime.connections import Gate
from tests.runtime.harness import Harness
from tests.runtime.players import calls, message

HELLO = (TextDelta("Hel"), TextDelta("lo."), message("Hello."))


@pytest.fixture
async def address(harness: Harness) -> AsyncIterator[Address]:
    async with working(harness), gateway(ports_of(harness)) as address:
        yield address


def session_of(client: LineClient) -> str:
    return str(client.heard[0]["msg"]["session_id"])


async def test_client_opens_a_session_by_its_first_line_and_runs_a_turn(
    harness: Harness, address: Address
) -> None:
    harness.models.will(HELLO)
    client = await opened(address)
    client.say("u1", "hi")
    await client.until("task_complete")
    assert client.types[:3] == ["session_configured", "task_started", "user_message"]
    numbers = [event["seq"] for event in client.heard]
    assert numbers == sorted(set(numbers))
    client.cut()


async def test_clients_of_one_session_each_get_all_of_it_their_own_answers_included(
    harness: Harness, address: Address
) -> None:
    harness.models.will(HELLO, HELLO)
    one = await opened(address)
    two = await opened(address, session_of(one))
    one.say("u1")
    await asyncio.gather(one.until("task_complete"), two.until("task_complete"))
    two.say("u2")
    await asyncio.gather(one.until("task_complete"), two.until("task_complete"))
    assert one.heard[1:] == two.heard[1:]
    one.cut()
    two.cut()


async def test_client_that_dies_in_a_turn_ends_nothing_and_comes_back_where_it_left(
    harness: Harness, address: Address
) -> None:
    gate = Gate()
    harness.models.will((TextDelta("Hel"), gate, TextDelta("lo."), message("Hello.")))
    watcher = await opened(address)
    client = await opened(address, session_of(watcher))
    client.say("u1")
    last = await client.until("agent_message_delta")
    client.cut()
    gate.open()
    await watcher.until("task_complete")
    back = await opened(address, session_of(watcher), last_event=last["seq"])
    assert back.heard[0]["seq"] == last["seq"]
    await back.until("task_complete")
    assert client.heard[1:] + back.heard[1:] == watcher.heard[1:]
    watcher.cut()
    back.cut()


async def test_every_place_of_a_session_can_be_come_back_to_without_a_gap_or_a_repeat(
    harness: Harness, address: Address
) -> None:
    harness.models.will(HELLO)
    client = await opened(address)
    client.say("u1")
    await client.until("task_complete")
    for at, event in enumerate(client.heard):
        back = await opened(address, session_of(client), last_event=event["seq"])
        missed = client.heard[at + 1 :]
        assert [await back.next() for _ in missed] == missed
        back.cut()
    client.cut()


async def test_events_that_the_queue_keeps_no_more_come_from_the_log_and_have_places_of_their_own(
    harness: Harness, address: Address
) -> None:
    harness.models.will(HELLO)
    client = await opened(address)
    client.say("u1")
    await client.until("task_complete")
    session = session_of(client)
    await harness.broker.command("DEL", harness.broker.keys.eq(session))
    logged = [event for event in client.heard if event["msg"]["type"] != "agent_message_delta"]
    for at, event in enumerate(logged[:-1]):
        back = await opened(address, session, last_event=event["seq"])
        await back.until("task_complete")
        assert back.types[1] == "warning"
        told = [each["msg"] for each in back.heard[2:]]
        assert told == [each["msg"] for each in logged[at + 1 :]]
        again = await opened(address, session, last_event=back.heard[-2]["seq"])
        await again.until("task_complete")
        assert again.types == ["session_configured", "warning", "task_complete"]
        back.cut()
        again.cut()
    client.cut()


@pytest.mark.parametrize("kept", [True, False])
async def test_client_that_comes_back_before_an_answer_sees_the_request_again(
    harness: Harness, address: Address, kept: bool
) -> None:
    harness.models.will((calls("c1", ask=True),))
    client = await opened(address, await harness.session("untrusted"))
    client.say("u1")
    await client.until("exec_approval_request")
    client.cut()
    if not kept:
        await harness.broker.command("DEL", harness.broker.keys.eq(session_of(client)))
    back = await opened(address, session_of(client))
    assert (await back.until("exec_approval_request"))["msg"]["call_id"] == "c1"
    back.send("a1", {"type": "exec_approval", "id": "c1", "decision": "approved"})
    await back.until("task_complete")
    back.cut()


async def test_named_client_that_sends_again_after_a_lost_connection_is_heard_once(
    harness: Harness, address: Address
) -> None:
    harness.models.will(HELLO)
    watcher = await opened(address)
    for _ in range(2):
        client = await opened(address, session_of(watcher), client="deploy-bot")
        client.say("u1")
        client.writer.write_eof()
        await client.rest()
        client.cut()
    await watcher.until("task_complete")
    assert watcher.types.count("task_started") == 1
    watcher.cut()


async def test_client_that_comes_back_with_its_first_line_sets_its_settings_and_no_folder(
    harness: Harness, address: Address, tmp_path: Path
) -> None:
    """The folder is that of a new session: to come back from another one moves no agent."""
    first = await opened(address)
    session = SessionId(session_of(first))
    again = await connect(address)
    op = {"type": "configure_session", "session_id": session, "cwd": str(tmp_path), "model": "another"}
    again.send("c", op)
    await again.until("session_configured")
    harness.models.will(HELLO)
    again.say("u1")
    await again.until("task_complete")
    head = await harness.broker.logs.head(session)
    assert head is not None
    assert (head.summary.get("model"), head.summary.get("cwd") != str(tmp_path)) == ("another", True)
    first.cut()
    again.cut()


async def test_clients_of_two_tokens_that_gave_themselves_one_name_are_each_heard(
    harness: Harness, address: Address
) -> None:
    harness.models.will(HELLO, HELLO)
    watcher = await opened(address)
    for more in ({}, {"auth": "submit"}):
        client = await opened(address, session_of(watcher), client="deploy-bot", **more)
        client.say("u1")
        await watcher.until("task_complete")
        client.cut()
    assert watcher.types.count("task_started") == 2
    watcher.cut()


async def test_reader_follows_and_is_refused_everything_else(harness: Harness, address: Address) -> None:
    harness.models.will(HELLO)
    owner = await opened(address)
    reader = await opened(address, session_of(owner), auth="read")
    reader.say("u1")
    refused = await reader.until("error")
    assert refused["id"] == "u1"
    assert "user_input needs the scope submit, and read has read" in refused["msg"]["message"]
    owner.say("u2")
    await reader.until("task_complete")
    stranger = await connect(address)
    stranger.send("1", "configure_session", auth="read")
    assert "needs the scope submit" in (await stranger.rest())[0]["msg"]["message"]
    for each in (owner, reader, stranger):
        each.cut()


@pytest.mark.parametrize(
    "op",
    [
        {"type": "exec_approval", "id": "c1", "decision": "approved"},
        {"type": "run_user_shell_command", "command": "id"},
    ],
)
async def test_submitter_neither_approves_nor_runs_commands(
    harness: Harness, address: Address, op: dict[str, Any]
) -> None:
    client = await opened(address, auth="submit")
    client.send("a", op)
    refused = await client.until("error")
    assert "needs the scope approve" in refused["msg"]["message"]
    client.cut()


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"junk\n", "not JSON"),
        (b"[]\n", "not a JSON object"),
        (b'{"id":"1","op":{"type":"shutdown"}}\n', "the first line of a connection is a configure_session"),
        (b'{"id":"1","op":{"type":"configure_session","session_id":"nobody"}}\n', "nobody"),
        (b'{"id":"1","op":{"type":"configure_session"},"last_event":3}\n', "needs the session_id"),
        (b'{"id":"1","op":{"type":"configure_session"},"last_event":0}\n', "needs the session_id"),
        (b'{"id":"1","op":{"type":"configure_session"},"client":""}\n', "client: a text of 1 to 200"),
        (
            b'{"id":"1","op":{"type":"configure_session"},"last_response_id":"r"}\n',
            "needs the forked_from_id",
        ),
        (
            b'{"id":"1","op":{"type":"configure_session","session_id":"x"},"last_response_id":"r"}\n',
            "needs the forked_from_id",
        ),
        (b'{"id":"1","op":{"type":"configure_session","session_id":"x"},"last_event":-1}\n', "the seq of an"),
        (b'{"id":"1","op":{"type":"configure_session"},"auth":"wrong"}\n', "the token is not known"),
        (b'{"id":"1","op":{"type":"configure_session"},"auth":7}\n', "a token is expected"),
        (b'{"id":"1","op":{"type":"configure_session"},"with_seq":"yes"}\n', "with_seq: true or false"),
        (b"x" * (1 << 20) + b"xx", "the first line has more than"),
    ],
)
async def test_first_line_that_does_not_do_is_answered_with_the_reason_and_ends_the_connection(
    address: Address, line: bytes, said: str
) -> None:
    client = await connect(address)
    client.raw(line)
    (event,) = await client.rest()
    assert event["msg"]["type"] == "error"
    assert said in event["msg"]["message"]
    client.cut()


async def test_garbage_behind_the_first_line_is_answered_line_by_line(address: Address) -> None:
    client = await opened(address)
    client.raw(b"junk\n" + b"x" * (LINE_LIMIT + 2) + b'\n{"id":"9","op":{"type":"no_such"}}\n')
    found = [(await client.until("error"))["msg"]["message"] for _ in range(3)]
    assert found[0].startswith("line 2: not JSON")
    assert found[1].startswith("line 3: longer than")
    assert "no_such" in found[2]
    client.cut()


@settings(max_examples=examples(60), deadline=None)
@given(
    line=st.one_of(
        st.binary(max_size=200),
        st.fixed_dictionaries(
            {"id": st.text(max_size=5)},
            optional={
                "op": st.fixed_dictionaries(
                    {"type": st.sampled_from(["configure_session", "shutdown", ""])},
                    optional={"session_id": st.text(max_size=40), "cwd": st.text(max_size=5)},
                ),
                "auth": st.one_of(st.text(max_size=60), st.none(), st.integers()),
                "last_event": st.one_of(st.integers(), st.text(max_size=5), st.none()),
                "client": st.text(max_size=300),
                "forked_from_id": st.one_of(st.text(max_size=40), st.none(), st.integers()),
                "last_response_id": st.one_of(st.text(max_size=40), st.none(), st.integers()),
            },
        ),
    )
)
def test_any_first_line_is_answered_and_the_gateway_lives(line: bytes | dict[str, Any]) -> None:
    with suppress(MalformedSubmission):
        parse_first_line(line if isinstance(line, bytes) else json.dumps(line).encode())


async def test_client_that_says_nothing_or_half_a_line_holds_up_nobody(
    harness: Harness, address: Address
) -> None:
    silent, half = await connect(address), await connect(address)
    half.raw(b'{"id":"1","op":{"type":"conf')
    harness.models.will(HELLO)
    client = await opened(address)
    client.say("u1")
    await client.until("task_complete")
    for each in (silent, half, client):
        each.cut()


async def test_unix_socket_speaks_lines_too(harness: Harness, tmp_path: Path) -> None:
    harness.models.will(HELLO)
    async with working(harness), gateway(ports_of(harness), f"unix://{tmp_path}/g.sock") as address:
        client = await opened(address)
        client.say("u1")
        await client.until("task_complete")
        client.send("s", "shutdown")
        await client.until("shutdown_complete")
        assert await client.next() is None
        client.cut()


async def test_half_closed_client_gets_its_turn_to_the_end(harness: Harness, address: Address) -> None:
    harness.models.will(HELLO)
    client = await opened(address)
    client.say("u1")
    client.writer.write_eof()
    assert [event["msg"]["type"] for event in await client.rest()][-1] == "task_complete"
    client.cut()


async def test_gateway_that_ends_ends_no_session(harness: Harness) -> None:
    gate = Gate()
    harness.models.will((TextDelta("Hel"), gate, message("Hello.")))
    async with working(harness):
        async with gateway(ports_of(harness)) as address:
            client = await opened(address)
            client.say("u1")
            last = await client.until("agent_message_delta")
        assert await client.next() is None
        gate.open()
        async with gateway(ports_of(harness)) as address:
            back = await opened(address, session_of(client), last_event=last["seq"])
            await back.until("task_complete")
            assert back.types[1] != "agent_message_delta"
            back.cut()
    client.cut()
