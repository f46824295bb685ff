"""Makes the sessions of this folder with another version of Dendro, as a user of that version would.

    cd CHECKOUT && PYTHONPATH=. .venv/bin/python …/tests/old_sessions/make.py OUT

CHECKOUT is the version's source with its own environment; git and redis-server are needed. Each of the two
deployments (`plain`, and `keyed` with the chain key below) leaves in OUT

    redis.json.gz   every key of its Redis: type, and value in base64
    archive/        the sealed segments
    files/          exports, and the rollout files that its workers wrote
    index.json      which session is which, and what that version said of it

The sessions name folders below `ROOT`: whoever resumes one puts the workspace there again. Imports nothing
of Dendro, so that it runs with any version.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.redis_clients import PlainRedis

ROOT = Path("/tmp/dendro-old-sessions")
SECRET, KEY_ID = "a secret of the old sessions", "old-1"
PATIENCE_S = 60.0
CONFIG = """
model = "gpt-5"
pool = "old"
[worker]
pools = ["old"]
[log]
snapshot_every = 16
[upkeep]
seal_after = 20
archive_after_days = 0
"""
FILES = {
    "hello/main.py": "print('hello')\n" * 3,
    "hello/words.py": "GREETING = 'hello'\n",
    "tests/test_words.py": "def test_greets():\n    assert True\n",
    "README.md": "# Small\n",
}
TREE_PROMPT = "Survey this repository with agents, and merge what they find into REPORT.md."
PATCH = "*** Begin Patch\n*** Add File: note.txt\n+a note\n*** End Patch\n"
LONG = "for n in $(seq 1 1500); do echo line $n of a long output; done"
NAP_S = 0.1


def shell(command: str, **more: Any) -> dict[str, Any]:
    return {"items": [{"call": "shell", "args": {"command": ["bash", "-c", command], **more}}]}


def says(text: str) -> dict[str, Any]:
    return {"items": [{"text": text}]}


TALK = [
    shell("echo one"),
    shell(LONG),
    {"items": [{"call": "apply_patch", "args": {"input": PATCH}}]},
    {"items": [{"call": "update_plan", "args": {"plan": [{"step": "look", "status": "completed"}]}}]},
    says("The first answer."),
    shell("echo two"),
    says("The second answer."),
    shell("echo three"),
    says("The third answer."),
]
ASKS = [
    {
        "items": [
            {
                "call": "shell",
                "args": {
                    "command": ["touch", "/var/asked.txt"],
                    "with_escalated_permissions": True,
                    "justification": "a test asks",
                },
            }
        ]
    },
    says("It was answered."),
]
SLEEPS = [shell("sleep 60", timeout_ms=90_000), says("Woken.")]


@dataclass(frozen=True)
class Deployment:
    """A Redis, a home, a workspace."""

    folder: Path
    environ: dict[str, str]
    redis: PlainRedis

    def dendro(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "orchestrator.cli.main", *words]

    def run(self, *words: str, expect: int = 0, text: str = "") -> str:
        done = subprocess.run(
            self.dendro(*words),
            input=text,
            capture_output=True,
            text=True,
            cwd=self.folder / "workspace",
            env=self.environ,
            timeout=PATIENCE_S,
        )
        if done.returncode != expect:
            raise SystemExit(f"dendro {' '.join(words)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    @contextmanager
    def started(self, *words: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
        """A process of this deployment, ended by its id."""
        with subprocess.Popen(
            self.dendro(*words), cwd=self.folder / "workspace", env=self.environ, text=True, **more
        ) as process:
            try:
                yield process
            finally:
                process.terminate()

    @contextmanager
    def model(self, steps: list[dict[str, Any]] | str) -> Iterator[Deployment]:
        """The same with a stubbed model: a scenario's steps, or the name of a behaviour."""
        words = ["--behaviour", steps] if isinstance(steps, str) else ["--scenario", self._scenario(steps)]
        with self.started("model-stub", *words, stdout=subprocess.PIPE) as stub:
            assert stub.stdout is not None
            url = stub.stdout.readline().strip()
            more = {"OPENAI_BASE_URL": url, "OPENAI_API_KEY": "none"}
            yield Deployment(self.folder, {**self.environ, **more}, self.redis)

    def _scenario(self, steps: list[dict[str, Any]]) -> str:
        file = self.folder / "scenario.json"
        file.write_text(json.dumps(steps))
        return str(file)

    def sessions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.run("sessions", "--json"))
        return found

    def newest(self) -> str:
        return str(max(row["session_id"] for row in self.sessions()))


