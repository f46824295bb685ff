"""The logs of a tree as tables for SQL, and as one page for people.

The tables are in DuckDB, in memory; once they are filled, statements can reach neither files nor the network.
Their names and columns are an interface: `VERSION` counts its changes, and the table `about` has it.
"""

from __future__ import annotations

import html
import re
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import orjson

from orchestrator.core import facts as f
from orchestrator.core.calls import PatchWork, Phase
from orchestrator.core.calls.patch import verb_of
from orchestrator.core.entries import timestamp
from orchestrator.core.sender import Sender
from orchestrator.rollouts import RolloutError
from orchestrator.views.audit_cost import cost
from orchestrator.views.audit_questions import Answer, egress, redactions
from orchestrator.views.audit_who import Source, Told, digest_of, stated_text, who

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

VERSION: Final = 2
_N, _T, _B = "BIGINT", "VARCHAR", "BOOLEAN"
_PLACE: Final[Mapping[str, str]] = {"session": _T, "seq": _N, "at": _T}
_BY: Final[Mapping[str, str]] = {"who": _T, "via": _T, "scope": _T, "token": _T}
TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "about": {"version": _N, "proved": _B, "faults": _N},
    "entries": {**_PLACE, "epoch": _N, "type": _T, "kind": _T, "payload": "JSON"},
    "tasks": {**_PLACE, "id": _T, "task": _T, "model": _T, "provider": _T, "cwd": _T, **_BY},
    "requests": {
        **_PLACE,
        "n": _N,
        "outcome": _T,
        "origin": _T,
        "served_model": _T,
        "input_tokens": _N,
        "output_tokens": _N,
        "total_tokens": _N,
        "cost_micro": _N,
        "sent": _T,
    },
    "calls": {
        "session": _T,
        "at": _T,
        "agent": _T,
        "call_id": _T,
        "command": _T,
        "name": _T,
        "cwd": _T,
        "sandboxed": _B,
        "decision": _T,
        "by": _T,
        "unasked": _T,
        "behalf": _T,
        "worker": _T,
        "result": _T,
    },
    "approvals": {
        **_PLACE,
        "call_id": _T,
        "turn": _T,
        "decision": _T,
        "surface": _T,
        "shown": _T,
        "opened_ms": _N,
        "answered_ms": _N,
        "key": _T,
        **_BY,
    },
    "agents": {**_PLACE, "child": _T, "agent_id": _N, "label": _T},
    "files": {**_PLACE, "call_id": _T, "path": _T, "change": _T},
    "texts": {**_PLACE, "sha256": _T, "bytes": _N},
    "mail": {**_PLACE, "key": _T, "kind": _T, "text": _T},
    "claims": {
        **_PLACE,
        "epoch": _N,
        "worker": _T,
        "machine": _T,
        "user": _T,
        "version": _T,
        "sandbox": _T,
        "settings": _T,
        "rules": _T,
    },
    "redactions": {**_PLACE, "log": _T, "entry": _N, "digest": _T, "why": _T, **_BY},
    "receipts": {
        "number": _N,
        "log": _T,
        "size": _N,
        "root": _T,
        "head": _T,
        "stated_ms": _N,
        "stated_at": _T,
        "state": _T,
    },
}
"""Columns by table, each with its type. `seq` and `session` name the entry that says so; a receipt is the
word of a register, with its number there."""
MOST_MS: Final = 253_402_300_799_999
"""The last millisecond of the year 9999: no later one has a text."""
MOST_BYTES: Final = "1GB"
"""Of memory that a statement may use."""
MOST_ROWS: Final = 5_000
"""Rows of a section of the page; more are counted."""


class NoDuckDB(Exception):
    """The library of the tables is not installed."""


