"""The methods of the app-server, one table for all of its clients; a module for each area joins its own.

A name that is in no table is answered by what `refusal` says of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.gateways.app_server.method import Method
from orchestrator.gateways.app_server.methods import (
    account,
    catalogue,
    changes,
    config,
    fork,
    handshake,
    marks,
    resume,
    running,
    threads,
    v1,
    v1_machine,
)

TABLES: tuple[Mapping[str, Method], ...] = (
    handshake.METHODS,
    running.METHODS,
    catalogue.METHODS,
    config.METHODS,
    threads.METHODS,
    resume.METHODS,
    changes.METHODS,
    marks.METHODS,
    account.METHODS,
    fork.METHODS,
    v1.METHODS,
    v1_machine.METHODS,
)
METHODS: Mapping[str, Method] = {name: method for table in TABLES for name, method in table.items()}
_REMEDIES: Mapping[str, str] = {
    "thread/realtime/": "there is no speech here: send text with turn/start",
    "thread/memory": "sessions keep no memories: instructions stand in AGENTS.md",
    "memory/": "sessions keep no memories: instructions stand in AGENTS.md",
    "plugin/": "there are no plugins here: skills lie in folders, tools come from MCP servers",
    "marketplace/": "there are no plugins here: skills lie in folders, tools come from MCP servers",
    "app/": "there are no apps here: tools come from MCP servers (mcp_servers in the configuration)",
    "process/": "commands run in a session, under its sandbox: thread/shellCommand",
    "fs/": "files are changed by sessions only: turn/start, thread/shellCommand",
    "remoteControl/": "this server is reached directly: dendro serve --listen",
    "environment/": "a session runs in its pool: dendro worker --pool",
    "feedback/": "nothing is sent anywhere: dendro export writes a session to a file",
    "account/": "keys stand in the configuration (model_providers), or come by account/login/start",
    "project/": "sessions are found by folder, name and tree: thread/list",
    "threadSection/": "sessions are found by folder, name and tree: thread/list",
    "rollout/": "logs are sealed and archived by dendro upkeep",
}


def refusal(name: str) -> str:
    """The words for a method that is not served: the way that Dendro has instead, where there is one."""
    shown = name[:100]
    remedy = next((words for prefix, words in _REMEDIES.items() if name.startswith(prefix)), "")
    return f"`{shown}` is not offered by this server" + (f": {remedy}" if remedy else "")