def until(what: str, holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        if time.monotonic() > deadline:
            raise SystemExit(f"it never came to this: {what}")
        time.sleep(NAP_S)


# ── the sessions ──────────────────────────────────────────────────────────────────────────────


def talk(d: Deployment) -> str:
    """Commands, a long output, a patch, a plan; snapshots; three turns, of which upkeep seals two."""
    with d.model(TALK) as user:
        user.run("run", "the first question")
        session = user.newest()
        user.run("run", "--resume", session, "the second question")
        with user.started("upkeep", stderr=subprocess.PIPE) as upkeep:
            assert upkeep.stderr is not None
            for line in upkeep.stderr:
                if "sealed through" in line:
                    break
        user.run("run", "--resume", session, "the third question")
    return session


def closed(d: Deployment) -> str:
    """Ended by `shutdown`, sealed to its end and archived."""
    with d.model([says("Goodbye.")]) as user:
        submissions = [user_input("a", "say goodbye"), {"id": "b", "op": {"type": "shutdown"}}]
        proto(user, submissions, {"a": "task_complete", "b": "shutdown_complete"})
        session = user.newest()
        with user.started("upkeep", stderr=subprocess.PIPE) as upkeep:
            assert upkeep.stderr is not None
            for line in upkeep.stderr:
                if "archived" in line:
                    break
    return session


def compacted(d: Deployment) -> str:
    with d.model([says("first"), says("A SUMMARY OF THE TALK"), says("after the compaction")]) as user:
        submissions = [
            user_input("a", "one"),
            {"id": "b", "op": {"type": "compact"}},
            user_input("c", "two"),
        ]
        proto(user, submissions, dict.fromkeys("abc", "task_complete"))
        return user.newest()


def interrupted(d: Deployment) -> str:
    with d.model([*SLEEPS, says("Said later.")]) as user:
        submissions = [user_input("a", "sleep"), {"id": "b", "op": {"type": "interrupt"}}]
        proto(user, submissions, {"a": "exec_command_begin", "b": "turn_aborted"})
        return user.newest()


def asking(d: Deployment) -> str:
    """An approval is left open."""
    with d.model(ASKS) as user:
        user.run("run", "ask for something", expect=3)
        return user.newest()


def lost(d: Deployment) -> str:
    """The worker was killed while a command ran: made last, or another worker would take it over."""
    with d.model(SLEEPS) as user, user.started("worker", stdout=subprocess.DEVNULL) as worker:
        with user.started(
            "run", "--no-worker", "--json", "sleep until you are killed", stdout=subprocess.PIPE
        ) as run:
            assert run.stdout is not None
            for line in run.stdout:
                if "exec_command_begin" in line:
                    break
            worker.kill()
            run.kill()
        return user.newest()


def tree(d: Deployment) -> str:
    """A root that waits, agents, a fork, an approval below it, letters."""
    with d.model("tree") as user, user.started("worker", stdout=subprocess.DEVNULL):
        user.run("run", "--no-worker", TREE_PROMPT, expect=3)
        root = max(row["session_id"] for row in user.sessions() if row["session_id"] == row["tree_id"])

        def still() -> bool:
            agents = json.loads(user.run("tree", root, "--json"))["agents"]
            busy = [a["agent_id"] for a in agents if a.get("status") in ("queued", "running")]
            return len(busy) == 1 and busy != [0] and agents[0]["session_status"] == "waiting"

        until("the tree stands still", still)
    return str(root)


def user_input(id: str, text: str) -> dict[str, Any]:
    return {"id": id, "op": {"type": "user_input", "items": [{"type": "text", "text": text}]}}


def proto(d: Deployment, submissions: list[dict[str, Any]], awaited: dict[str, str]) -> None:
    """Submits one after the other, each when the event is there that the one before was to cause."""
    with d.started("proto", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for submission in submissions:
            process.stdin.write(json.dumps(submission) + "\n")
            process.stdin.flush()
            wanted = awaited[submission["id"]]
            for line in process.stdout:
                if json.loads(line)["msg"]["type"] == wanted:
                    break
        process.stdin.close()
        process.stdout.read()
        process.wait(PATIENCE_S)


MAKERS = {
    "plain": (talk, closed, compacted, interrupted, asking, tree, lost),
    "keyed": (talk, asking, tree),
}


# ── a deployment, and what is kept of it ──────────────────────────────────────────────────────


@contextmanager
def deployed(name: str) -> Iterator[Deployment]:
    folder = ROOT / name
    (folder / "home").mkdir(parents=True)
    (folder / "home" / "dendro.toml").write_text(CONFIG)
    workspace = folder / "workspace"
    git = ["git", "-C", str(workspace), "-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    for file, text in FILES.items():
        (workspace / file).parent.mkdir(exist_ok=True, parents=True)
        (workspace / file).write_text(text)
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "First"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    socket = Path(tempfile.mkdtemp(prefix="dr-")) / "s"
    environ = {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": str(folder),
        "DENDRO_HOME": str(folder / "home"),
        "DENDRO_REDIS_URL": f"unix://{socket}",
        "PYTHONPATH": str(Path.cwd()),
        **({"DENDRO_CHAIN_SECRET": SECRET, "DENDRO_CHAIN_KEY_ID": KEY_ID} if name == "keyed" else {}),
    }
    words = ["redis-server", "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as server:
        try:
            until("Redis serves", socket.exists)
            with PlainRedis.from_url(f"unix://{socket}") as redis:
                yield Deployment(folder, environ, redis)
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()
            shutil.rmtree(socket.parent)


TRANSIENT = (b"ready:", b"control:", b"workers", b"heard", b"arq:", b"eq:")
"""Notices, heartbeats, the upkeep queue, and events that expire in any case."""


def dump(redis: PlainRedis) -> dict[str, Any]:
    """Every key of the product's as JSON: `[type, value]`, bytes in base64."""
    kept = {}
    for key in sorted(redis.scan_iter("dendro:*")):
        name = key.split(b"}:")[-1]
        if not name.startswith(TRANSIENT):
            kept[key.decode()] = _value(redis, key)
    return kept


def _value(redis: PlainRedis, key: bytes) -> list[Any]:
    kind = redis.type(key).decode()
    match kind:
        case "string":
            return [kind, _text(redis.get(key) or b"")]
        case "hash":
            return [kind, [[_text(f), _text(v)] for f, v in sorted(redis.hgetall(key).items())]]
        case "set":
            return [kind, sorted(map(_text, redis.smembers(key)))]
        case "zset":
            return [kind, [[_text(m), score] for m, score in redis.zrange(key, 0, -1, withscores=True)]]
        case "stream":
            entries = [
                [at.decode(), [[_text(f), _text(v)] for f, v in fields.items()]]
                for at, fields in redis.xrange(key)
            ]
            return [kind, redis.xinfo_stream(key)["last-generated-id"].decode(), entries]
        case _:
            raise SystemExit(f"{key!r} is a {kind}")


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def leave(d: Deployment, made: dict[str, str], out: Path) -> None:
    """Writes what is kept of a deployment."""
    files = out / "files"
    files.mkdir(parents=True)
    index: dict[str, Any] = {"sessions": {}, "made": made, "version": d.run("--version").strip()}
    marks = {"git": (d.folder / "workspace/.git/dendro-workspace").read_text().strip()}
    index["workspace"] = {"path": str(d.folder / "workspace"), "marks": marks}
    for row in d.sessions():
        session = row["session_id"]
        d.run("export", session, str(files / f"{session}.jsonl"))
        d.run("export", "--full", session, str(files / f"{session}.full.jsonl"))
        replayed = json.loads(d.run("replay", session, "--json"))
        index["sessions"][session] = {
            "tree_id": row["tree_id"],
            "status": row["status"],
            "verify": d.run("verify", session).strip().splitlines(),
            **{name: replayed[name] for name in ("seq", "head", "state_sha256", "matches")},
        }
    for rollout in (d.folder / "home" / "sessions").rglob("*.jsonl"):
        shutil.copy(rollout, files / f"{rollout.stem}.rollout.jsonl")
    archive = d.folder / "home" / "archive"
    if archive.is_dir():
        shutil.copytree(archive, out / "archive")
    for file in sorted(files.iterdir()):
        _packed(file, file.read_bytes())
        file.unlink()
    _packed(out / "redis.json", json.dumps(dump(d.redis), separators=(",", ":")).encode())
    (out / "index.json").write_text(json.dumps(index, indent=1, sort_keys=True) + "\n")


def _packed(file: Path, content: bytes) -> None:
    file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(content, 9, mtime=0))


def main(out: Path) -> None:
    for name, makers in MAKERS.items():
        with ExitStack() as stack:
            d = stack.enter_context(deployed(name))
            stack.callback(shutil.rmtree, ROOT / name)
            made = {}
            for maker in makers:
                made[maker.__name__] = maker(d)
                print(name, maker.__name__, made[maker.__name__], flush=True)
            leave(d, made, out / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
