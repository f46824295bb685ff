"""`dendro bundle`: a whole tree as one file for strangers, and what such a file says of itself."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestrator.cli.invocation import Invocation, named_path
from orchestrator.core.counts import counted
from orchestrator.terminal.faults import ExitCode, Fault

if TYPE_CHECKING:
    from orchestrator.rollouts.bundle_check import BundleReport
    from orchestrator.rollouts.bundle_receipts import Head, Trust
    from orchestrator.rollouts.bundle_writer import FetchPack, Made, WantedReceipts
    from orchestrator.rollouts.signed_notes import Signer
    from orchestrator.settings import Settings
    from orchestrator.wiring.open_deployment import Opened

FINDINGS_SHOWN = 20
OWN_KEY = "bundle.key"
"""The key in the data folder by which this user's bundles are signed."""
NO_FILE = "name the file: -o run.zip"
FOREIGN = "agrees with itself; who made it is not shown"


def bundle(
    ctx: typer.Context,
    session: Annotated[
        str, typer.Argument(metavar="ID|FILE", help="A session of the tree; with --open, a bundle.")
    ],
    output: Annotated[str, typer.Option("-o", metavar="FILE", help="Where to; it has to be a file.")] = "",
    packs: Annotated[
        str, typer.Option("--packs", metavar="here|named", help="Whether packs of folders come with it.")
    ] = "named",
    withhold: Annotated[
        list[str] | None,
        typer.Option(
            "--withhold",
            metavar="SEL",
            help="Keep back ID:SEQ, ID:SEQ-SEQ, tree:SEQ, text:SHA256, texts, pack:SHA256, or an agent's ID.",
        ),
    ] = None,
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="An Ed25519 key, of OpenSSH or OpenSSL; else your own."),
    ] = None,
    origin: Annotated[
        str, typer.Option("--origin", metavar="NAME", help="What the key is called; else HOST/NAMESPACE.")
    ] = "",
    receipts: Annotated[
        str,
        typer.Option(
            "--receipts", metavar="all|own", help="With the whole register, or its statements on this tree."
        ),
    ] = "",
    since: Annotated[
        Path | None,
        typer.Option("--since", metavar="NOTE", help="With the proof that the register continues this one."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            "--checkpoint", metavar="NOTE", help="Under this one, as a witness signed it, and not the newest."
        ),
    ] = None,
    stamp: Annotated[
        Path | None,
        typer.Option("--stamp", metavar="FILE", help="With its time stamp (`dendro anchor tsa`)."),
    ] = None,
    no_answers: Annotated[
        bool, typer.Option("--no-answers", help="Keep back who decided on requests, and what they saw.")
    ] = False,
    intoto: Annotated[
        Path | None,
        typer.Option(
            "--intoto", metavar="FILE", help="Also write an in-toto statement of the bundle, signed."
        ),
    ] = None,
    unnoted: Annotated[
        bool, typer.Option("--unnoted", help="Do not state in the log that it was made.")
    ] = False,
    open_: Annotated[bool, typer.Option("--open", help="Shows what a bundle holds; writes nothing.")] = False,
) -> None:
    """Writes a whole tree as a file that a stranger can check.

    It holds every log of the tree at one moment, with what its entries name,
    under Merkle roots that your key signs: the one that you name, or one that
    is made in your data folder. Who checks it needs no server and no secret of
    yours: `dendro verify FILE`, or examples/check_bundle.py.

    What you withhold is shown as withheld, and its digest stays. Packs that
    come with it are in the clear.

    With receipts it goes as far as the notary has stated its logs, and shows
    that nothing of them was changed or left out since. `own` statements show no
    completeness. The bundle is of the register's name then.

    The log of the tree's root says from then on that it was made, by whom, and up
    to which entry, where no worker holds the root at that moment.

    \b
    dendro bundle 0199a2b4 -o run.zip --key ~/.ssh/id_ed25519
    dendro bundle 0199a2b4 -o run.zip --packs here --withhold 0199a2b4:118
    dendro bundle 0199a2b4 -o run.zip --receipts all --since seen.note
    dendro bundle --open run.zip
    """
    import asyncio

    settings = Invocation.of(ctx).settings()
    if open_:
        for line in _overview(_checked(settings, _bundle_file(session), None)):
            print(line)
        return
    if not output or output == "-":
        raise Fault(NO_FILE, ExitCode.USAGE)
    if packs not in ("here", "named"):
        raise Fault(f"--packs {packs!r} is neither here nor named", ExitCode.USAGE)
    if receipts not in ("", "all", "own"):
        raise Fault(f"--receipts {receipts!r} is neither all nor own", ExitCode.USAGE)
    if (since or checkpoint) is not None and not receipts:
        raise Fault("--since and --checkpoint need --receipts", ExitCode.USAGE)
    if stamp is not None and checkpoint is None:
        raise Fault("--stamp needs --checkpoint: the one that it is of", ExitCode.USAGE)
    wanted = receipts, since, checkpoint, stamp
    kept_back = [*(withhold or ()), *(["answers"] if no_answers else ())]
    made, signer = asyncio.run(
        _bundle(settings, session, Path(output), packs == "here", kept_back, key, origin, wanted, not unnoted)
    )
    if intoto is not None:
        _attest(Path(output), intoto, made, signer)
    for line in _made_lines(made, signer, output):
        print(line, file=sys.stderr)


