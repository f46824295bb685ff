"""Parts that are built from settings, each looked at for one effect."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from orchestrator.config_keys import McpServerSettings
from orchestrator.core import facts as f
from orchestrator.core.client_tools import client_tool
from orchestrator.core.settings import FolderSetup, PortableFolder
from orchestrator.core.tokens import Usage
from orchestrator.doctor import judge_model
from orchestrator.folders.outcomes import Bounds
from orchestrator.gateways.app_server.door_ports import NewThread
from orchestrator.gateways.bearer_tokens import IssuerTokens, PrincipalLookUp
from orchestrator.gateways.principals import Principal
from orchestrator.gateways.wires.addresses import BadAddress
from orchestrator.gateways.wires.authentication import Unauthenticated
from orchestrator.mcp.servers import _transport, cleaned
from orchestrator.model.connections import InvalidProvider, verification
from orchestrator.protocol.ops import WorkspaceSource
from orchestrator.runtime.request_costs import Accounting
from orchestrator.sandbox.probe import SandboxSupport
from orchestrator.settings import Settings, SettingsSources
from orchestrator.tools.mcp_tools import Program, _program
from orchestrator.wiring import worker_parts as wired
from orchestrator.wiring.gateway import authentication, gateway_tls, tokens_of
from orchestrator.wiring.new_threads import NewThreads, Repositories
from orchestrator.wiring.person_sign_in import sign_in
from orchestrator.wiring.portable import NoWorkspace, first_folder, pack_store
from orchestrator.wiring.portable import machine_folders as folders_of
from orchestrator.workspaces.pack_keys import KeyUnavailable
from orchestrator.workspaces.service import MachineFolders
from tests import settings_at_work as at_work
from tests.settings_at_work import birth

MILLION = Usage(2_000_000, 1_000_000, 1_000_000, 0, 3_000_000)


NOWHERE = SettingsSources(Path("/tmp"), {"HOME": "/tmp"})


def opening(settings: Settings) -> Any:
    return SimpleNamespace(settings=settings, broker=SimpleNamespace(requests=None), secret=b"")


ISSUER = '"https://id.example"'


def issuer_tokens(settings: Settings) -> IssuerTokens:
    """The gateway's look-up of tokens, where it has an issuer."""
    found = tokens_of(opening(settings))
    assert isinstance(found, IssuerTokens)
    return found


def issuer_of_sign_in(settings: Settings) -> str:
    """The issuer at which a person signs in."""
    found = sign_in(settings)
    assert found is not None
    return found._issuer.url


def client_of_sign_in(settings: Settings) -> str:
    """The id under which a person signs in."""
    found = sign_in(settings)
    assert found is not None
    return found._client_id


def folder_of_a_thread(settings: Settings) -> Path:
    """The working folder of a session whose client names none."""
    repositories = Repositories(NOWHERE.environ)
    made, _ = NewThreads(opening(settings), NOWHERE, repositories)._settings(NewThread())
    return made.session_defaults.cwd


def content_of_a_thread(settings: Settings) -> str:
    """The first content of a session whose client chooses none."""
    makes = NewThreads(opening(settings), NOWHERE, Repositories(NOWHERE.environ))
    placed = asyncio.run(makes._placed(cast(Any, None), Principal("ann"), NewThread()))
    return "host" if placed.workspace is None else "empty" if placed.workspace.empty else "another"


def limit_of_client_tools(settings: Settings) -> int:
    """The milliseconds that a client has to answer a call of its tool."""
    tool = client_tool(None, "lookup", "Looks.", {})
    wish = NewThread(tools=(tool,), client="mine")
    brought = NewThreads(opening(settings), NOWHERE, Repositories(NOWHERE.environ))._brought(wish)
    assert brought is not None
    return brought.limit_ms


def rules(settings: Settings) -> object:
    return birth(settings).facts.tree_rules


def budget(kind: str) -> Callable[[Settings], object]:
    return lambda settings: birth(settings).facts.tree_rules.budgets.get(kind)


def estimated(settings: Settings) -> int:
    return Accounting(settings.model).estimate(at_work.session(settings).state).tokens


def asked_price(settings: Settings) -> int:
    state = at_work.session(settings).state
    ended = f.RequestCompleted(1, usage=asdict(MILLION))
    used = at_work.runner_config(settings).accounting.settlement(state, ended).used
    return int(used.cost)


def refuses_authorities(settings: Settings) -> str:
    try:
        verification(at_work.provider(settings))
    except InvalidProvider as error:
        return str(error).partition(" cannot")[0]
    return ""


def loopback_is_refused(settings: Settings) -> bool:
    async def connect() -> bool:
        gate = authentication(settings, PrincipalLookUp(cast(Any, None), lambda: 0))
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()),
            listener.accept()[0] as accepted,
        ):
            try:
                await gate.principal(None, accepted)
            except Unauthenticated:
                return True
            return False

    return asyncio.run(connect())


def refuses_certificate(settings: Settings) -> bool:
    try:
        gateway_tls(settings)
    except BadAddress as error:
        return "cannot be used" in str(error)
    return False


def mcp_server(settings: Settings) -> McpServerSettings:
    return settings.mcp_servers["x"]


def mcp_program(settings: Settings) -> Program:
    return _program(
        mcp_server(settings),
        Path("/work"),
        wired.tool_config(settings, at_work.URL, SandboxSupport(None, 0, ())),
    )


def mcp_refuses_authorities(settings: Settings) -> bool:
    try:
        _transport(mcp_server(settings))
    except FileNotFoundError:
        return True
    return False


def mcp_tools(settings: Settings) -> dict[str, bool]:
    """The tools that are offered, and whether each only reads."""
    listed = [
        {"name": "a", "inputSchema": {}, "annotations": {"readOnlyHint": True}},
        {"name": "b", "inputSchema": {}},
    ]
    return {tool.name: tool.read_only for tool in cleaned(listed, mcp_server(settings))[0]}


def said_of_model(settings: Settings) -> str:
    (finding,) = judge_model(settings)
    return f"{finding.detail} | {finding.remedy}"


def portable(settings: Settings) -> PortableFolder:
    """The folder of a new portable session."""
    return first_folder(settings, WorkspaceSource(empty=True)).portable


def setup(settings: Settings) -> FolderSetup:
    """The set-up of such a folder."""
    found = portable(settings).setup
    assert found is not None
    return found


def origin_of_setup(settings: Settings) -> str:
    """The name of the set-up's script; empty without one."""
    found = portable(settings).setup
    return "" if found is None else found.origin


def machine_folders(settings: Settings) -> MachineFolders:
    return folders_of(settings, SandboxSupport("/usr/bin/bwrap", 0, ()))


def bounds(settings: Settings) -> Bounds:
    return machine_folders(settings).bounds(portable(settings))


def lacks_room(settings: Settings) -> bool:
    return "workspace.min_free" in machine_folders(settings)._config.fault(portable(settings))


def needs_keys(settings: Settings) -> bool:
    try:
        pack_store(settings).require_keys()
    except KeyUnavailable as error:
        return "/srv/keys" in str(error)
    return False


def clones_a_folder(settings: Settings) -> bool:
    try:
        first_folder(settings, WorkspaceSource(git="file:///srv/a.git"))
    except NoWorkspace:
        return False
    return True
