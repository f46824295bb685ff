"""Bundles as tests make them, by docs/protocol/bundle.md: sound ones, and spoiled ones."""

from __future__ import annotations

import base64
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from orchestrator.core.merkle import consistency_proof, inclusion_proof, leaf_hash, root_of
from orchestrator.rollouts.signed_notes import (
    COSIGNATURE,
    Checkpoint,
    Note,
    Signature,
    Signer,
    VerifierKey,
)

ORIGIN = "fleet.example/home"
ROOT, AGENT, FORK = (f"01a2000{n}-0000-7000-8000-000000000000" for n in range(3))
TEXT, INSIDE, HELD_BACK = b"a large output\n" * 40, b"what an inherited item named", b"a secret"
PACK, NAMED_PACK = b"objects of a folder", b"objects that stay in the store"
AT_MS = 1_795_462_800_000
Json = dict[str, Any]
Chains = Mapping[str, list[str]]


def private(word: str) -> Ed25519PrivateKey:
    """The key of the vectors: SHA-256 of a word."""
    return Ed25519PrivateKey.from_private_bytes(sha256(word.encode()).digest())


OPERATOR, STRANGER = Signer(ORIGIN, private("log")), Signer(ORIGIN, private("stranger"))
WITNESS = Signer("witness.example/w1", private("witness"))
ADA = Signer("ada", private("ada"))


def witness_key() -> VerifierKey:
    return VerifierKey.of(WITNESS.name, WITNESS.key.public, COSIGNATURE)


def trust(**more: Any) -> bytes:
    """A trust file of somebody who knows the operator; `more` adds or replaces."""
    return json.dumps({"log": [str(OPERATOR.key)], "quorum": 0, **more}).encode()


def hexed(data: bytes) -> str:
    return sha256(data).hexdigest()


def blob(data: bytes) -> Json:
    return {"$blob": hexed(data), "bytes": len(data)}


def compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def stamp(seconds: int) -> str:
    return f"2026-11-23T19:{40 + seconds // 60:02d}:{seconds % 60:02d}.000Z"


def entry(type: str, at: int = 0, /, **payload: Any) -> Json:
    return {"timestamp": stamp(at), "type": type, "payload": payload}


def fact(kind: str, at: int = 0, /, **payload: Any) -> Json:
    return entry("dendro", at, kind=kind, **payload)


def first_entries(session: str, tree: str = ROOT) -> list[Any]:
    return [
        entry("session_meta", id=session),
        fact("configured", session={"session_id": session, "tree_id": tree, "agent_id": 0}),
        entry("event_msg", type="session_configured", session_id=session),
    ]


def said(text: str, at: int = 0) -> Json:
    content = [{"type": "input_text", "text": text}]
    return entry("response_item", at, type="message", role="user", content=content)


@dataclass
class Log:
    """A log before it is sealed: its entries, as values or as texts, or by what stands in other logs."""

    entries: list[Any]
    key: bytes = b""
    bare: set[int] = field(default_factory=set)
    """Numbers of entries without text."""
    chains: dict[int, str] = field(default_factory=dict)
    """Chain values that are not what they should be."""


