"""Checks a bundle of a Dendro run with its receipts, on top of check_bundle.py.

By docs/protocol/bundle.md:

    python check_receipts.py run.zip [trust.json]

The trust file is the auditor's: who signs, which witnesses count, which checkpoint was seen earlier.
"""

# fmt: off
import base64
import itertools
import json
import os
import re
import sys
from datetime import UTC, datetime
from hashlib import blake2b, sha256
from pathlib import Path

from check_bundle import (
    COUNT,
    GENESIS,
    HASH,
    LOG,
    Bad,
    Check,
    cannot,
    fits,
    grow,
    node,
    read_json,
    read_note,
    require,
    root,
)
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

STATEMENT = re.compile(rf"dendro-head/1\n({LOG})\n([^\n]+)\n({COUNT})\n({HASH})\n({HASH})\n({COUNT})\n"
                       r"(open|rest|closed|redacted|deleted)\n")
PROOF = ["[0-9A-Za-z+/]{42}[048AEIMQUYcgkosw]="]  # 32 bytes in base64
CHOSEN, WHOLE = {"i": 0, "n": 1, "t": "(?s:.*)", "p": PROOF}, {"i": 0, "t": "(?s:.*)"}
LATEST_MS = 300_000

def read_key(text, kind):  # of type 1 (Ed25519) or 4 (cosignature/v1)
    found = re.fullmatch(r"([^\s+]+)[+]([0-9a-f]{8})[+]([0-9A-Za-z+/]{44})", text)
    key = base64.b64decode(found[3]) if found else b"?"
    if key[0] != kind or sha256(found[1].encode() + b"\n" + key).digest()[:4].hex() != found[2]:
        cannot(f"{text!r} is no verifier key of type {kind}")
    return found[1], bytes.fromhex(found[2]), key[0], key[1:]

def signers(note, keys, code):
    found = set()
    for name, id, kind, public in keys:
        for value in (value[4:] for who, value in note[1] if (who, value[:4]) == (name, id)):
            time = b"cosignature/v1\ntime %d\n" % int.from_bytes(value[:8], "big") if kind == 4 else b""
            try:
                signature, said = value[8:] if kind == 4 else value, time + note[0].encode()
                Ed25519PublicKey.from_public_bytes(public).verify(signature, said)
            except (InvalidSignature, ValueError):
                raise Bad(code, f"the signature of {name} does not fit") from None
            found.add((name, id))
    return found

def included(index, size, leaf, proof):  # the root to which a proof leads (RFC 9162, 2.1.3)
    if size == 1:
        return leaf
    left, beside = 1 << (size - 1).bit_length() - 1, proof.pop() if proof else b""
    if index < left:
        return node(included(index, left, leaf, proof), beside)
    return node(beside, included(index - left, size - left, leaf, proof))

def continued(old, size, old_root, proof, whole=True):  # the two roots to which a proof leads (2.1.4)
    if old == size:
        return [old_root if whole else proof.pop() if proof else b""] * 2
    left, beside = 1 << (size - 1).bit_length() - 1, proof.pop() if proof else b""
    if old <= left:
        before, after = continued(old, left, old_root, proof, whole)
        return [before, node(after, beside)]
    return [node(beside, one) for one in continued(old - left, size - left, old_root, proof, whole=False)]

