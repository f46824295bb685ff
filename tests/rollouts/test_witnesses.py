"""Witnesses of a register: what they sign, and what they refuse to sign."""

from __future__ import annotations

import asyncio
import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from aiohttp import web

from orchestrator.rollouts.object_store import Objects
from orchestrator.rollouts.register import Register, Signed, publish
from orchestrator.rollouts.signed_notes import BadNote, Note
from orchestrator.rollouts.witnesses import (
    MOST_STAMP_BYTES,
    Conflict,
    NotWitnessed,
    OnLine,
    Request,
    Witness,
    ask_for_stamp,
    asked,
    checked,
)
from tests.rollouts import bundles as b
from tests.rollouts.test_register import MANY, of

KEY = b.WITNESS.witness_key


def grown(folder: Path, *sizes: int, statements: list[bytes] = MANY) -> tuple[Register, list[Signed]]:
    """A register with checkpoints of some sizes."""
    objects, found = Objects(folder.as_uri()), list[Signed]()
    for before, size in zip((0, *sizes), sizes, strict=False):
        note = publish(objects, "home", of(statements, size, before), b.OPERATOR.signed)
        found.append(Signed.read(note.encode()))
    return Register(objects, "home"), found


def witness(folder: Path) -> Witness:
    return Witness(folder / "seen.json", b.WITNESS, [b.OPERATOR.key])


def test_witness_signs_what_continues_the_checkpoint_that_it_signed(tmp_path: Path) -> None:
    register, signed = grown(tmp_path / "r", 3, 9, 9)
    for old, one in ((0, signed[0]), (3, signed[1]), (9, signed[2])):
        request = Request.read(Request.of(register, one, old).encode())
        line = witness(tmp_path).sign(request, 1_795_463_400)
        note = Note(one.note.text, (*one.note.signatures, line))
        assert note.signed_by([KEY]) == {KEY: 1_795_463_400}
        assert checked(note.encode().decode().split("\n")[-2], one, KEY) == note
    assert witness(tmp_path).size(b.ORIGIN) == 9
    assert (tmp_path / "seen.json").stat().st_mode & 0o077 == 0


def test_witness_refuses_a_fork_of_the_register(tmp_path: Path) -> None:
    register, [before, later] = grown(tmp_path / "r", 3, 9)
    other, [_, fork, longer] = grown(
        tmp_path / "fork", 3, 9, 12, statements=[*MANY[:2], *(b"another\n" for _ in range(20))]
    )
    own = witness(tmp_path)
    own.sign(Request.of(register, before, 0), 1)
    with pytest.raises(NotWitnessed, match="does not continue size 3"):
        own.sign(Request.of(other, fork, 3), 2)
    own.sign(Request.of(register, later, 3), 3)
    with pytest.raises(NotWitnessed, match="another root"):
        own.sign(Request.of(other, fork, 9), 4)
    with pytest.raises(NotWitnessed, match="does not continue size 9"):
        own.sign(Request.of(other, longer, 9), 5)
    with pytest.raises(Conflict) as conflict:
        own.sign(Request.of(register, before, 3), 6)
    assert conflict.value.size == 9
    with pytest.raises(NotWitnessed, match=r"signed size 9 .* already"):
        own.sign(Request(9, (), before), 7)
    with pytest.raises(NotWitnessed, match="does not continue"):
        own.sign(Request(9, (), Signed.read(longer.note.encode())), 8)


