"""Scopes and namespaces at a gateway's sockets: what each token may call, and what a tenant learns."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection, connect

from orchestrator.core.ids import SessionId
from orchestrator.gateways.app_server.method import Whose
from orchestrator.gateways.app_server.methods import METHODS
from orchestrator.gateways.bearer_tokens import TokenWish, new_token
from orchestrator.gateways.permissions import SCOPES
from orchestrator.gateways.principals import Scope
from orchestrator.gateways.wires.addresses import Address, parse_address
from orchestrator.protocol.ops import OPS
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.views.threads import thread
from orchestrator.wiring.gateway import serving
from orchestrator.wiring.open_deployment import Opened, opened
from tests.protocol.wire_examples import examples
from tests.servers import RedisServer, start_redis

pytestmark = pytest.mark.realredis

READ = """
approval/history approval/list fleet/list fleet/stats spend/list tree/log tree/read tree/timeline worker/list
workspace/changes workspace/diff tree/verify thread/receipt
account/rateLimits/read account/read account/usage/read addConversationListener collaborationMode/list
config/read configRequirements/read experimentalFeature/list getAuthStatus getConversationSummary
getUserAgent getUserSavedConfig hooks/list initialize listConversations mcpServerStatus/list model/list
modelProvider/list permissionProfile/list removeConversationListener skills/list
thread/backgroundTerminals/list thread/goal/get thread/items/list thread/list thread/loaded/list
thread/queue/list thread/read thread/readState/update thread/resume thread/search thread/turns/list
thread/unsubscribe userInfo window/state
"""
SUBMIT = """
agent/cancel
archiveConversation interruptConversation newConversation resumeConversation review/start sendUserMessage
sendUserTurn thread/archive thread/backgroundTerminals/clean thread/compact/start thread/fork
thread/inject_items thread/metadata/update
thread/name/set thread/queue/add thread/queue/delete thread/queue/reorder thread/queue/start
thread/queue/update thread/revert thread/settings/update thread/start thread/unarchive turn/interrupt
turn/start turn/steer
"""
MACHINE = """
command/exec execOneOffCommand fs/getMetadata fs/readDirectory fs/readFile fuzzyFileSearch gitDiffToRemote
"""
KEYS = """
account/login/cancel account/login/start account/logout cancelLoginChatGpt loginApiKey loginChatGpt
logoutChatGpt
"""
SETTINGS = "config/batchWrite config/value/write setDefaultModel"
WANTED: Mapping[str, tuple[Scope, Whose]] = {
    **dict.fromkeys(READ.split(), (Scope.READ, Whose.ANYONES)),
    **dict.fromkeys(SUBMIT.split(), (Scope.SUBMIT, Whose.ANYONES)),
    "thread/shellCommand": (Scope.APPROVE, Whose.ANYONES),
    "approval/answer": (Scope.APPROVE, Whose.ANYONES),
    "budget/add": (Scope.APPROVE, Whose.ANYONES),
    "thread/delete": (Scope.ADMIN, Whose.ANYONES),
    **dict.fromkeys(MACHINE.split(), (Scope.APPROVE, Whose.MACHINES)),
    **dict.fromkeys(KEYS.split(), (Scope.ADMIN, Whose.KEYS)),
    **dict.fromkeys(SETTINGS.split(), (Scope.ADMIN, Whose.SETTINGS)),
}
"""Written down beside the table: whoever loosens a method there changes it here, too."""
LOOKS = """
get_history_entry_request get_path list_custom_prompts list_mcp_tools list_models list_skills
"""
DECISIONS = """
exec_approval patch_approval resolve_ask_user_question resolve_elicitation resolve_plan_approval
run_user_shell_command user_input_answer
"""
WITHIN_S = 60.0


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with start_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@dataclass
class Caller:
    """A client of version 2 at a socket."""

    wire: ClientConnection
    heard: list[dict[str, Any]]
    asked: int = 0

    async def ask(self, method: str, params: Any = None) -> dict[str, Any]:
        """A request's whole answer."""
        self.asked += 1
        id = self.asked
        given = {} if params is None else params
        await self.wire.send(json.dumps({"id": id, "method": method, "params": given}))
        async with asyncio.timeout(WITHIN_S):
            while True:
                message = json.loads(await self.wire.recv())
                self.heard.append(message)
                if message.get("id") == id and "method" not in message:
                    return dict(message)

    async def call(self, method: str, params: Any = None) -> dict[str, Any]:
        answer = await self.ask(method, params)
        assert "result" in answer, answer
        return dict(answer["result"])

    async def refused(self, method: str, params: Any = None) -> str:
        answer = await self.ask(method, params)
        assert "error" in answer, answer
        return str(answer["error"]["message"])


