"""Checks a bundle of a Dendro run, by docs/protocol/bundle.md alone: nothing of Dendro's is imported.

`python check_bundle.py run.zip [trust.json]` ends with 0 (holds), 1 (findings) or 2 (cannot be checked)."""

# fmt: off
import base64, functools, itertools, json, os, re, stat, sys, zipfile, zlib  # noqa: E401, I001
from hashlib import blake2b, sha256
from pathlib import Path
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
ID, HASH, COUNT = r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}", "[0-9a-f]{64}", "(?:0|[1-9][0-9]{0,17})"
LOG, LINE, ANY = f"(?:session|tree):{ID}", r"[^\x00-\x1f]+", "(?s:.*)"
LISTED = (rf"logs/(?:session|tree)-{ID}[.]jsonl|texts/{HASH}|packs/{HASH}[.]pack"
          rf"|receipts/(?:register[.]jsonl|consistency[.]json|{COUNT}[.](?:note|tsr))")
# Forms: a text is a pattern, a number the least one, a list is of one form, a tuple has one for each place.
MANIFEST = {
    "format": "dendro-bundle", "version": 1, "origin": LINE, "made": LINE, "by": LINE, "tree": ID,
    "logs": [{"id": LOG, "size": 0, "root": HASH, "head": HASH, "key_id": ANY}],
    "left_out": [ID], "withheld": [(LOG, 1)],
    "texts": {HASH: {"bytes": 0, "state": "here|withheld|redacted"}},
    "packs": {HASH: {"bytes": 0, "state": "here|named|withheld"}},
    "files": {LISTED: {"sha256": HASH, "bytes": 0}}}
BARE = {"s": 1, "e": 0, "c": HASH, "d": HASH}
ENTRY = {"s": 1, "e": 0, "c": HASH, "salt": "(?:[0-9a-f]{32})?", "p": ANY}
MOST_LINE, MOST_MEMBERS, MOST_BARE = 16 << 20, 100_000, 100_000
DAMAGED = (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, OSError, ValueError, OverflowError)
ASKS = "(?:(?:exec|apply_patch|plan)_approval|ask_user_question|elicitation)_request|request_user_input"
FOLDERS, GENESIS = ("logs/", "texts/", "packs/", "receipts/"), bytes(32)
Bad = type("Bad", (Exception,), {})  # not what the format says: a code, and why
def cannot(why):
    print("check_bundle: it cannot be checked here:", why, file=sys.stderr)
    raise SystemExit(2)
def require(holds, code, why=""):
    if not holds:
        raise Bad(code, why)
def fits(value, form):
    if isinstance(form, (str, int)):
        plain = isinstance(value, str) and isinstance(form, str) and re.fullmatch(form, value) is not None
        return plain or (isinstance(form, int) and type(value) is int and form <= value < 1 << 63)
    if isinstance(form, (list, tuple)):
        whole = type(value) is list and (isinstance(form, list) or len(value) == len(form))
        return whole and all(map(fits, value, itertools.cycle(form)))
    if len(form) == 1:  # a map: of one form of keys, to one of values
        keys, values = next(iter(form.items()))
        return type(value) is dict and all(fits(key, keys) and fits(value[key], values) for key in value)
    return type(value) is dict and value.keys() == form.keys() and all(fits(value[k], form[k]) for k in form)
def mapping(value):
    return value if type(value) is dict else {}
def once(pairs):
    require(len(dict(pairs)) == len(pairs), "key-twice", "a key stands twice")
    return dict(pairs)
def read_json(data, code, parse_float=int):  # `int` refuses floats and NaN
    try:
        text = data if isinstance(data, str) else data.decode()
        return json.loads(text, object_pairs_hook=once, parse_constant=int, parse_float=parse_float)
    except (ValueError, RecursionError, Bad) as error:
        raise Bad("key-twice" if code == "entry" and isinstance(error, Bad) else code, str(error)) from None
def node(left, right):
    return sha256(b"\x01" + left + right).digest()
def grow(peaks, size, leaf):  # a Merkle tree is the roots of its full parts, the largest first
    while size & 1:
        leaf, size = node(peaks.pop(), leaf), size >> 1
    peaks.append(leaf)
def root(peaks):
    found = peaks[-1] if peaks else sha256(b"").digest()
    return functools.reduce(lambda right, left: node(left, right), peaks[-2::-1], found)
