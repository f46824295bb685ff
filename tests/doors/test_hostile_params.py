"""Parameters that no client of ours sends: each request is answered, and none by a fault of the server's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from orchestrator.gateways.app_server import door
from orchestrator.gateways.app_server.messages import Code
from orchestrator.gateways.app_server.methods import METHODS, changes, turns, v1
from orchestrator.gateways.app_server.write_items import notifications
from orchestrator.gateways.pool_jobs import PoolJobs
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.new_threads import door_ports
from orchestrator.wiring.open_deployment import opened
from tests.commit_seed import NIGHT
from tests.doors.peer import Peer, connected, served
from tests.servers import RedisServer, start_redis

pytestmark = pytest.mark.realredis
OF_NO_SHARD = "0199a2b4-0000-7fff-bfff-ffffffffffff"
TEXTS = st.sampled_from(
    ("", "\0", "x", "a\nb", "é" * 300, "/", "/none", "..", "5", "user", "never", OF_NO_SHARD, "0199a2b4", "[")
)
ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-2, 2), st.sampled_from((1 << 63, 1.5, -1e300)), TEXTS
)
WAITS = (
    (door, "DECIDED_S"),
    (changes, "REST_S"),
    (turns, "INTERRUPT_S"),
    (v1, "INTERRUPT_S"),
)


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@asynccontextmanager
async def at_gateway(folder: Path, redis: RedisServer) -> AsyncIterator[Peer]:
    """A client at a gateway without a worker."""
    environ = {
        "HOME": str(folder),
        "DENDRO_HOME": str(folder / "h"),
        "PATH": "/usr/bin:/bin",
        "DENDRO_REDIS_URL": redis.url,
    }
    sources = SettingsSources(folder, environ)
    async with opened(load_settings(sources)) as found:
        ports = door_ports(found, sources)
        assert ports.jobs is not None
        pool = PoolJobs(found.broker, ports.jobs.pool, ports.jobs.new_id, patience_s=0.02)
        async with served(replace(ports, jobs=pool), notifications) as server, connected(server) as peer:
            await peer.greet(experimentalApi=True)
            yield peer


@pytest.fixture
async def peer(tmp_path: Path, redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Peer]:
    for module, name in WAITS:
        monkeypatch.setattr(module, name, 0.02)
    with redis.client() as client:
        client.flushall()
    async with at_gateway(tmp_path, redis) as peer:
        yield peer


def values(schema: Mapping[str, Any], whole: Mapping[str, Any], depth: int = 0) -> st.SearchStrategy[Any]:
    """Values of a JSON schema, and some beside it; "@THREAD" stands for a thread that there is."""
    if "$ref" in schema:
        return values(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole, depth)
    if depth > 4:
        return ODD
    inner: st.SearchStrategy[Any] = ODD
    if "enum" in schema or "const" in schema:
        inner = st.sampled_from(schema.get("enum", [schema.get("const")]))
    elif branches := schema.get("anyOf") or schema.get("oneOf"):
        inner = st.one_of([values(one, whole, depth + 1) for one in branches])
    elif schema.get("type") == "object" and "properties" in schema:
        fields = {name: values(one, whole, depth + 1) for name, one in schema["properties"].items()}
        needed = {name: fields[name] for name in schema.get("required", ())}
        inner = st.fixed_dictionaries(
            needed, optional={n: one for n, one in fields.items() if n not in needed}
        )
    elif schema.get("type") == "array":
        inner = st.lists(values(schema.get("items", {}), whole, depth + 1), max_size=3)
    elif schema.get("type") == "string":
        inner = st.one_of(st.just("@THREAD"), TEXTS)
    elif schema.get("type") == "object":
        inner = st.dictionaries(TEXTS, ODD, max_size=2)
    return inner if depth == 0 else st.one_of(inner, inner, inner, ODD)


REQUESTS = st.sampled_from(sorted(set(METHODS) - {"initialize"})).flatmap(
    lambda name: st.tuples(
        st.just(name),
        values(METHODS[name].params.model_json_schema(), METHODS[name].params.model_json_schema()),
    )
)


def with_thread(value: Any, thread: str) -> Any:
    if isinstance(value, dict):
        return {key: with_thread(one, thread) for key, one in value.items()}
    if isinstance(value, list):
        return [with_thread(one, thread) for one in value]
    return thread if value == "@THREAD" else value


async def test_no_params_of_any_method_are_a_fault_of_the_server_s(peer: Peer) -> None:
    drawn: list[tuple[str, Any]] = []

    @settings(
        max_examples=1500 if NIGHT else 400,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(REQUESTS)
    def draw(request: tuple[str, Any]) -> None:
        drawn.append(request)

    draw()
    thread = (await peer.call("thread/start"))["thread"]["id"]
    faults = []
    for name, params in drawn:
        if name == "thread/delete":
            continue
        async with asyncio.timeout(30):
            answer = await peer.ask(name, with_thread(params, thread))
        if "failed inside the server" in answer.get("error", {}).get("message", ""):
            faults.append((name, params))
    assert not faults


THREAD = {"threadId": "@THREAD"}
GO = [{"type": "text", "text": "go"}]


@pytest.mark.parametrize(
    ("method", "params", "said"),
    [
        ("thread/resume", {**THREAD, "sandbox": "x"}, "sandbox"),
        ("thread/resume", {**THREAD, "personality": "x"}, "personality"),
        ("thread/list", {"parentThreadId": "x"}, "parentThreadId"),
        ("thread/list", {"ancestorThreadId": OF_NO_SHARD}, "ancestorThreadId"),
        ("thread/search", {"searchTerm": "a", "parentThreadId": "\0"}, "parentThreadId"),
        ("turn/start", {**THREAD, "input": GO, "effort": "\0"}, "effort"),
        ("turn/start", {**THREAD, "input": GO, "model": ""}, ""),
        ("thread/settings/update", {**THREAD, "effort": "\0"}, "effort"),
        (
            "command/exec",
            {"command": ["a"], "sandboxPolicy": {"type": "workspaceWrite", "writableRoots": 5}},
            "sandboxPolicy",
        ),
    ],
)
async def test_value_that_a_setting_cannot_have_is_named(
    peer: Peer, method: str, params: dict[str, Any], said: str
) -> None:
    thread = (await peer.call("thread/start"))["thread"]["id"]
    answer = await peer.ask(method, with_thread(params, thread))
    if said:
        assert answer["error"]["code"] == Code.BAD_PARAMS, answer
        assert said in answer["error"]["message"]
    else:
        assert "failed inside the server" not in str(answer)


@pytest.mark.parametrize(
    ("method", "given"),
    [
        ("turn/start", {"input": [{"type": "text", "text": "x"}] * 30_000}),
        ("turn/start", {"input": [{"type": "text", "text": "x", "text_elements": [{}] * 60_000}]}),
        ("sendUserMessage", {"items": [{"type": "text", "text": "x"}] * 30_000}),
        ("config/read", {"cwd": [[0] * 30_000, {"a": [[]] * 30_000}]}),
    ],
)
async def test_message_of_very_many_values_is_refused_before_they_are_read(
    peer: Peer, monkeypatch: pytest.MonkeyPatch, method: str, given: dict[str, Any]
) -> None:
    def read(*_: object) -> None:
        raise AssertionError("the values were read")

    monkeypatch.setattr(METHODS[method].params, "model_validate", read)
    ids = {"threadId": OF_NO_SHARD, "conversationId": OF_NO_SHARD}
    code, message = await peer.refused(method, {**ids, **given})
    assert (code, "at most 50,000 values" in message) == (Code.BAD_PARAMS, True)


async def test_thread_of_a_shard_that_there_is_not_is_no_thread(peer: Peer) -> None:
    for method in ("thread/read", "thread/resume", "thread/unsubscribe"):
        assert "failed inside" not in str(await peer.ask(method, {"threadId": OF_NO_SHARD}))
    refused = await peer.ask("interruptConversation", {"conversationId": OF_NO_SHARD})
    assert "conversation not found" in refused["error"]["message"]