@dataclass
class Gateway:
    """A gateway of two sockets, and the deployment behind it."""

    found: Opened
    messages: Address
    lines: Address
    home: Path
    folder: Path

    async def token(self, scope: Scope, namespace: str = "") -> str:
        wish = TokenWish(f"t-{scope.word}", namespace, scope)
        text, _ = await new_token(self.found.broker.requests, wish, time.time_ns() // 1_000_000, os.urandom)
        return text

    @asynccontextmanager
    async def caller(self, scope: Scope | None, namespace: str = "") -> AsyncIterator[Caller]:
        """A client with a new token; the machine's user without one for None."""
        headers = {}
        if scope is not None:
            headers = {"Authorization": f"Bearer {await self.token(scope, namespace)}"}
        async with connect(str(self.messages), additional_headers=headers) as wire:
            caller = Caller(wire, [])
            info = {"clientInfo": {"name": "t", "version": "1"}, "capabilities": {"experimentalApi": True}}
            await caller.call("initialize", info)
            yield caller


@pytest.fixture
async def gateway(tmp_path: Path, redis: RedisServer) -> AsyncIterator[Gateway]:
    with redis.client() as client:
        client.flushall()
    home, folder = tmp_path / "ann" / "h", tmp_path / "ann" / "work"
    home.mkdir(parents=True)
    folder.mkdir()
    (home / "dendro.toml").write_text(
        '[mcp_servers.secret]\ncommand = "/opt/ann/mcp"\nargs = ["--key", "k-123"]\n'
        '[sandbox_workspace_write]\nwritable_roots = ["/srv/ann"]\n'
    )
    environ = {
        "HOME": str(home.parent),
        "DENDRO_HOME": str(home),
        "PATH": "/usr/bin:/bin",
        "DENDRO_REDIS_URL": redis.url,
    }
    sources = SettingsSources(folder, environ, overrides=("sandbox_mode=workspace-write",))
    addresses = [parse_address("ws://127.0.0.1:0"), parse_address("tcp://127.0.0.1:0")]
    async with (
        opened(load_settings(sources), insists=True) as found,
        serving(found, sources, addresses) as (messages, lines),
    ):
        yield Gateway(found, messages, lines, home, folder)


def test_every_method_says_what_it_needs() -> None:
    assert {name: (method.scope, method.whose) for name, method in METHODS.items()} == WANTED


CALLERS = [(None, ""), *((scope, space) for scope in Scope for space in ("", "acme"))]


@pytest.mark.parametrize(("scope", "namespace"), CALLERS)
async def test_token_calls_what_its_scope_and_namespace_hold_and_nothing_else(
    gateway: Gateway, scope: Scope | None, namespace: str
) -> None:
    async with gateway.caller(scope, namespace) as caller:
        for name, (needed, whose) in WANTED.items():
            answer = await caller.ask(name)
            text = str(answer.get("error", {}).get("message"))
            foreign = {
                Whose.ANYONES: False,
                Whose.MACHINES: bool(namespace),
                Whose.KEYS: bool(namespace),
                Whose.SETTINGS: scope is not None,
            }[whose]
            if foreign:
                assert text == whose.value, name
            elif scope is not None and scope < needed:
                assert f"{name} needs the scope {needed.word}" in text, name
            else:
                assert "needs the scope" not in text, name
                assert text not in {one.value for one in Whose if one.value}, name
                assert answer.get("error", {}).get("code") != -32603, answer


def test_every_operation_says_what_it_needs() -> None:
    said = {type: SCOPES[op].word for type, op in OPS.items()}
    looks, decisions = dict.fromkeys(LOOKS.split(), "read"), dict.fromkeys(DECISIONS.split(), "approve")
    assert said == {**dict.fromkeys(OPS, "submit"), **looks, **decisions}


@pytest.mark.parametrize("scope", [Scope.READ, Scope.SUBMIT])
async def test_token_submits_over_lines_what_its_scope_holds(gateway: Gateway, scope: Scope) -> None:
    async with gateway.caller(None) as ann:
        session = (await ann.call("thread/start"))["thread"]["id"]
    reader, writer = await asyncio.open_connection(gateway.lines.host, gateway.lines.port, limit=1 << 24)
    first = {"type": "configure_session", "session_id": session}
    writer.write(json.dumps({"id": "1", "op": first, "auth": await gateway.token(scope)}).encode() + b"\n")
    assert json.loads(await reader.readline())["msg"]["type"] == "session_configured"
    for type, op in OPS.items():
        if SCOPES[op] <= scope:
            continue
        example = next(one for one in examples("ops") if one["type"] == type)
        writer.write(json.dumps({"id": f"try {type}", "op": example}).encode() + b"\n")
        async with asyncio.timeout(WITHIN_S):
            while (line := json.loads(await reader.readline()))["id"] != f"try {type}":
                pass
        assert f"{type} needs the scope {SCOPES[op].word}" in line["msg"]["message"], line
    writer.close()
    await writer.wait_closed()


# ── what is not told ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scope", [Scope.READ, Scope.SUBMIT])
async def test_token_below_approve_reads_no_command_folder_or_key_of_the_machine(
    gateway: Gateway, scope: Scope
) -> None:
    async with gateway.caller(scope) as caller, gateway.caller(Scope.APPROVE) as ann:
        for method in ("config/read", "getUserSavedConfig", "modelProvider/list", "skills/list"):
            told = json.dumps(await caller.call(method))
            for secret in ("/opt/ann/mcp", "k-123", "/srv/ann", "OPENAI_API_KEY"):
                assert secret not in told, method
        config = (await ann.call("config/read"))["config"]
        assert config["mcp_servers"] == {"secret": {"command": "/opt/ann/mcp"}}
        assert config["sandbox_workspace_write"]["writable_roots"] == ["/srv/ann"]


async def test_tenant_learns_neither_the_home_folder_nor_a_session_s_file(gateway: Gateway) -> None:
    home = str(gateway.home)
    async with gateway.caller(Scope.ADMIN, "acme") as eve:
        thread = (await eve.call("thread/start"))["thread"]["id"]
        v1 = (await eve.call("newConversation"))["conversationId"]
        named = {"threadId": thread, "name": "mine"}
        await eve.call("addConversationListener", {"conversationId": v1})
        for method, params in (
            ("thread/read", {"threadId": thread}),
            ("thread/resume", {"threadId": thread}),
            ("thread/list", {}),
            ("thread/fork", {"threadId": thread}),
            ("thread/metadata/update", named),
            ("listConversations", {}),
            ("getConversationSummary", {"conversationId": v1}),
            ("resumeConversation", {"conversationId": v1}),
            ("config/read", {}),
            ("getUserSavedConfig", {}),
            ("thread/start", {"config": {"profile": "none"}}),
            ("thread/start", {"model": 5}),
            ("newConversation", {"profile": "none"}),
        ):
            await eve.ask(method, params)
        assert home not in json.dumps(eve.heard)
    async with gateway.caller(None) as ann:
        started = (await ann.call("newConversation"))["rolloutPath"]
        assert started.startswith(home)


async def test_thread_of_a_namespace_is_told_without_its_file(gateway: Gateway) -> None:
    for namespace, path in (("acme", None), ("", "/home/ann/x.jsonl")):
        async with gateway.caller(Scope.SUBMIT, namespace) as caller:
            session = SessionId((await caller.call("thread/start"))["thread"]["id"])
        head = await gateway.found.broker.logs.head(session)
        assert head is not None
        told = thread(replace(head, meta=json.dumps({"rollout_path": "/home/ann/x.jsonl"}).encode()))
        assert told.path == path


async def test_tenant_on_lines_gets_no_path_of_the_machine(gateway: Gateway) -> None:
    token = await gateway.token(Scope.SUBMIT, "acme")
    known: str | None = None
    for _ in range(2):
        reader, writer = await asyncio.open_connection(gateway.lines.host, gateway.lines.port)
        op = {"type": "configure_session", **({"session_id": known} if known else {})}
        writer.write(json.dumps({"id": "1", "op": op, "auth": token}).encode() + b"\n")
        async with asyncio.timeout(WITHIN_S):
            told = json.loads(await reader.readline())["msg"]
        known = told["session_id"]
        assert (told["type"], told["rollout_path"]) == ("session_configured", "")
        writer.close()
        await writer.wait_closed()


async def test_refusal_tells_a_tenant_no_path(gateway: Gateway) -> None:
    for namespace, shown in (("acme", False), ("", True)):
        async with gateway.caller(Scope.SUBMIT, namespace) as caller:
            said = await caller.refused("thread/start", {"cwd": f"{gateway.folder}/none"})
            assert "there is no folder" in said
            assert (str(gateway.folder) in said) is shown
        reader, writer = await asyncio.open_connection(gateway.lines.host, gateway.lines.port)
        token = await gateway.token(Scope.SUBMIT, namespace)
        op = {"type": "configure_session", "cwd": f"{gateway.folder}/none"}
        writer.write(json.dumps({"id": "1", "op": op, "auth": token}).encode() + b"\n")
        async with asyncio.timeout(WITHIN_S):
            said = json.loads(await reader.readline())["msg"]["message"]
        assert "there is no folder" in said
        assert (str(gateway.folder) in said) is shown
        writer.close()
        await writer.wait_closed()


async def test_tenant_learns_of_no_folder_whether_it_exists(gateway: Gateway) -> None:
    link = gateway.folder / "link"
    link.symlink_to(gateway.home)
    for scope in (Scope.SUBMIT, Scope.ADMIN):
        async with gateway.caller(scope, "acme") as eve:
            thread = (await eve.call("thread/start", {"cwd": str(gateway.folder)}))["thread"]["id"]
            said = set()
            for folder in (gateway.home, "/none/at/all", link, f"{gateway.folder}/../h", "/root", "\0"):
                for method, params in (
                    ("thread/start", {"cwd": str(folder)}),
                    ("thread/fork", {"threadId": thread, "cwd": str(folder)}),
                    ("newConversation", {"cwd": str(folder)}),
                ):
                    said.add(await eve.refused(method, params))
            assert len(said) == 1, said
            assert "works in the gateway's folder" in said.pop()
            for method, more in (
                ("thread/settings/update", {"cwd": "/root"}),
                ("thread/resume", {"cwd": "/root"}),
                ("turn/start", {"cwd": "/root", "input": [{"type": "text", "text": "x"}]}),
            ):
                assert "works in the gateway's folder" in await eve.refused(
                    method, {"threadId": thread, **more}
                )
            source = {"folder": str(gateway.home)}
            assert "its user's" in await eve.refused("thread/start", {"workspace": source})