def read_key(text):
    found = re.fullmatch(r"([^\s+]+)[+]([0-9a-f]{8})[+]([0-9A-Za-z+/]{44})", text)
    key = base64.b64decode(found[3]) if found else b"?"
    if key[0] != 1 or sha256(found[1].encode() + b"\n" + key).digest()[:4].hex() != found[2]:
        cannot(f"{text!r} is no key of a log")
    return found[1], bytes.fromhex(found[2]), key[1:]
def read_note(data):
    try:
        text, blank, rest = data.decode().rpartition("\n\n")
        found = [(m[1], base64.b64decode(m[2])) for m in re.finditer(r"— ([^\s+]+) (\S+)\n", rest)]
    except ValueError:
        raise Bad("note", "it is no signed note") from None
    lines = "".join(f"— {name} {base64.b64encode(value).decode()}\n" for name, value in found)
    sound = blank and lines == rest and all(len(value) > 4 for _, value in found) and len(data) <= 256 << 10
    require(sound and not re.search(r"[\x00-\x09\x0b-\x1f]", text + rest), "note", "it is no signed note")
    return text + "\n", found
def signs(public, value, text):
    try:
        signature = value if isinstance(value, bytes) else base64.b64decode(str(value), validate=True)
        return Ed25519PublicKey.from_public_bytes(public).verify(signature, text.encode()) is None
    except (InvalidSignature, ValueError):
        return False
def signers(note, keys):  # a signature that names a key and is none of it is wrong
    found = set()
    for name, id, public in keys:
        for value in (value[4:] for who, value in note[1] if (who, value[:4]) == (name, id)):
            require(signs(public, value, note[0]), "note", f"the signature of {name} does not fit")
            found.add(name)
    return found
def references(value, packs=False):  # the texts that a value names, or the packs: hash and bytes
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if packs and {"name", "bytes"} <= mapping(one).keys() and fits(one.get("sha256"), HASH):
            yield one["sha256"], one["bytes"]
        if not packs and fits(one, {"$blob": HASH, "bytes": 0}):
            yield one["$blob"], one["bytes"]
        elif type(one) in (dict, list):
            waiting += one.values() if type(one) is dict else one
