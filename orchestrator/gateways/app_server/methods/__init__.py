"""The methods of the app-server, one table for all of its clients; a module for each area joins its own.

A name that is in no table is answered by what `refusal` says of it.
"""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.gateways.app_server.method import Method
from orchestrator.gateways.app_server.methods import (
    account,
    approvals,
    catalogue,
    changes,
    config,
    fleet,
    handshake,
    proof,
    queue,
    threads,
    turns,
    v1,
    v1_machine,
    workspace,
)

TABLES: tuple[Mapping[str, Method], ...] = (
    handshake.METHODS,
    turns.METHODS,
    catalogue.METHODS,
    config.METHODS,
    threads.METHODS,
    changes.METHODS,
    changes.MARKS,
    queue.METHODS,
    approvals.METHODS,
    fleet.METHODS,
    workspace.METHODS,
    proof.METHODS,
    account.METHODS,
    turns.FORKS,
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
    "server/diagnostics": "dendro doctor looks at a deployment, /metrics counts (gateway.metrics_port)",
    "userVerification/": "who may do what is said by tokens: dendro token new --scope",
    "thread/sample": "a model is asked by a turn: turn/start, in an ephemeral thread",
    "thread/prediction/": "a model is asked by a turn: turn/start, in an ephemeral thread",
    "thread/increment_elicitation": "an open request stops no clock: requests wait for people",
    "thread/decrement_elicitation": "an open request stops no clock: requests wait for people",
    "thread/goal/": "goals are plans: turn/start in plan mode",
    "thread/attachment": "files are named in the input of turn/start",
    "thread/section/": "sessions are found by folder, name and tree: thread/list",
    "thread/approveGuardian": "people decide: item/commandExecution/requestApproval, dendro approvals",
    "thread/guardianReview": "people decide: item/commandExecution/requestApproval, dendro approvals",
    "thread/backgroundTerminals/": "processes end with turn/interrupt, or all of a thread at rest with "
    "thread/backgroundTerminals/clean",
    "thread/searchOccurrences": "thread/search finds threads, thread/items/list has their items",
    "thread/items/read": "thread/items/list has a thread's items",
    "thread/timeline/": "thread/turns/list and thread/items/list have what was said and done, with its times",
    "thread/prepareApprovedPlan": "an approved plan is shown to the next turn by itself",
    "skills/": "skills lie in folders that the gateway reads: skills/list names them",
    "turn/settings/": "thread/settings/update changes the next turn; a running one keeps its settings",
    "modelProvider/": "providers stand in the configuration (model_providers): config/value/write",
    "experimentalFeature/": "features are settings: config/value/write",
    "mock/": "it tests other programs",
    "mcpServer/": "MCP servers are the worker's (mcp_servers in the configuration): agents call their tools",
    "config/mcpServer/": "workers begin with their MCP servers: start them anew",
    "windowsSandbox/": "commands run under Linux, on the worker's machine: dendro doctor looks at it",
    "accountSession/": "one person signs in at a gateway: account/login/start, account/logout",
    "command/exec/": "command/exec runs to its end; what takes input is run by an agent",
    "externalAgentConfig/": "settings are written by hand: dendro.toml",
    "fuzzyFileSearch/": "fuzzyFileSearch answers at once",
}


def refusal(name: str) -> str:
    """The words for a method that is not served: the way that Dendro has instead, where there is one."""
    shown = name[:100]
    remedy = next((words for prefix, words in _REMEDIES.items() if name.startswith(prefix)), "")
    return f"`{shown}` is not offered by this server" + (f": {remedy}" if remedy else "")