@dataclass
class Draft:
    """All that a bundle is made of; `sealed` makes everything fit that its maker can make fit."""

    logs: dict[str, Log]
    tree: list[tuple[str, int, Any]]
    """Of each line of the tree's log: the session and the number of the entry that caused it; the event."""
    texts: dict[bytes, str] = field(default_factory=dict)
    packs: dict[bytes, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    withheld: list[tuple[str, int]] = field(default_factory=list)
    signer: Signer | None = OPERATOR
    key_id: str = ""
    receipts: Callable[[Draft, dict[str, list[Json]]], dict[str, bytes]] | None = None
    lines: Callable[[dict[str, list[Json]]], object] = lambda lines: None
    """Spoils the lines of all logs before they are sealed."""
    manifest: Callable[[Json], object] = lambda manifest: None
    """Spoils the manifest before it is signed."""
    members: Callable[[dict[str, bytes]], object] = lambda members: None
    """Spoils the members that the manifest will list."""

    def sealed(self) -> dict[str, bytes]:
        """The members of the bundle."""
        lines = self._lines()
        self.lines(lines)
        members = {
            f"logs/{log.replace(':', '-', 1)}.jsonl": "".join(compact(line) + "\n" for line in some).encode()
            for log, some in lines.items()
        }
        members |= {f"texts/{hexed(text)}": text for text, state in self.texts.items() if state == "here"}
        members |= {
            f"packs/{hexed(pack)}.pack": pack for pack, state in self.packs.items() if state == "here"
        }
        if self.receipts is not None:
            members |= self.receipts(self, lines)
        self.members(members)
        manifest = self._manifest(lines, members)
        self.manifest(manifest)
        data = (compact(manifest) + "\n").encode()
        text = f"dendro-bundle/1\n{manifest['origin']}\n{hexed(data)}\n"
        note = self.signer.signed(text) if self.signer is not None else Note(text, ())
        return {**members, "manifest.json": data, "manifest.note": note.encode()}

    def _lines(self) -> dict[str, list[Json]]:
        found: dict[str, list[Json]] = {}
        chains: dict[str, list[str]] = {}
        for session, log in self.logs.items():
            chains[session] = ["00" * 32]
            found[f"session:{session}"] = some = []
            for seq, one in enumerate(log.entries, 1):
                value = one(chains) if callable(one) else one
                line = _line(
                    seq, 1, value if isinstance(value, str) else compact(value), chains[session][-1], log
                )
                chains[session].append(line["c"])
                some.append(line)
        found[f"tree:{ROOT}"] = [
            {
                "s": n,
                "e": seq,
                "salt": "",
                "c": chains[by][seq],
                "p": compact(event),
                "by": by,
            }
            for n, (by, seq, event) in enumerate(self.tree, 1)
        ]
        return found

    def _manifest(self, lines: dict[str, list[Json]], members: dict[str, bytes]) -> Json:
        return {
            "format": "dendro-bundle",
            "version": 1,
            "origin": ORIGIN,
            "made": "2026-11-23T20:00:00.000Z",
            "by": "dendro 0.2.0",
            "tree": ROOT,
            "logs": [
                told(log, some, "" if log.startswith("tree:") else self.key_id) for log, some in lines.items()
            ],
            "left_out": self.left_out,
            "withheld": self.withheld,
            "texts": {
                hexed(text): {"bytes": len(text), "state": state} for text, state in self.texts.items()
            },
            "packs": {
                hexed(pack): {"bytes": len(pack), "state": state} for pack, state in self.packs.items()
            },
            "files": {name: {"sha256": hexed(data), "bytes": len(data)} for name, data in members.items()},
        }


def _line(seq: int, epoch: int, text: str, before: str, log: Log) -> Json:
    salt = sha256(f"salt {seq}".encode()).hexdigest()[:32]
    digest = blake2b(bytes.fromhex(salt) + text.encode("utf-8", "surrogatepass"), digest_size=32).digest()
    place = seq.to_bytes(8, "big") + epoch.to_bytes(8, "big")
    chain = blake2b(bytes.fromhex(before) + place + digest, digest_size=32, key=log.key).hexdigest()
    chain = log.chains.get(seq, chain)
    if seq in log.bare:
        return {"s": seq, "e": epoch, "c": chain, "d": digest.hex()}
    return {"s": seq, "e": epoch, "salt": salt, "c": chain, "p": text}


def digest_of(line: Json) -> bytes:
    if "d" in line:
        return bytes.fromhex(line["d"])
    data = bytes.fromhex(line["salt"]) + line["p"].encode("utf-8", "surrogatepass")
    return blake2b(data, digest_size=32).digest()


def leaves(lines: list[Json]) -> list[bytes]:
    return [
        leaf_hash(
            line["s"].to_bytes(8, "big")
            + line["e"].to_bytes(8, "big")
            + digest_of(line)
            + bytes.fromhex(line["c"])
        )
        for line in lines
    ]


def told(log: str, lines: list[Json], key_id: str) -> Json:
    """A log as a manifest tells of it; damaged lines have no root, so that it is as good as any."""
    try:
        root = root_of(leaves(lines)).hex()
    except (KeyError, ValueError, TypeError, OverflowError, AttributeError):
        root = "00" * 32
    head = lines[-1].get("c", "00" * 32) if lines else "00" * 32
    return {"id": log, "size": len(lines), "root": root, "head": head, "key_id": key_id}


# ── a run ─────────────────────────────────────────────────────────────────────────────────────────


def inherited(*items: Json) -> str:
    return compact(list(items))


def run() -> Draft:
    """A root, an agent and a fork of the root: an answer, texts, packs, a redaction, an entry withheld."""
    secret = said("the password is swordfish", 3)
    root: list[Any] = [
        *first_entries(ROOT),
        said("build it", 1),
        fact("child", 2, child={"agent_id": 1, "session": AGENT, "label": "builder"}),
        entry("response_item", 3, type="function_call_output", call_id="c1", output=blob(TEXT)),
        secret,
        fact("child", 4, child={"agent_id": 2, "session": FORK, "label": "historian"}),
        signed_answer(ROOT, "approved"),
        fact(
            "workspace_saved",
            5,
            pack={"name": f"{ROOT}/workspaces/1.pack", "sha256": hexed(PACK), "bytes": len(PACK)},
        ),
        fact(
            "workspace_saved",
            5,
            packs=[{"name": "2.pack", "sha256": hexed(NAMED_PACK), "bytes": len(NAMED_PACK)}],
        ),
        entry("event_msg", 6, type="agent_message", message="é — done", temperature=0.5),
        entry("response_item", 6, type="function_call_output", call_id="c2", output=blob(HELD_BACK)),
    ]
    digest = _line(7, 1, compact(secret), "00" * 32, Log([]))
    root.append(
        fact(
            "redacted",
            7,
            log=f"session:{ROOT}",
            seq=7,
            digest=digest_of(digest).hex(),
            who="ada",
            why="a secret",
        )
    )
    agent: list[Any] = [*first_entries(AGENT), said("you are the builder", 2), said("go", 3), said("stop", 4)]
    item = {"type": "function_call_output", "call_id": "c0", "output": blob(INSIDE)}
    fork: list[Any] = [
        *first_entries(FORK),
        lambda chains: fact(
            "forked",
            4,
            parent={"session": ROOT, "seq": 5, "chain": chains[ROOT][5]},
            content=inherited(item, {"type": "inherited", "content": inherited(item)}),
        ),
        said("what was decided?", 5),
        said("thanks", 6),
    ]
    event = {"type": "subagent_lifecycle", "event": "created"}
    tree = [
        (ROOT, 5, entry("event_msg", 2, **event, agent_id=1)),
        (ROOT, 8, entry("event_msg", 4, **event, agent_id=2)),
        (AGENT, 4, entry("event_msg", 4, type="subagent_lifecycle", event="updated", agent_id=1)),
    ]
    return Draft(
        {ROOT: Log(root, bare={7}), AGENT: Log(agent, bare={5}), FORK: Log(fork)},
        tree,
        {TEXT: "here", INSIDE: "here", HELD_BACK: "withheld"},
        {PACK: "here", NAMED_PACK: "named"},
        withheld=[(f"session:{AGENT}", 5)],
    )


def plain_run() -> Draft:
    """The same without anything that is not there."""
    draft = run()
    draft.logs[ROOT].bare.clear()
    draft.logs[ROOT].entries.pop()
    draft.logs[AGENT].bare.clear()
    draft.withheld.clear()
    return draft


def asks(call: str = "c1", turn: str = "1", words: str = "make", n: int = 4) -> Json:
    """The event that asks a person whether a command runs."""
    told = entry("event_msg", n, type="exec_approval_request", call_id=call, command=[words])
    return {**told, "id": turn}


def request_of(event: Json) -> str:
    """The digest that a signature under an answer to it is bound to."""
    return hexed(compact(event).encode()[40:])


def signed_answer(
    session: str,
    decision: str,
    signer: Signer | None = ADA,
    turned: str = "",
    request: str = "",
    key: str = "",
    words: str = "",
) -> Json:
    """The fact of an answer; `turned` is another decision than the one that was signed.

    With the digest of a `request` it is signed as this version does, `words` being the digest of a response.
    """
    shown = "run make, outside the sandbox"
    said = f"dendro-answer/1\n{session}\n1\nc1\n{decision}\n{AT_MS}\n{hexed(shown.encode())}\n"
    if request:
        about = f"dendro-answer/2\n{session}\n1\nc1\n{request}\n"
        said = f"{about}{decision}\n{words}\n{AT_MS}\n{hexed(shown.encode())}\n"
    proof: Json = {"request": request} if request else {}
    if signer is not None:
        proof |= {
            "sig": base64.b64encode(signer.private.sign(said.encode())).decode(),
            "key": key or str(signer.key)[:12],
        }
    return fact(
        "answer",
        5,
        call_id="c1",
        turn="1",
        decision=turned or decision,
        who="ada",
        **{"answered_ms": AT_MS, "shown": shown, **({"digest": words} if words else {}), **proof},
    )


# ── receipts ──────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Register:
    """A register that saw the logs of a run grow: (log, entries seen, seconds, state) for each statement."""

    seen: list[tuple[str, int, int, str]]
    checkpoints: tuple[int, ...]
    chosen: bool = False
    strangers: int = 1
    """Statements of other trees, in front."""
    texts: Callable[[list[str]], object] = lambda texts: None
    """Spoils the statements before they are signed."""
    signer: Signer = OPERATOR
    witness: Signer | None = WITNESS

    def __call__(self, draft: Draft, lines: dict[str, list[Json]]) -> dict[str, bytes]:
        texts = [statement(f"session:{STRANGE}", STRANGE, [], 0, "open")] * self.strangers
        texts += [
            statement(log, ROOT, lines.get(log, [])[:size], at, state) for log, size, at, state in self.seen
        ]
        self.texts(texts)
        hashes = [leaf_hash(text.encode()) for text in texts]
        found = {f"receipts/{size}.note": self.note(hashes[:size]) for size in self.checkpoints}
        last = max(self.checkpoints)
        rows: list[Json] = [{"i": n, "t": text} for n, text in enumerate(texts)]
        if self.chosen:
            rows = [
                {
                    **row,
                    "n": last,
                    "p": [base64.b64encode(one).decode() for one in inclusion_proof(hashes, row["i"])],
                }
                for row in rows
                if f"\n{ROOT}\n" in row["t"]
            ]
        found["receipts/register.jsonl"] = "".join(compact(row) + "\n" for row in rows).encode()
        pairs = zip(self.checkpoints, self.checkpoints[1:], strict=False)
        proofs = [
            {
                "from": a,
                "to": b,
                "p": [base64.b64encode(one).decode() for one in consistency_proof(hashes[:b], a)],
            }
            for a, b in pairs
        ]
        return {**found, "receipts/consistency.json": (compact(proofs) + "\n").encode()}

    def note(self, hashes: list[bytes]) -> bytes:
        """The checkpoint of these statements."""
        point = Checkpoint(ORIGIN, len(hashes), root_of(hashes))
        note = self.signer.signed(point.text)
        signatures = note.signatures
        if self.witness is not None:
            signatures += (cosigned(point.text, self.witness),)
        return Note(point.text, signatures).encode()


STRANGE = "01a20009-0000-7000-8000-000000000000"


def cosigned(text: str, witness: Signer) -> Signature:
    time = AT_MS // 1000 + 600
    key = VerifierKey.of(witness.name, witness.key.public, COSIGNATURE)
    value = time.to_bytes(8, "big") + witness.private.sign(f"cosignature/v1\ntime {time}\n{text}".encode())
    return Signature(witness.name, key.id, value)


def statement(log: str, tree: str, lines: list[Json], at: int, state: str) -> str:
    head = lines[-1]["c"] if lines else "00" * 32
    root = root_of(leaves(lines)).hex()
    return f"dendro-head/1\n{log}\n{tree}\n{len(lines)}\n{root}\n{head}\n{AT_MS + at * 1000}\n{state}\n"


def register(**more: Any) -> Register:
    """The register that covers a whole run."""
    seen = [
        (f"session:{ROOT}", 4, 2, "open"),
        (f"session:{AGENT}", 4, 3, "open"),
        (f"tree:{ROOT}", 1, 3, "open"),
        (f"session:{AGENT}", 6, 8, "rest"),
        (f"session:{FORK}", 6, 8, "rest"),
        (f"tree:{ROOT}", 3, 9, "rest"),
        (f"session:{ROOT}", 14, 10, "closed"),
    ]
    return Register(seen, (3, 5, 8), **more)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


def zipped(members: Mapping[str, bytes], path: Path) -> Path:
    """The members as a ZIP."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED)
    return path