class Check:
    def __init__(self, path, keys=None, people=()):
        self.found, self.path, self.keys, self.zip, self.sizes = [], Path(path), keys, None, {}
        named = [(name, key) for called, key in dict(people).items() for name in (called, read_key(key)[0])]
        self.people = [(f"{name}{key[len(read_key(key)[0]):]}+", read_key(key)[2]) for name, key in named]
        self.files, self.forks, self.signed = {}, {}, set()
        self.unread, self.made, self.named_by_tree = set(), set(), set()
        self.bare, self.redacted, self.chains, self.named = {}, {}, {}, {"texts": {}, "packs": {}}
    def find(self, code, place="", why=""):
        self.found.append((code, place, why))
    def guarded(self, place, act, *given):
        try:
            act(*given)
        except Bad as bad:
            self.find(bad.args[0], place, bad.args[1])
    def run(self):
        for step in (self.open, self.manifest, self.logs, self.tree, self.absent, self.contents):
            self.guarded("", step)
            if self.found and not self.files:
                break
        return self.found
    def open(self):
        try:
            if self.path.is_dir():
                for path in self.path.rglob("*"):
                    name, mode = path.relative_to(self.path).as_posix(), path.lstat().st_mode
                    if not (stat.S_ISDIR(mode) and f"{name}/" in FOLDERS):
                        self.take(name, path.lstat().st_size, stat.S_ISREG(mode))
                return
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - (33 << 20)))
                require(file.read().count(b"PK\x01\x02") <= MOST_MEMBERS, "container", "too many members")
            self.zip = zipfile.ZipFile(self.path)
            for info in (i for i in self.zip.infolist() if i.file_size or i.orig_filename not in FOLDERS):
                plain = not info.flag_bits & 0x2041 and info.external_attr >> 28 in (0, 8)
                self.take(info.orig_filename, info.file_size, plain and info.compress_type in (0, 8))
        except DAMAGED as error:
            raise Bad("container", str(error)) from None
    def take(self, name, size, sound):
        require(re.fullmatch(rf"manifest[.](?:json|note)|{LISTED}", name), "member-name", name[:120])
        require(sound and name not in self.sizes, "container", name)
        self.sizes[name] = size
        self.unread.add(name)
        require(len(self.sizes) <= MOST_MEMBERS, "container", "too many members")
    def read(self, name, lines=False):  # in pieces, or in lines; held against the manifest at the end
        require(name in self.sizes, "member-missing", name)
        stated, digest, size = self.files.get(name), sha256(), 0
        self.unread.discard(name)
        try:
            with self.zip.open(name) if self.zip else (self.path / name).open("rb") as member:
                while piece := member.readline(MOST_LINE + 1) if lines else member.read(1 << 20):
                    size += len(piece)
                    digest.update(piece)
                    if stated and size > stated["bytes"]:
                        break
                    require(not lines or piece.endswith(b"\n"), "line", "a line has no end, or is too long")
                    yield piece.removesuffix(b"\n") if lines else piece
        except DAMAGED as error:
            raise Bad("container", f"{name}: {error}") from None
        if stated and (size, digest.hexdigest()) != (stated["bytes"], stated["sha256"]):
            self.find("member-changed", name)
    def manifest(self):
        require(sum(self.sizes.values()) <= 64 << 30, "container", "it is too large")
        data = b"".join(itertools.islice(self.read("manifest.json"), 33))
        told = self.told = read_json(data, "manifest")
        if mapping(told).get("format") == "dendro-bundle" and fits(told.get("version"), 2):
            cannot("it is of a later version")
        require(fits(told, MANIFEST) and len(data) <= 32 << 20, "manifest", "it has not the form of one")
        self.logs_told = {log["id"]: log["size"] for log in told["logs"]}
        self.log_files = {id: f"logs/{id.replace(':', '-', 1)}.jsonl" for id in self.logs_told}
        self.withheld, self.left_out = {*map(tuple, told["withheld"])}, {*told["left_out"]}
        listed = [len(told[name]) for name in ("logs", "withheld", "left_out")]
        require([*map(len, (self.logs_told, self.withheld, self.left_out))] == listed, "manifest", "twice")
        self.files = told["files"]
        self.guarded("manifest.note", self.note, data)
        for name in self.sizes.keys() - {"manifest.json", "manifest.note"} ^ self.files.keys():
            self.find("member-unlisted" if name in self.sizes else "member-missing", name)
        here = {*self.log_files.values()}
        for kind, end in (("texts", ""), ("packs", ".pack")):
            here |= {f"{kind}/{n}{end}" for n, one in told[kind].items() if one["state"] == "here"}
        for name in here ^ {name for name in self.files if not name.startswith("receipts/")}:
            self.find(f"{name.partition('/')[0][:-1]}-file", name)
    def note(self, data):
        keys, origin = self.keys or (), self.told["origin"]
        note = read_note(b"".join(itertools.islice(self.read("manifest.note"), 2)))
        require(note[0] == f"dendro-bundle/1\n{origin}\n{sha256(data).hexdigest()}\n", "note", "another's")
        named = {origin} & {key[0] for key in keys} or {key[0] for key in keys}
        require(self.keys is None or named & signers(note, keys), "signer", "no key that you trust")
    def logs(self):
        for log in sorted(self.told["logs"], key=lambda log: log["id"]):  # sessions before the tree
            if self.log_files[log["id"]] in self.sizes:
                self.guarded(log["id"], self.log, log)
    def log(self, log):
        id, peaks, size, head, is_tree = log["id"], [], 0, GENESIS, log["id"].startswith("tree:")
        self.asked, self.whole = set(), True  # requests to people that are open, by their digests
        chains, by = self.chains.setdefault(id, bytearray()), {"by": ID} if is_tree else {}
        checked = not is_tree and not log.get("key_id")  # without the key a keyed chain shows nothing
        for line in self.read(self.log_files[id], lines=True):
            value = read_json(line, "line")
            compact = [json.dumps(value, separators=(",", ":"), ensure_ascii=plain) for plain in (0, 1)]
            require(line.decode() in compact, "line", "it is not compact JSON")
            require(fits(value, ENTRY | by) or fits(value, BARE | by), "line", "it has other fields")
            require(value["s"] == size + 1, "gap", f"the next entry is {value['s']}")
            text, numbers = value.get("p"), (size + 1).to_bytes(8, "big") + value["e"].to_bytes(8, "big")
            require(not re.search("[\ud800-\udfff]", text or ""), "line", "half of a surrogate pair")
            salted = bytes.fromhex(value.get("salt", "")) + (text or "").encode()
            d = bytes.fromhex(value["d"]) if text is None else blake2b(salted, digest_size=32).digest()
            before, head, size = head, bytes.fromhex(value["c"]), size + 1
            if checked and blake2b(before + numbers + d, digest_size=32).digest() != head:
                checked = self.find("chain", f"{id}:{size}")
            grow(peaks, size - 1, sha256(b"\x00" + numbers + d + head).digest())
            chains += head
            if is_tree:
                self.cause(value, f"{id}:{size}")
            if text is not None:
                self.guarded(f"{id}:{size}", self.entry, id, size, text)
            else:
                self.bare[id, size], self.whole = value["d"], False
                require(len(self.bare) <= MOST_BARE, "unexplained", "too many lines have no text")
        require(size == log["size"], "size", f"it has {size} entries")
        for code, hash in (("root", root(peaks)), ("head", head)):
            self.find(code, id) if hash.hex() != log[code] else None
    def chain_at(self, session, seq):
        chains, at = self.chains.get(f"session:{session}"), 32 * seq if fits(seq, 0) else -1
        return None if chains is None or at < 0 else (chains[at - 32 : at] if at else GENESIS).hex()
    def cause(self, line, place):
        if line["by"] in self.left_out:
            self.named_by_tree.add(line["by"])
        elif self.chain_at(line["by"], line["e"]) != line["c"]:
            self.find("cause", place, "no entry caused it")
    def entry(self, id, seq, text):
        value = read_json(text, "entry", float)
        require(type(value) is dict, "entry", "it is no object")
        told, kind, (log, _, session) = mapping(value.get("payload")), value.get("type"), id.partition(":")
        fact = told.get("kind") if (log, kind) == ("session", "dendro") else None
        if log == "session" and seq <= 3:
            own = mapping(told.get("session")) if fact == "configured" else {}
            event = (kind, told.get("type")) == ("event_msg", "session_configured")
            named = told.get("id") if kind == "session_meta" else (told if event else own).get("session_id")
            if named not in (None, session) or own.get("tree_id") not in (None, self.told["tree"]):
                self.find("naming", f"{id}:{seq}", "it names another session or tree")
        for digest, size in references(value):
            self.name("texts", digest, size, f"{id}:{seq}")
        for digest, size in references(told, packs=True) if (log, kind) == ("session", "dendro") else ():
            self.name("packs", digest, size, f"{id}:{seq}")
        if (log, kind) == ("session", "event_msg") and fits(told.get("type"), ASKS):
            self.whole &= len(self.asked) < MOST_BARE
            self.asked |= {sha256(text.encode()[40:]).hexdigest()} if len(self.asked) < MOST_BARE else set()
        if fact == "child":
            child = str((mapping(told.get("child")) or told).get("session"))
            known = f"session:{child}" in self.logs_told or child in self.left_out
            self.made.add(child) if known else self.find("child-absent", f"{id}:{seq}", child)
        if fact == "answer" and told.get("agent_id") is None and "sig" in told:
            self.answer(f"{id}:{seq}", session, {"key": "", "shown": "", "request": "", "digest": "", **told})
        if fact == "redacted":
            seq = told["seq"] if fits(told.get("seq"), 1) else -1
            self.redacted[str(told.get("log")), seq] = str(told.get("digest"))
        if fact == "forked":
            self.forks[f"{id}:{seq}"] = mapping(told.get("parent"))
            self.inherited(told.get("content"))
    def answer(self, place, session, told):  # a person's signature under it, for one request
        key, shown, asked = str(told["key"]), told["shown"], str(told["request"])
        text = str(shown).encode(errors="surrogatepass")  # JSON may name half of a pair
        digest = shown.get("$blob") if type(shown) is dict else sha256(text).hexdigest()
        form = "2 turn call_id request decision digest" if asked else "1 turn call_id decision"
        version, *parts = *form.split(), "answered_ms"
        said = "\n".join(map(str, [f"dendro-answer/{version}", session, *map(told.get, parts), digest, ""]))
        ours = any(name.startswith(key.partition("+")[0] + "+") for name, _ in self.people)
        sound = any(signs(one, told["sig"], said) for name, one in self.people if name.startswith(key + "+"))
        sig = base64.b64decode(str(told["sig"])) if sound else b""
        there = asked in self.asked or not (asked and self.whole)
        if ours and not (sound and there and sig not in self.signed):
            self.find("answer", place, f"none of {key} under it, or for another request, or given before")
        elif ours:
            self.asked.discard(asked)
            self.signed.add(sig)
    def inherited(self, content):  # a conversation names texts, too, and so does what it had inherited itself
        if type(content) is dict:
            name = f"texts/{content.get('$blob')}"
            if name not in self.unread or self.sizes[name] > 16 << 20:
                return
            content = b"".join(self.read(name)).decode("utf-8", "surrogatepass")
        try:
            items = json.loads(content)
        except (ValueError, TypeError, RecursionError):
            return
        for digest, size in references(items):
            self.name("texts", digest, size, "an inherited conversation")
        for item in items if type(items) is list else ():
            if mapping(item).get("type") == "inherited":
                self.inherited(item.get("content"))
    def name(self, kind, digest, size, place):
        if digest in self.told[kind]:
            self.named[kind].setdefault(digest, set()).add(size)
        else:
            self.find(f"{kind[:-1]}-missing", place, f"{digest} is neither here nor declared")
    def tree(self):
        root, here, left_out = self.told["tree"], self.logs_told.keys(), self.left_out
        sessions = {id[8:] for id in here if id.startswith("session:")}
        unnamed = set() if self.bare else left_out - self.made - self.named_by_tree - {root}
        for code, names in (
            ("tree-absent", {f"tree:{root}"} - here), ("root-absent", {root} - sessions - left_out),
            ("maker-absent", sessions - self.made - {root}), ("left-out", left_out & sessions | unnamed),
            ("log-file", {id for id in here if id.startswith("tree:")} - {f"tree:{root}"}),
            ("fork", {at for at, parent in self.forks.items() if parent.get("session") in sessions
                      and self.chain_at(parent["session"], parent.get("seq")) != parent.get("chain")}),
        ):
            for name in names:
                self.find(code, name)
    def absent(self):
        for at, digest in self.bare.items():
            if at in self.redacted and at in self.withheld and self.redacted[at] == digest:
                self.find("explained", at, "it is withheld, and redacted")
            elif self.redacted.get(at, digest if at in self.withheld else "") != digest:
                self.find("unexplained", at, "it has no text")
        for at in self.withheld | {at for at in self.redacted if at[1] <= self.logs_told.get(at[0], -2)}:
            self.find("explained", at, "it has a text") if at not in self.bare else None
    def contents(self):
        for kind, end in (("texts", ""), ("packs", ".pack")):
            for digest, one in self.told[kind].items():
                name, said = f"{kind}/{digest}{end}", self.named[kind].get(digest)
                file = self.files.get(name, {"sha256": digest, "bytes": one["bytes"]})
                other = said and one["bytes"] not in said and (kind == "packs" or one["state"] != "here")
                if other or file != {"sha256": digest, "bytes": one["bytes"]}:
                    self.find(f"{kind[:-1]}-changed", name, "it is not what it is said to be")
                if one["state"] == "redacted" and not self.redacted:
                    self.find(f"{kind[:-1]}-changed", name, "nothing was redacted")
                if said is None:
                    self.find(f"{kind[:-1]}-unnamed", name, "no entry names it")
        for name in self.unread - {"manifest.json", "manifest.note"}:
            self.guarded(name, lambda name=name: [None for _ in self.read(name)])
def main(path="", trust=None):
    if not all(map(os.path.exists, (path, trust or path))):
        cannot("name files that are there: check_bundle.py run.zip [trust.json]")
    told = json.loads(Path(trust).read_text()) if trust else {}
    if trust and (told.get("quorum", 1) or told.get("checkpoint")):
        cannot("the trust file asks for receipts, which this program does not read (say quorum 0)")
    check = Check(path, trust and [*map(read_key, told.get("log", []))], told.get("people", ()))
    for finding in check.run(): print(*map(ascii, finding))  # noqa: E701
    if check.found: raise SystemExit(1)  # noqa: E701
    if any(name.startswith("receipts/") for name in check.sizes):
        cannot("it holds but for its receipts, which this program does not read")
    print("agrees with itself;", "signed by a key you trust" if trust else "who made it is not shown")
if __name__ == "__main__":
    main(*sys.argv[1:3])