def test_witness_that_signs_waits_until_another_process_has_signed(tmp_path: Path) -> None:
    register, [signed] = grown(tmp_path / "r", 3)
    own = witness(tmp_path)
    lock = os.open(tmp_path / "seen.json.lock", os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as pool:
        signing = pool.submit(own.sign, Request.of(register, signed, 0), 1)
        while f":{os.fstat(lock).st_ino} " not in "".join(
            line for line in Path("/proc/locks").read_text().splitlines(keepends=True) if "->" in line
        ):
            assert not signing.done()
        # The other one has signed size 3 meanwhile: a second root of that size must not be.
        (tmp_path / "seen.json").write_text(f'{{"{b.ORIGIN}": {{"size": 3, "root": "{"0" * 64}"}}}}')
        os.close(lock)
        with pytest.raises(Conflict, match="signed size 3"):
            signing.result()


def test_witness_signs_for_no_register_whose_key_it_was_not_given(tmp_path: Path) -> None:
    register, [signed] = grown(tmp_path / "r", 3)
    with pytest.raises(NotWitnessed, match="no key of"):
        Witness(tmp_path / "seen.json", b.WITNESS, [b.STRANGER.key]).sign(Request.of(register, signed, 0), 1)
    (tmp_path / "seen.json").write_bytes(b"no JSON")
    with pytest.raises(NotWitnessed, match="damaged"):
        witness(tmp_path).sign(Request.of(register, signed, 0), 1)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"old 1\n",
        b"old x\n\nnote",
        b"old 01\n\nx\n",
        b"old 1\nAAAA\n\nx\n",
        b"\xff\n\n",
        b"old 1\n\nno note",
    ],
)
def test_request_of_another_form_is_refused(data: bytes) -> None:
    with pytest.raises(BadNote):
        Request.read(data)


def test_request_with_more_hashes_than_a_proof_has_is_refused(tmp_path: Path) -> None:
    register, [signed] = grown(tmp_path / "r", 3)
    good = Request.of(register, signed, 0)
    assert Request.read(Request(1, (bytes(32),) * 63, good.signed).encode()).old == 1
    with pytest.raises(BadNote):
        Request.read(Request(1, (bytes(32),) * 64, good.signed).encode())


@pytest.mark.parametrize(
    "text", ["", "x https://w", f"{b.OPERATOR.key} https://w", f"{KEY}", f"{KEY} ftp://w"]
)
def test_setting_that_names_no_witness_is_refused(text: str) -> None:
    with pytest.raises(BadNote):
        OnLine.read(text)


async def test_witness_on_line_signs_and_one_that_does_not_is_passed_over(tmp_path: Path) -> None:
    register, signed = grown(tmp_path / "r", 3, 9)
    own, bodies = witness(tmp_path), list[bytes]()

    async def add(request: web.Request) -> web.Response:
        body = await request.read()
        bodies.append(body)
        try:
            line = own.sign(Request.read(body), 1_795_463_400)
        except Conflict as conflict:
            return web.Response(status=409, text=f"{conflict.size}\n", content_type="text/x.tlog.size")
        except NotWitnessed as error:
            return web.Response(status=422, text=str(error))
        return web.Response(text=Note("x\n", (line,)).encode().decode().split("\n\n")[1])

    async def moved(request: web.Request) -> web.Response:
        raise web.HTTPFound("/w/add-checkpoint")

    app = web.Application()
    app.router.add_post("/w/add-checkpoint", add)
    app.router.add_post("/moved/add-checkpoint", moved)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        there = OnLine.read(f"{KEY} {url}/w/")
        away = [
            OnLine(KEY, f"{url}/moved"),
            OnLine(KEY, "http://127.0.0.1:9"),
            OnLine(b.ADA.witness_key, f"{url}/w"),
        ]
        for one in signed:
            note = await asked([there, away[0]], register, one, lambda name: 0)
            assert note.signed_by([KEY]) == {KEY: 1_795_463_400}
        assert [body.split(b"\n")[0] for body in bodies] == [b"old 0", b"old 0", b"old 3"]
        assert await asked(away, register, signed[1], lambda name: 9) == signed[1].note
        assert await asked([there], register, signed[0], lambda name: 3) == signed[0].note, "an older one"
    finally:
        await asyncio.wait_for(runner.cleanup(), 5)


async def test_reply_of_an_authority_is_read_whole_where_it_comes_in_several_packets() -> None:
    parts = [b"first ", b"second ", b"third"]

    async def reply(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for part in parts:
            await answer.write(part)
            for _ in range(20):
                await asyncio.sleep(0)
        await answer.write_eof()
        return answer

    app = web.Application()
    app.router.add_post("/tsr", reply)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/tsr"
        assert await ask_for_stamp(url, b"a query") == b"".join(parts)
        parts[:] = [b"x" * 4096] * 20
        assert await ask_for_stamp(url, b"a query") == b"x" * (MOST_STAMP_BYTES + 1)
    finally:
        await runner.cleanup()