async def _bundle(
    settings: Settings,
    session: str,
    file: Path,
    packs: bool,
    withhold: list[str],
    key: Path | None,
    origin: str,
    receipts: tuple[str, Path | None, Path | None, Path | None],
    noted: bool,
) -> tuple[Made, Signer]:
    import tempfile
    import time

    from orchestrator.cli.invocation import opened
    from orchestrator.core.entries import timestamp
    from orchestrator.private_files import replacing
    from orchestrator.rollouts.bundle_writer import Order, read_selection, write_bundle
    from orchestrator.views.find import whole_id
    from orchestrator.wiring.new_sessions import VERSION

    async with opened(settings) as found:
        head = await found.find(session)
        wanted = _receipts(settings, head.labels.namespace, *receipts) if receipts[0] else None
        name = origin or (wanted.newest.point.origin if wanted else _usual_origin(head.labels.namespace))
        if wanted is not None and name != wanted.newest.point.origin:
            raise Fault(
                f"--origin {name}: a bundle with receipts is of {wanted.newest.point.origin}",
                ExitCode.USAGE,
            )
        signer = _signer(settings, key, name)
        sessions = [str(one.session) for one in (await found.broker.trees.heads_at_once(head.tree))[1]]
        with tempfile.TemporaryDirectory(prefix=".dendro-") as spool, replacing(file) as out:
            order = Order(
                origin=name,
                made_at=timestamp(time.time_ns() // 1_000_000),
                by=f"dendro {VERSION}",
                key_id=settings.chain.key_id if settings.chain.key else "",
                packs="here" if packs else "named",
                withhold=read_selection(withhold, str(head.tree), lambda id: whole_id(id, sessions) or id),
                signer=signer,
                fetch_pack=_fetch_pack(found),
                spool=Path(spool),
                receipts=wanted,
            )
            made = await write_bundle(found, head.tree, out, order)
        if noted:
            await _note(found, made, signer)
        return made, signer


async def _note(found: Opened, made: Made, signer: Signer) -> None:
    """States in the log that the bundle was made; the bundle is there, also where that cannot be."""

    from orchestrator.gateways.principals import machine_user
    from orchestrator.rollouts.bundle_export import NotNoted, note_bundle
    from orchestrator.wiring.new_sessions import this_process

    try:
        await note_bundle(found, made, this_process(), machine_user().sender("cli"), str(signer.key))
    except NotNoted as error:
        print(f"warning    the log does not say that it was made: {error}", file=sys.stderr)


def _attest(bundle: Path, file: Path, made: Made, signer: Signer) -> None:
    """Writes the in-toto statement of a bundle in an envelope (DSSE), for who collects attestations."""
    import hashlib

    from orchestrator.private_files import write_file
    from orchestrator.rollouts.bundle_export import statement_of

    with bundle.open("rb") as read:
        digest = hashlib.file_digest(read, "sha256").hexdigest()
    write_file(file, statement_of(bundle.name, digest, made.manifest, made.sha256, signer))


def _receipts(
    settings: Settings,
    namespace: str,
    kind: str,
    since: Path | None,
    at: Path | None,
    stamp: Path | None,
) -> WantedReceipts:
    from orchestrator.cli.invocation import read_named
    from orchestrator.core.frozen import replace
    from orchestrator.rollouts.bundle_writer import WantedReceipts
    from orchestrator.rollouts.object_store import Objects
    from orchestrator.rollouts.register import BadRegister, Register, Signed, register_of
    from orchestrator.rollouts.signed_notes import MOST_NOTE_BYTES, BadNote
    from orchestrator.rollouts.witnesses import MOST_STAMP_BYTES

    if settings.receipts.url is None:
        raise Fault("no receipts.url is set: where the notary publishes its registers", ExitCode.USAGE)
    register = Register(Objects(settings.receipts.url), register_of(namespace))
    try:
        earlier = Signed.read(read_named(since, MOST_NOTE_BYTES)).point if since is not None else None
        last = Signed.read(read_named(at, MOST_NOTE_BYTES)) if at is not None else None
        wanted = WantedReceipts.of(register, whole=kind == "all", since=earlier, last=last)
        return replace(wanted, stamp=read_named(stamp, MOST_STAMP_BYTES)) if stamp is not None else wanted
    except BadNote as error:
        raise Fault(f"a checkpoint that you name: {error}", ExitCode.USAGE) from None
    except BadRegister as error:
        raise Fault(f"{settings.receipts.url}: {error}") from None


def _usual_origin(namespace: str) -> str:
    import re
    import socket

    return re.sub(r"[\s+]", "-", f"{socket.gethostname() or 'localhost'}/{namespace or 'home'}")


def _signer(settings: Settings, key: Path | None, name: str) -> Signer:
    from orchestrator.rollouts.signed_notes import (
        BadNote,
        Signer,
        is_name,
        own_private_key,
        read_private_key,
    )

    if not is_name(name):
        raise Fault(f"--origin {name!r} is no name: one word, without +", ExitCode.USAGE)
    own = settings.home / OWN_KEY
    try:
        return Signer(name, own_private_key(own) if key is None else read_private_key(key))
    except BadNote as error:
        raise Fault(str(error), ExitCode.USAGE) from None


def _fetch_pack(found: Opened) -> FetchPack:
    from orchestrator.core.ids import TreeId
    from orchestrator.workspaces.stored_packs import BrokenPack, PackName

    async def fetch(name: str, size: int, target: Path) -> bool:
        try:
            await found.packs().fetch(PackName.of(name, TreeId(name.partition("/")[0])), target, size)
        except BrokenPack:
            return False
        return True

    return fetch


def _made_lines(made: Made, signer: Signer, file: str) -> Iterator[str]:
    manifest = made.manifest
    sessions = sum(bool(log.session) for log in manifest.logs)
    texts = sum(one.state == "here" for one in manifest.texts.values())
    yield (
        f"{manifest.tree}: {counted(sessions, 'session')} and the tree's log, "
        f"{counted(made.entries, 'entry')}, {counted(texts, 'large text')}, all of one moment: {file}"
    )
    if manifest.withheld or manifest.left_out:
        left_out = f"{counted(len(manifest.left_out), 'session')} left out"
        yield f"withheld   {counted(len(manifest.withheld), 'entry')}, {left_out}"
    if made.absent_texts:
        yield f"warning    {counted(made.absent_texts, 'large text')} not stored any more: shown as withheld"
    if made.absent_packs:
        yield f"warning    {counted(made.absent_packs, 'pack')} not in the store: named, not here"
    if made.behind:
        yield f"receipts   {counted(made.behind, 'entry')} not in it: not stated yet"
    for log in made.disputed:
        yield f"warning    {log} is not as it was stated: who checks the bundle finds that"
    yield f"signed by  {signer.key}"


# ── checking ──────────────────────────────────────────────────────────────────────────────────────


def bundle_named(text: str) -> Path | None:
    """The bundle that an argument names: a ZIP, or a folder with a manifest; None if it names none."""
    from orchestrator.rollouts.bundle_members import is_bundle

    path = named_path(text)
    return path if path.exists() and is_bundle(path) else None


def _bundle_file(text: str) -> Path:
    path = bundle_named(text)
    if path is None:
        what = "is no bundle" if named_path(text).exists() else "is not there"
        raise Fault(f"{text} {what}: name a ZIP that `dendro bundle ID -o FILE` wrote", ExitCode.USAGE)
    return path


def _checked(settings: Settings, path: Path, trust: Trust | None) -> BundleReport:
    from orchestrator.rollouts.bundle_check import check_bundle
    from orchestrator.rollouts.bundle_form import NewerFormat
    from orchestrator.wiring.deployment import chain_key

    try:
        return check_bundle(path, trust, chain_key(settings))
    except NewerFormat as error:
        raise Fault(f"{path}: {error}: it cannot be checked here", ExitCode.USAGE) from None


def verify_bundle(
    settings: Settings, path: Path, trust_file: Path | None, receipt: Path | None = None
) -> None:
    """Prints what a bundle shows; exit code 1 with a finding, 2 where it cannot be checked here."""
    from orchestrator.terminal.text import one_line

    trust, own = read_trust(trust_file), None
    if receipt is not None:
        trust, own = _holding(trust, receipt)
    report = _checked(settings, path, trust)
    if own is not None and report.manifest is not None and own.tree != report.manifest.tree:
        raise Fault(f"{receipt} is about {own.log}, which is none of the bundle's tree", ExitCode.USAGE)
    for line in _verdict(report, trusted=trust_file is not None):
        print(one_line(line))
    if report.findings:
        raise typer.Exit(ExitCode.FAILED)


def read_trust(file: Path | None) -> Trust | None:
    from orchestrator.cli.invocation import read_named
    from orchestrator.rollouts.bundle_receipts import MOST_TRUST_BYTES, BadTrust, Trust

    if file is None:
        return None
    try:
        return Trust.read(read_named(file, MOST_TRUST_BYTES))
    except BadTrust as error:
        raise Fault(f"{file}: {error}: nothing can be checked against it", ExitCode.USAGE) from None


def _holding(trust: Trust | None, file: Path) -> tuple[Trust, Head]:
    """The trust with a receipt beside it, and what the receipt states."""
    from orchestrator.cli.invocation import read_named
    from orchestrator.rollouts.bundle_receipts import MOST_TRUST_BYTES, BadTrust, Receipt
    from orchestrator.rollouts.signed_notes import BadNote

    if trust is None:
        raise Fault("--receipt needs --trust: the register's key, by which it is checked", ExitCode.USAGE)
    try:
        read = Receipt.read(read_named(file, MOST_TRUST_BYTES))
        return trust.holding(read), read.head
    except (BadTrust, BadNote) as error:
        raise Fault(f"{file}: {error}: nothing can be checked against it", ExitCode.USAGE) from None


def _verdict(report: BundleReport, *, trusted: bool) -> Iterator[str]:
    count = len(report.findings) + report.more
    if report.findings:
        yield f"bundle     does not hold: {counted(count, 'finding')}"
    else:
        yield f"bundle     {'agrees with itself, and with what you trust' if trusted else FOREIGN}"
    yield from _facts(report, trusted=trusted)
    for finding in report.findings[:FINDINGS_SHOWN]:
        yield f"FINDING    {finding.code}  {finding.place}: {finding.text}"
    if count > FINDINGS_SHOWN:
        yield f"           and {count - FINDINGS_SHOWN:,} more"
    last = max((log.last for log in report.logs.values()), default="") or "its last entry"
    yield (
        f"not shown  that what was written at first was true; what happened after {last[:40]}; "
        "who stands behind a key"
    )


def _facts(report: BundleReport, *, trusted: bool) -> Iterator[str]:
    manifest = report.manifest
    if manifest is None:
        return
    made = f"made {manifest.made_at[:40]} by {manifest.by[:80]}"
    if manifest.origin in report.signed_by:
        yield f"origin     {manifest.origin}; signed by a key you trust (proved); {made} (stated)"
    elif report.signed_by:
        signed = f"signed by a key you trust, {', '.join(report.signed_by)[:200]} (proved)"
        yield f"origin     {manifest.origin} (stated); {signed}; {made} (stated)"
    else:
        signed = "signed, by a key that you did not name" if report.signatures else "signed by nobody"
        yield f"origin     {manifest.origin}; {signed}; {made} (stated)"
    sessions = sum(bool(log.session) for log in manifest.logs)
    entries = sum(log.size for log in manifest.logs)
    holds = "proved" if not report.findings else "stated"
    covered = ", all of them under receipts" if report.receipts.read and not report.uncovered else ""
    logs = f"{counted(sessions, 'session')} and the tree's log: {counted(entries, 'entry')}"
    yield f"logs       {logs} under the roots of the manifest{covered} ({holds})"
    if keys := sorted({log.key_id for log in manifest.logs if log.key_id}):
        yield f"chain      keyed by {', '.join(keys)[:80]}: who has that key can check it, too"
    yield f"seen       {_seen(report, trusted=trusted)}"
    if parts := list(_kept_back(report)):
        yield f"withheld   {'; '.join(parts)}"
    if report.answers:
        proved, stated = report.proved_answers, report.answers - report.proved_answers
        yield (
            f"people     {proved} of {counted(report.answers, 'answer')} signed by a key of theirs (proved); "
            f"{stated} as the door says (stated)"
        )
    for note in report.notes:
        yield f"note       {note}"


def _seen(report: BundleReport, *, trusted: bool) -> str:
    from orchestrator.core.entries import timestamp

    receipts = report.receipts
    if not receipts.present:
        return "no receipts: nobody else has seen its roots, so who signs it can write another past"
    parts = (
        [f"{receipts.witnesses} of your witnesses signed the register's size {receipts.size}"]
        if trusted
        else []
    )
    if receipts.earlier is not None:
        parts.append(f"it continues the checkpoint that you had (size {receipts.earlier})")
    if receipts.whole:
        parts.append(f"complete as of {timestamp(receipts.until_ms)}")
    else:
        parts.append("chosen receipts, which cannot show that nothing was left out")
    if receipts.stamps:
        parts.append(f"{counted(receipts.stamps, 'time stamp')}, not looked at here")
    return "; ".join(parts)


def _kept_back(report: BundleReport) -> Iterator[str]:
    manifest = report.manifest
    assert manifest is not None
    for (who, why), count in sorted(report.redacted.items()):
        yield f"{counted(count, 'entry')} redacted by {who[:80] or 'somebody'} ({why[:120]!r}) (stated)"
    if report.withheld:
        yield f"{counted(report.withheld, 'entry')} withheld by who made the bundle"
    if manifest.left_out:
        yield f"{counted(len(manifest.left_out), 'session')} left out: deleted, or withheld"
    for kind, states in (("large text", report.texts), ("pack", report.packs)):
        for state, count in sorted(states.items()):
            if state != "here":
                yield f"{counted(count, kind)} {state}, not here"


# ── opening ───────────────────────────────────────────────────────────────────────────────────────


def _overview(report: BundleReport) -> Iterator[str]:
    """The contents of a bundle, for somebody who looks into one."""
    from orchestrator.terminal.text import one_line

    for line in _facts(report, trusted=False):
        yield one_line(line)
    logs = sorted(report.logs.values(), key=lambda log: (log.id.startswith("tree:"), log.agent or 0, log.id))
    for log in logs:
        number = f"{log.agent} " if log.agent is not None else ""
        label = f"  {number}{log.label}" if number or log.label else ""
        span = f"  {log.first[:24]} to {log.last[:24]}" if log.first else ""
        yield one_line(f"{log.id}  {counted(log.entries, 'entry')}{span}{label[:120]}")
    count = len(report.findings) + report.more
    yield f"findings   {count}: `dendro verify` names them" if count else "findings   none"