async def tables(logs: Source) -> DuckDBPyConnection:
    """The tables of the logs; raises `NoDuckDB`, and `RolloutError` for entries that do not fit into them."""
    try:
        import duckdb
    except ImportError:
        raise NoDuckDB from None
    with tempfile.TemporaryDirectory(prefix=".dendro-") as folder:
        await _spooled(logs, Path(folder))
        # What a machine has installed beside it is never loaded.
        config: dict[str, str | bool | int | float | list[str]] = {
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
            "memory_limit": MOST_BYTES,
            "temp_directory": "",
        }
        made = duckdb.connect(":memory:", config=config)
        try:
            for table, columns in TABLES.items():
                spelled = ", ".join(f"\"{name}\": '{kind}'" for name, kind in columns.items())
                read = f"read_json(?, format='newline_delimited', columns={{{spelled}}})"
                path = str(Path(folder) / table)
                made.execute(f'CREATE TABLE "{table}" AS SELECT * FROM {read}', [path])
        except duckdb.Error as error:
            made.close()
            raise RolloutError(f"the logs do not fit into tables: {error}") from None
    return made


def close_doors(made: DuckDBPyConnection) -> None:
    """From here on no statement reaches a file or the network, or changes that."""
    made.execute("SET enable_external_access = false")
    made.execute("SET lock_configuration = true")


def write_parquet(made: DuckDBPyConnection, folder: Path) -> None:
    """Writes each table as a Parquet file of its name, into a folder that is there."""
    for table in TABLES:
        path = str(folder / f"{table}.parquet").replace("'", "''")
        made.execute(f"COPY \"{table}\" TO '{path}' (FORMAT parquet)")


async def _spooled(logs: Source, folder: Path) -> None:
    files: dict[str, IO[bytes]] = {}
    try:
        for table in TABLES:
            files[table] = (folder / table).open("xb")
        told = {"version": VERSION, "proved": not (logs.faults or logs.unchecked), "faults": len(logs.faults)}
        files["about"].write(orjson.dumps(told) + b"\n")
        sent: dict[tuple[str, Any], str] = {}
        async for entry in logs.entries():
            for table, row in _rows(entry, sent):
                files[table].write(orjson.dumps(row) + b"\n")
        for head in logs.statements:
            stated = {"root": head.root.hex(), "head": head.chain.hex(), "stated_ms": head.ms}
            what = {"number": head.index, "log": head.log, "size": head.size, "state": head.state}
            moment = timestamp(head.ms) if head.ms <= MOST_MS else None
            files["receipts"].write(orjson.dumps({**what, **stated, "stated_at": moment}) + b"\n")
        async for call in who(logs, "*"):
            row = asdict(call)
            files["calls"].write(orjson.dumps({name: row[name] for name in TABLES["calls"]}) + b"\n")
    finally:
        for file in files.values():
            file.close()


def _rows(told: Told, sent: dict[tuple[str, Any], str]) -> Iterator[tuple[str, dict[str, Any]]]:
    payload = told.payload
    place: dict[str, Any] = {"session": told.session, "seq": told.seq, "at": told.at}
    tag = str(payload.get("kind" if told.fact is not None else "type", ""))
    text = payload if told.line else None
    yield "entries", {**place, "epoch": told.epoch, "type": told.type, "kind": tag, "payload": text}
    for digest, size in _named(payload):
        yield "texts", {**place, "sha256": digest, "bytes": size}
    match told.fact:
        case f.RequestSent() as shown:
            sent[told.session, shown.n] = shown.sent
        case end if isinstance(end, f.RequestEnded):
            yield "requests", {**place, **_request(end), "sent": sent.pop((told.session, end.n), None)}
        case f.CallMoved(call_id=id, phase=Phase.RUNNING, work=PatchWork(changes=changes)):
            for path, change in changes.items():
                does = verb_of(change) or None
                yield "files", {**place, "call_id": id, "path": path, "change": does}
        case stated:
            for table, row in _row(stated):
                yield table, {**place, **row, **({"epoch": told.epoch} if table == "claims" else {})}