class ReceiptCheck(Check):
    def __init__(self, path, trust=None):
        people = (trust or {}).get("people", {})
        keys = trust and [(n, id, key) for n, id, kind, key in trust["log"] if kind == 1]
        super().__init__(path, keys, people)
        self.trust, self.points, self.heads, self.register_read, self.chosen = trust, {}, {}, False, True
    def logs(self):
        self.guarded("receipts/", self.receipts)
        super().logs()

    def receipts(self):
        names, trust = sorted(name for name in self.sizes if name.startswith("receipts/")), self.trust
        notes = [name for name in names if name.endswith(".note")]
        asked = trust is not None and (trust.get("quorum") != 0 or trust.get("checkpoint"))
        require(names or not asked, "receipts", "there are none")
        require(not names or ("receipts/register.jsonl" in names and notes), "receipts", "a part is missing")
        signatures = {}
        for name in notes:
            self.guarded(name, self.checkpoint, name, signatures)
        if not self.points:
            return
        earlier = self.earlier()
        self.guarded("receipts/register.jsonl", self.register, earlier)
        self.guarded("receipts/consistency.json", self.consistency, earlier)
        if trust is not None:
            newest, signed = signatures[max(self.points)], 0
            for key in trust["witnesses"]:
                try:
                    signed += bool(signers(newest, [key], "witnesses"))
                except Bad as bad:
                    self.find(*bad.args)
            if signed < self.needed():
                self.find("witnesses", f"receipts/{max(self.points)}.note", f"{signed} of them signed")

    def needed(self):  # of the witnesses
        trust = self.trust or {"quorum": 0}
        return trust["quorum"] if "quorum" in trust else min(1, len(trust["witnesses"]))

    def point(self, data, code):
        note = read_note(data)
        lines = note[0].split("\n")
        sound = len(lines) > 3 and fits(lines[1], COUNT) and fits([lines[2]], PROOF)
        require(sound and lines[0] == self.told["origin"], code, "it is no checkpoint of this origin")
        if self.trust is not None:
            names = {name for name, _ in signers(note, self.trust["log"], code)}
            require(self.told["origin"] in names, code, "no key that you trust has signed it")
        return int(lines[1]), base64.b64decode(lines[2]), note

    def checkpoint(self, name, signatures):
        try:
            size, hash, note = self.point(b"".join(self.read(name)), "checkpoint")
        except Bad as bad:
            raise Bad("checkpoint", bad.args[1]) from None
        require(f"receipts/{size}.note" == name, "checkpoint", "it is one of another size")
        self.points[size], signatures[size] = hash, note

    def earlier(self):
        text = self.trust.get("checkpoint") if self.trust is not None else None
        if text is None:
            return None
        try:
            size, hash, _ = self.point(text.encode(), "earlier")
            require(size <= max(self.points), "earlier", "the one that you had is a later one")
        except Bad as bad:
            return self.find("earlier", "receipts/", bad.args[1])
        return size, hash

    def register(self, earlier):
        peaks, size, last, index, chosen = [], 0, 0, -1, None
        for line in self.read("receipts/register.jsonl", lines=True):
            value = read_json(line, "register")
            require(fits(value, CHOSEN) or fits(value, WHOLE), "register", "a line of another form")
            require(chosen in (None, "n" in value), "register", "whole and chosen lines are mixed")
            chosen, before, index = "n" in value, index, value["i"]
            require(index > before if chosen else index == size, "register", "out of order")
            said = STATEMENT.fullmatch(value["t"])
            require(said is not None, "register", "no statement")
            log, tree, at, hash, chain, ms, state = said.groups()
            if int(ms) < last:
                self.find("time", f"statement {index}", "dated before the one before it")
            last, leaf = max(last, int(ms)), sha256(b"\0" + value["t"].encode()).digest()
            if chosen:
                require(value["n"] in self.points and index < value["n"], "register", "no such checkpoint")
                proof = [base64.b64decode(one) for one in value["p"]]
                holds = included(index, value["n"], leaf, proof) == self.points[value["n"]] and not proof
                require(holds, "register", "its proof leads elsewhere")
            else:
                grow(peaks, size, leaf)
                size += 1
                if self.points.get(size, root(peaks)) != root(peaks):
                    self.find("register", f"receipts/{size}.note", "it has another root")
                if earlier and earlier[0] == size and earlier[1] != root(peaks):
                    self.find("earlier", f"receipts/{size}.note", "the one that you had has another root")
            if tree == self.told["tree"]:
                self.heads.setdefault(log, []).append((int(at), index, hash, chain, int(ms), state))
        self.register_read, self.chosen = True, bool(chosen)
        if chosen and self.needed() and not self.trust.get("chosen"):
            self.find("chosen", "receipts/register.jsonl", "chosen receipts cannot show completeness")
        require(chosen or size == max(self.points), "register", f"it has {size} statements")

    def consistency(self, earlier):
        points, name, shown = dict(self.points), "receipts/consistency.json", set()
        if earlier and points.setdefault(*earlier) != earlier[1]:
            raise Bad("earlier", "it has another root than the one that you had")
        proofs = read_json(b"".join(self.read(name)), "consistency") if name in self.sizes else []
        require(fits(proofs, [{"from": 0, "to": 0, "p": PROOF}]), "consistency", "no list of proofs")
        for one in proofs:
            old, new = one["from"], one["to"]
            require(new in points, "consistency", f"there is no checkpoint of size {new}")
            if old in points:
                proof = [base64.b64decode(hash) for hash in one["p"]]
                both = [points[old], points[new]]
                holds = 0 < old < new and continued(old, new, points[old], proof) == both and not proof
                require(holds or (old == 0 < new and not one["p"]), "consistency", f"{old} and {new}")
                shown.add((old, new))
        sizes = sorted(points)
        for pair in itertools.pairwise(sizes) if self.chosen else ():
            if pair not in shown:
                self.find("consistency", name, f"nothing shows that {pair[1]} continues {pair[0]}")

    def log(self, log):
        heads = sorted(self.heads.get(log["id"], []))
        super().log(log)
        self.under(log, heads)

    def under(self, log, heads):
        peaks, size, head, at = [], 0, GENESIS, 0
        for line in [None, *self.read(self.log_files[log["id"]], lines=True)] if heads else ():
            if line is not None:
                value = json.loads(line)
                text, place = value.get("p"), value["s"].to_bytes(8, "big") + value["e"].to_bytes(8, "big")
                salted = bytes.fromhex(value.get("salt", "")) + (text or "").encode()
                d = bytes.fromhex(value["d"]) if text is None else blake2b(salted, digest_size=32).digest()
                head = bytes.fromhex(value["c"])
                grow(peaks, size, sha256(b"\0" + place + d + head).digest())
                size += 1
                covering = [ms for until, _, _, _, ms, _ in heads if until >= size]
                if text is not None and covering and self.dated(text) > min(covering) + LATEST_MS:
                    self.find("time", f"{log['id']}:{size}", "dated after a statement that covers it")
            while at < len(heads) and heads[at][0] == size:
                if (root(peaks).hex(), head.hex()) != heads[at][2:4]:
                    self.find("prefix", f"{log['id']}:{size}", "a statement says another past")
                at += 1

    def dated(self, text):
        try:
            moment = datetime.fromisoformat(json.loads(text)["timestamp"])
        except (ValueError, TypeError, KeyError):
            return 0
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000

    def tree(self):
        super().tree()
        for id, heads in self.heads.items() if self.register_read else ():
            gone = id.removeprefix("session:") in self.left_out and max(heads)[5] == "deleted"
            if id not in self.logs_told and not gone:
                self.find("complete", id, "it has statements, and is not here")
        for id, size in self.logs_told.items() if self.register_read else ():
            covered = max(self.heads.get(id, [(0,)]))[0]
            if covered != size:
                self.find("uncovered" if covered < size else "complete", id, f"it is covered up to {covered}")

def main(path="", trust=None):
    if not all(map(os.path.exists, (path, trust or path))):
        cannot("name files that are there: check_receipts.py run.zip [trust.json]")
    told = json.loads(Path(trust).read_text()) if trust else None
    for name, kind in (("log", 1), ("witnesses", 4)) if told is not None else ():
        told[name] = [read_key(text, kind) for text in told.get(name, [])]
    check = ReceiptCheck(path, told)
    for finding in check.run():
        print(*map(ascii, finding))
    print("does not hold" if check.found else "holds")
    raise SystemExit(1 if check.found else 0)

if __name__ == "__main__":
    main(*sys.argv[1:3])