def _row(stated: f.Fact | f.UnknownFact | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """The row of a fact that is one of its table whole."""
    row: dict[str, Any]
    match stated:
        case f.TaskBegun(settings=settings) as task:
            row = {"id": task.id, "task": task.task, "model": settings.model}
            row |= {"provider": settings.model_provider, "cwd": settings.cwd}
            yield "tasks", {**row, **_by(task.by)}
        case f.Answered() as answer:
            row = {"call_id": answer.call_id, "turn": answer.turn, "decision": answer.decision}
            row |= {"surface": answer.surface or None, "key": answer.key or None}
            opened, answered = _number(answer.opened_ms) or None, _number(answer.answered_ms)
            times = {"opened_ms": opened, "answered_ms": answered}
            shown = digest_of(stated_text(answer.shown)) if answer.shown else None
            yield "approvals", {**row, **times, "shown": shown, **_by(answer.by)}
        case f.ChildMade(child=child):
            yield "agents", {"child": child.session, "agent_id": child.agent_id, "label": child.label}
        case f.MailReceived(mail=mail):
            said = mail.content.get("text")
            text = {"text": said if isinstance(said, str) else None}
            yield "mail", {"key": mail.key, "kind": mail.kind, **text}
        case f.Claimed() as claimed:
            row = {"worker": claimed.worker, "machine": claimed.machine, "user": claimed.user}
            texts = {"settings": claimed.settings or None, "rules": claimed.rules or None}
            sandbox = claimed.sandbox.get("kind")
            yield "claims", {**row, "version": claimed.version, "sandbox": sandbox, **texts}
        case f.Redacted() as redacted:
            what = {"log": redacted.log, "entry": _number(redacted.seq), "digest": redacted.digest}
            yield "redactions", {**what, "why": redacted.why, **_by(redacted.by)}
        case _:
            pass


def _request(end: f.RequestEnded) -> dict[str, Any]:
    usage = end.usage or {}
    served = end.served_by if isinstance(end, f.RequestCompleted) else None
    row = {name: _number(usage.get(name)) for name in ("input_tokens", "output_tokens", "total_tokens")}
    return {
        **row,
        "n": _number(end.n),
        "outcome": end.outcome,
        "origin": (served.origin if served is not None else "") or None,
        "served_model": (served.model if served is not None else "") or None,
        "cost_micro": end.price.cost_micro if end.price is not None else None,
    }


def _by(by: Sender | None) -> dict[str, str | None]:
    if by is None:
        return dict.fromkeys(_BY)
    return {"who": by.who, "via": by.via, "scope": by.scope, "token": by.token}


def _number(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 63 else None


def _named(value: Any) -> Iterator[tuple[str, int]]:
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            if set(found) == {"$blob", "bytes"}:
                yield str(found["$blob"]), _number(found["bytes"]) or 0
            else:
                waiting.extend(found.values())
        elif isinstance(found, list):
            waiting.extend(found)


# ── page ──────────────────────────────────────────────────────────────────────────────────────────

_HIDDEN: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)
_HEAD: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>Audit of {title}</title>
<style>
body{{font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:75rem;padding:0 1rem;
color:#1c1c1c;background:#fff}}
table{{border-collapse:collapse;width:100%;margin:.5rem 0 2rem}} td,th{{text-align:left;vertical-align:top;
border-bottom:1px solid #ddd;padding:.3rem .5rem;overflow-wrap:anywhere}} th{{background:#f4f4f4}}
.proved{{color:#14602f}} .stated{{color:#7a4b00}} .fault{{color:#a01212}} code{{font-size:12px}}
@media (prefers-color-scheme:dark){{body{{background:#161616;color:#e6e6e6}} th{{background:#262626}}
td,th{{border-color:#3a3a3a}} .proved{{color:#7fd29b}} .stated{{color:#e6b566}} .fault{{color:#ff8a8a}}}}
</style></head><body>
"""


def _safe(text: object) -> str:
    """Text for a page: nothing of it is read as markup, and nothing of it is hidden or turns the rest."""
    return html.escape(_HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", str(text)))


async def write_page(logs: Source, title: str, out: IO[bytes]) -> None:
    """Writes one page: what holds, what is stated, decisions, cost, egress and redactions."""
    out.write(_HEAD.format(title=_safe(title)).encode())
    out.write(f"<h1>Audit of {_safe(title)}</h1>".encode())
    if logs.faults or logs.unchecked:
        found = "".join(f"<li>{_safe(fault)}" for fault in [*logs.faults[:100], logs.unchecked] if fault)
        out.write(f'<p class="fault">Nothing here is proved:</p><ul class="fault">{found}</ul>'.encode())
    else:
        words = (
            "Each chain holds. <b class=proved>proved</b>: so it stands in entries that follow from each "
            "other. <b class=stated>stated</b>: it is the word of somebody who is named in them."
        )
        out.write(f"<p>{words}</p>".encode())
    await _table(out, "Sessions", ("session", "agent", "entries", "from", "to"), _sessions(logs))
    await _table(
        out, "Decisions", ("agent/call", "command", "where", "decision", "result", ""), _decisions(logs)
    )
    rows = [
        (
            one.name,
            one.requests,
            one.input_tokens,
            one.output_tokens,
            _money(one.cost_micro, one.unpriced),
            "stated",
        )
        for one in await cost(logs, "behalf")
    ]
    await _table(out, "Cost, by whom it was for", ("for", "requests", "in", "out", "cost", ""), _these(rows))
    for name, question in (("What may have left the machine", egress), ("Redactions", redactions)):
        await _table(out, name, ("what", "entries", ""), _answers(logs, question(logs)))
    out.write(b"</body></html>\n")


async def _table(
    out: IO[bytes], title: str, names: Sequence[str], rows: AsyncIterator[Sequence[object]]
) -> None:
    head = "".join(f"<th>{_safe(name)}" for name in names)
    out.write(f"<h2>{_safe(title)}</h2><table><tr>{head}</tr>".encode())
    count = 0
    async for row in rows:
        count += 1
        if count <= MOST_ROWS:
            cells = "".join(
                f'<td class="{cell}">{cell}' if cell in ("proved", "stated") else f"<td>{_safe(cell)}"
                for cell in row
            )
            out.write(f"<tr>{cells}</tr>".encode())
    more = f"<p>{count - MOST_ROWS} more are not shown.</p>" if count > MOST_ROWS else ""
    out.write(f"</table>{more or ('' if count else '<p>none</p>')}".encode())


async def _these(rows: Sequence[Sequence[object]]) -> AsyncIterator[Sequence[object]]:
    for row in rows:
        yield row


async def _sessions(logs: Source) -> AsyncIterator[Sequence[object]]:
    session, agent, count, first, last = "", "0", 0, "", ""
    async for told in logs.entries():
        if told.session != session:
            if session:
                yield session, agent, count, first, last
            session, agent, count, first = told.session, "0", 0, told.at
        if isinstance(told.fact, f.Configured):
            agent = told.fact.session.agent_path
        count, last = count + 1, told.at or last
    if session:
        yield session, agent, count, first, last


async def _decisions(logs: Source) -> AsyncIterator[Sequence[object]]:
    worth = "stated" if logs.faults or logs.unchecked else "proved"
    async for one in who(logs, "*"):
        where = {True: "in the sandbox", False: "OUTSIDE THE SANDBOX", None: ""}[one.sandboxed]
        by = f"{one.decision} by {one.by}" if one.decision else one.unasked or "not run"
        entries = ", ".join(one.entries[:6])
        yield f"{one.agent}/{one.call_id} ({entries})", one.command, where, by, one.result, worth


async def _answers(logs: Source, answers: AsyncIterator[Answer]) -> AsyncIterator[Sequence[object]]:
    unproved = bool(logs.faults or logs.unchecked)
    async for one in answers:
        yield one.text, ", ".join(one.entries[:6]), "proved" if one.proved and not unproved else "stated"


def _money(micro: int, unpriced: int) -> str:
    unknown = f", {unpriced} of unknown cost" if unpriced else ""
    return f"${micro / 1e6:.6f}{unknown}"


__all__ = ["TABLES", "VERSION", "NoDuckDB", "close_doors", "tables", "write_page", "write_parquet"]
