"""Each setting changes something: the part that obeys it is built from changed settings, and looked at.

A new setting without an entry fails here, and so does one whose value ends in its own table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from orchestrator.broker.connection import connect
from orchestrator.cli.exec import _as_run
from orchestrator.config_keys import McpServerSettings, ModelPrice, ProviderSettings, Table, settings_of
from orchestrator.gateways.wires.authentication import Authentication
from orchestrator.mcp.servers import _headers, _transport
from orchestrator.protocol import events as ev
from orchestrator.settings import Settings, SettingsError, SettingsSources, load_settings
from orchestrator.settings.sources import KEYED_RECORDS
from orchestrator.wiring import worker_parts as wired
from orchestrator.wiring.deployment import broker_config
from orchestrator.wiring.gateway import http_rules, listener_config
from orchestrator.wiring.new_sessions import guide
from orchestrator.wiring.new_threads import door_ports
from orchestrator.wiring.person_sign_in import credential_store
from tests import settings_at_work as at_work
from tests.parts_of_settings import (
    ISSUER,
    NOWHERE,
    asked_price,
    bounds,
    budget,
    client_of_sign_in,
    clones_a_folder,
    content_of_a_thread,
    estimated,
    folder_of_a_thread,
    issuer_of_sign_in,
    issuer_tokens,
    lacks_room,
    limit_of_client_tools,
    loopback_is_refused,
    machine_folders,
    mcp_program,
    mcp_refuses_authorities,
    mcp_server,
    mcp_tools,
    needs_keys,
    opening,
    origin_of_setup,
    portable,
    refuses_authorities,
    refuses_certificate,
    said_of_model,
    setup,
)
from tests.rollouts.bundles import ADA
from tests.settings_at_work import (
    Renewing,
    birth,
    body,
    command,
    confinement,
    request,
    told,
    upkeep,
    variables,
)
from workers.notary import witnesses_of
from workers.upkeep import queue_server, upkeep_queue

REPOSITORY = Path(__file__).parent.parent
LICENSE = REPOSITORY / "LICENSE"
"""A small file of text."""
X = "model_providers.x"
M = "mcp_servers.x"
MCP, MCP_URL = (f'{M}.command="x"',), (f'{M}.url="http://x/mcp"',)
PROVIDER = (f'{X}.base_url="http://x/v1"', 'model_provider="x"')
RAW, SAID = ev.AgentReasoningRawContentDelta(delta="x"), ev.AgentMessageDelta(delta="x")
KEY_FILE, CERTIFICATE = ('gateway.tls_key="/k.pem"',), ('gateway.tls_certificate="/c.pem"',)
ASKED = "on-request"
SCRIPT = ('workspace.setup_script="make"',)
WITNESS = "witness.example/w1+a7e12144+BGG3op9v3HIXXDPBmFc/0CioJHhGCXc+pyvvFPlBZdYO"
REGISTER = ('receipts.url="memory://register"',)
SIGNED = ('webhook.url="https://one"', 'webhook.secret="0123456789abcdef"')
KEYED = ('chain.secret="s"', 'chain.key_id="k"')
HELLO = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LARGE = HELLO + b"%x\r\n" % (2 << 20) + b":" + b"x" * ((2 << 20) - 1) + b"\r\n"


@dataclass(frozen=True)
class Effect:
    """A value of one setting, and what is seen then."""

    value: str
    see: Callable[[Settings], object]
    seen: object
    beside: tuple[str, ...] = ()
    """Other settings, which stand with and without the value."""
    costly: bool = False
    """Whether it is not looked at without the value, because that takes too long."""


EFFECTS: Mapping[str, Effect] = {
    # Sessions
    "model": Effect('"gpt-5-x"', lambda s: body(s)["model"], "gpt-5-x"),
    "model_provider": Effect('"x"', lambda s: str(request(s).url), "http://x/v1/responses", PROVIDER[:1]),
    "model_reasoning_effort": Effect('"high"', lambda s: body(s)["reasoning"].get("effort"), "high"),
    "model_reasoning_summary": Effect('"detailed"', lambda s: body(s)["reasoning"]["summary"], "detailed"),
    "model_verbosity": Effect('"low"', lambda s: body(s).get("text"), {"verbosity": "low"}),
    "approval_policy": Effect('"untrusted"', at_work.is_asked, True),
    "approval_timeout_s": Effect("5", lambda s: birth(s).facts.approval_timeout_ms, 5_000),
    "on_user_input": Effect('"steer"', lambda s: birth(s).facts.on_user_input, "steer"),
    "pool": Effect('"gpu"', lambda s: birth(s).facts.pool, "gpu"),
    "base_instructions": Effect('"Be brief."', lambda s: body(s)["instructions"], "Be brief."),
    "user_instructions": Effect('"In English."', lambda s: birth(s).user_instructions, "In English."),
    "project_doc_max_bytes": Effect("3", lambda s: guide(s).docs.most_bytes, 3),
    "project_doc_fallback_filenames": Effect('["A.md"]', lambda s: guide(s).docs.fallbacks, ("A.md",)),
    "history.persistence": Effect('"none"', at_work.keeps_prompts, False),
    # What a session's commands may do
    "sandbox_mode": Effect('"workspace-write"', lambda s: confinement(s).mode, "workspace-write"),
    "sandbox_workspace_write.writable_roots": Effect(
        '["/opt"]', lambda s: Path("/opt") in confinement(s).writable_roots, True,
        ('sandbox_mode="workspace-write"',),
    ),
    "sandbox_workspace_write.network_access": Effect(
        "true", lambda s: confinement(s).network, True, ('sandbox_mode="workspace-write"',)
    ),
    "sandbox_workspace_write.exclude_tmpdir_env_var": Effect(
        "true", lambda s: s.host.temp_dir in confinement(s).writable_roots, False,
        ('sandbox_mode="workspace-write"',),
    ),
    "sandbox_workspace_write.exclude_slash_tmp": Effect(
        "true", lambda s: Path("/tmp") in confinement(s).writable_roots, False,
        ('sandbox_mode="workspace-write"',),
    ),
    # Trees
    "agents.enabled": Effect("false", lambda s: "spawn_subagent" in at_work.tools_offered(s), False),
    "max_active_subagents": Effect("3", lambda s: birth(s).facts.tree_rules.slots, 3),
    "agents.max_spawned": Effect("3", lambda s: birth(s).facts.tree_rules.spawned, 3),
    "agents.max_depth": Effect("3", lambda s: birth(s).facts.tree_rules.depth, 3),
    "subagent_root_inbox_autosubmit": Effect("false", lambda s: birth(s).facts.tree_rules.autosubmit, False),
    "agents.await_floor_s": Effect("3", lambda s: birth(s).facts.tree_rules.await_floor_s, 3),
    "agents.watchdog_floor_s": Effect("3", lambda s: birth(s).facts.tree_rules.watchdog_floor_s, 3),
    "agents.max_watchdogs": Effect("3", lambda s: birth(s).facts.tree_rules.watchdogs, 3),
    "agents.budget_tokens": Effect("3", budget("tokens"), 3),
    "agents.budget_cost": Effect("3", budget("cost"), 3_000_000),
    "agents.budget_requests": Effect("3", budget("requests"), 3),
    "agents.budget_wall_s": Effect("3", budget("wall"), 3_000),
    # Models
    "model_context_window": Effect("5000", lambda s: birth(s).settings.window, 5_000),
    "model_auto_compact_token_limit": Effect(
        "4000", lambda s: at_work.runner_config(s).rules.auto_compact_limit, 4_000
    ),
    "review_model": Effect('"r"', lambda s: at_work.runner_config(s).rules.review_model, "r"),
    "model_max_output_tokens": Effect("77", estimated, 77),
    "plan_model": Effect('"gpt-5-big"', lambda s: at_work.runner_config(s).rules.plan_model, "gpt-5-big"),
    "plan_reasoning_effort": Effect('"high"', lambda s: at_work.runner_config(s).rules.plan_effort, "high"),
    "show_raw_agent_reasoning": Effect(
        "true", lambda s: at_work.becomes_of(s, RAW), "Delta",
    ),
    # The environment of commands
    "shell_environment_policy.inherit": Effect('"core"', lambda s: "EDITOR" in variables(s), False),
    "shell_environment_policy.ignore_default_excludes": Effect(
        "true", lambda s: "SOME_KEY" in variables(s), True
    ),
    "shell_environment_policy.exclude": Effect('["EDIT*"]', lambda s: "EDITOR" in variables(s), False),
    "shell_environment_policy.set": Effect('{ A = "1" }', lambda s: command(s).env.get("A"), "1"),
    "shell_environment_policy.include_only": Effect('["EDIT*"]', lambda s: "HOME" in variables(s), False),
    # Redis
    "redis.url": Effect('"redis://two"', at_work.server, "redis://two", ('redis.url="redis://one"',)),
    "redis.cluster": Effect(
        "true", lambda s: connect(s.redis.at(at_work.URL)).clustered, True, ('upkeep.url="redis://one"',)
    ),
    "redis.prefix": Effect('"mine:"', lambda s: at_work.keys(s).topology().startswith("mine:"), True),
    "redis.shards": Effect("64", lambda s: at_work.keys(s).shards, 64),
    "redis.connect_timeout_s": Effect("7", lambda s: at_work.connection(s, "socket_connect_timeout"), 7),
    "redis.command_timeout_s": Effect("7", lambda s: at_work.connection(s, "socket_timeout"), 7),
    "redis.appendfsync": Effect(
        '"always"', lambda s: at_work.answered_by_private_server(s, "appendfsync"), "always", costly=True
    ),
    "effects": Effect('"wait"', lambda s: at_work.confirmation(s) is not None, True),
    "redis.wait_replicas": Effect("3", at_work.confirmation, (3, 1.0), ('effects="wait"',)),
    "redis.wait_timeout_s": Effect("3", at_work.confirmation, (1, 3.0), ('effects="wait"',)),
    # The chain
    "chain.secret": Effect('"s3cret"', lambda s: at_work.key(s)[1], b"s3cret", ('chain.key_id="k"',)),
    "chain.key_id": Effect('"k2"', lambda s: at_work.key(s)[0], "k2", KEYED),
    # Workers
    "worker.pools": Effect('["gpu"]', lambda s: at_work.heartbeat(s)["pools"][0], "gpu"),
    "worker.concurrency": Effect("3", lambda s: at_work.heartbeat(s)["room"], 3),
    "worker.quantum_s": Effect("5", lambda s: at_work.gives_way(s, after_s=10), True),
    "worker.lease_s": Effect("9", at_work.lease_asked_for, 9_000),
    "worker.renew_s": Effect("1", lambda s: Renewing().next_round_s(s), 1),
    "worker.trust_s": Effect("3", lambda s: Renewing().extended(s), ("c1", 103)),
    "worker.stall_s": Effect("9", lambda s: len(Renewing().renewed(s, silence_s=5)), 1),
    "worker.burial": Effect("false", at_work.buries, False),
    "worker.drain_grace_s": Effect("3", at_work.grace_s, 3),
    # Logs
    "rollout_deltas": Effect("true", lambda s: at_work.becomes_of(s, SAID), "Note"),
    "log.snapshot_every": Effect("16", lambda s: at_work.snapshot_is_due(s, 20), True),
    "log.file_days": Effect("2", lambda s: wired.deleted_files(s).keep_ms, 172_800_000),
    # Upkeep
    "upkeep.url": Effect('"redis://two"', lambda s: queue_server(s, at_work.URL).url, "redis://two"),
    "upkeep.archive_url": Effect(
        '"memory://kept"', lambda s: wired.archive(s)._objects._root, "/kept"
    ),
    "upkeep.seal_after": Effect("3", lambda s: upkeep(s).mover.seal_after, 3),
    "upkeep.seal_idle_s": Effect("60", lambda s: upkeep(s).mover.seal_idle_ms, 60_000),
    "upkeep.archive_after_days": Effect("1", lambda s: upkeep(s).mover.archive_after_ms, 86_400_000),
    "upkeep.archive_idle_days": Effect("1", lambda s: upkeep(s).mover.idle_after_ms, 86_400_000),
    "upkeep.retention_days": Effect("1", lambda s: upkeep(s).retention_ms, 86_400_000),
    "approvals.signed_in": Effect(
        '{acme = "wanted"}', lambda s: at_work.runner_config(s).rules.signed_in, {"acme": "wanted"}
    ),
    "approvals.signed": Effect('"wanted"', lambda s: at_work.runner_config(s).rules.signed_answers, "wanted"),
    "approvals.signers": Effect(f"""['{ADA.key}']""", lambda s: wired.signers(s)("ada", b"", b""), False),
    "receipts.url": Effect('"file:///r"', lambda s: broker_config(s).salted, True),
    "receipts.name": Effect('"fleet.example"', at_work.init_notary, "fleet.example", REGISTER),
    "receipts.state": Effect('"/srv/s"', lambda s: str(s.receipts.state), "/srv/s"),
    "receipts.key_file": Effect('"/srv/k"', lambda s: str(s.receipts.key_file), "/srv/k"),
    "receipts.metrics_port": Effect("1", lambda s: at_work.notary_metrics(s.receipts.metrics_port), True),
    "receipts.witnesses": Effect(
        f"""['{WITNESS} https://w']""", lambda s: witnesses_of(s, at_work.NOBODY) is not None, True, REGISTER
    ),
    "receipts.interval_s": Effect("7", at_work.notary_interval, 7_000, REGISTER),
    "upkeep.verify_sessions": Effect("3", lambda s: upkeep(s).verify_sessions, 3),
    # The webhook
    "webhook.url": Effect('"https://two"', lambda s: told(s).url, "https://two", SIGNED),
    "webhook.secret": Effect('"0123456789abcdef-2"', lambda s: told(s).secret, "0123456789abcdef-2", SIGNED),
    "webhook.events": Effect('["done"]', lambda s: told(s).events, frozenset({"done"}), SIGNED),
    # Tools
    "personality": Effect('"friendly"', lambda s: birth(s).settings.personality, "friendly"),
    "item_events": Effect('"all"', lambda s: birth(s).settings.item_events, "all"),
    "tools.timeout_s": Effect("3", lambda s: command(s).timeout_s, 3),
    "tools.max_deltas": Effect("2", lambda s: at_work.ran(s)[1], 2),
    "tools.local_shell": Effect("true", lambda s: "local_shell" in at_work.tools_offered(s), True),
    "tools.unified_exec": Effect("true", lambda s: at_work.tools_offered(s)[0], "exec_command"),
    "tools.web_search": Effect("true", lambda s: "web_search" in at_work.tools_offered(s), True),
    "tools.view_image": Effect("false", lambda s: "view_image" in at_work.tools_offered(s), False),
    "tools.update_plan": Effect("false", lambda s: "update_plan" in at_work.tools_offered(s), False),
    "tools.apply_patch": Effect("false", lambda s: "apply_patch" in at_work.tools_offered(s), False),
    "tools.apply_patch_freeform": Effect("true", lambda s: birth(s).facts.patch_freeform, True),
    "tools.rules_writable": Effect(
        "true", at_work.rule_kept, 'prefix_rule(pattern=["touch"], decision="allow", confined=True)\n'
    ),
    "tools.trust_project_rules": Effect("true", at_work.is_forbidden, True),
    "sandbox.mechanism": Effect('"landlock"', at_work.is_confinable, False),
    "sandbox.max_processes": Effect("30", lambda s: command(s).limits.processes, 30),
    "sandbox.max_memory_bytes": Effect("100000000", lambda s: command(s).limits.memory_bytes, 100_000_000),
    "sandbox.unix_sockets": Effect("true", lambda s: command(s).confinement.unix_sockets, True),
    # Clients and the person
    "exec.approvals": Effect('"queue"', lambda s: _as_run(s, ()).session_defaults.approval_policy, ASKED),
    "notify": Effect('["/bin/sh", "-c", "touch FOLDER/h/ran"]', at_work.program_ran, True),
    "tui.notifications": Effect("true", lambda s: bool(at_work.called(s)), True),
    "tui.notification_method": Effect(
        '"osc9"', lambda s: at_work.called(s), ["\x1b]9;done\a"], ("tui.notifications=true",)
    ),
    # Portable folders
    "workspace.root": Effect('"/srv/w"', lambda s: machine_folders(s)._config.root, Path("/srv/w")),
    "workspace.key_file": Effect('"/srv/keys"', lambda s: needs_keys(s), True),
    "workspace.include": Effect('["a"]', lambda s: portable(s).include, ("a",)),
    "workspace.exclude": Effect('["a"]', lambda s: portable(s).exclude, ("a",)),
    "workspace.setup": Effect(f'"{LICENSE}"', lambda s: origin_of_setup(s), f"workspace.setup ({LICENSE})"),
    "workspace.setup_script": Effect('"make"', lambda s: origin_of_setup(s), "workspace.setup_script"),
    "workspace.setup_network": Effect("true", lambda s: setup(s).network, True, SCRIPT),
    "workspace.setup_timeout_s": Effect("9", lambda s: setup(s).timeout_ms, 9_000, SCRIPT),
    "workspace.max_file": Effect("2000", lambda s: bounds(s).max_file, 2_000),
    "workspace.max_files": Effect("20", lambda s: bounds(s).max_files, 20),
    "workspace.max_bytes": Effect("2000000", lambda s: bounds(s).max_bytes, 2_000_000),
    "workspace.seconds": Effect("7", lambda s: bounds(s).seconds, 7),
    "workspace.store_s": Effect("3", lambda s: machine_folders(s)._config.settings.store_s, 3),
    "workspace.hold_s": Effect("3", lambda s: at_work.runner_config(s).hold_s, 3),
    "workspace.leave_s": Effect("3", lambda s: broker_config(s).leave_s, 3),
    "workspace.min_free": Effect("9000000000000000", lacks_room, True),
    "workspace.git_protocols": Effect('["file"]', clones_a_folder, True),
    "workspace.clone_s": Effect("3", lambda s: machine_folders(s)._config.settings.clone_s, 3),
    # Providers
    f"{X}.name": Effect('"Mine"', lambda s: "(Mine)" in said_of_model(s), True, PROVIDER),
    f"{X}.base_url": Effect('"http://y/v1"', lambda s: request(s).url.host, "y", PROVIDER),
    f"{X}.env_key": Effect(
        '"SOME_KEY"', lambda s: request(s).headers.get("Authorization"), "Bearer hush", PROVIDER
    ),
    f"{X}.env_key_instructions": Effect(
        '"Ask Ann."', lambda s: said_of_model(s).rpartition("| ")[2], "Ask Ann.",
        (*PROVIDER, f'{X}.env_key="NO"'),
    ),
    f"{X}.auth": Effect('"login"', lambda s: "key of the sign-in" in said_of_model(s), True, PROVIDER),
    "auth.issuer": Effect(
        ISSUER, lambda s: issuer_of_sign_in(s), "https://id.example", ('auth.client_id="x"',), costly=True
    ),
    "auth.client_id": Effect(
        '"me"', lambda s: client_of_sign_in(s), "me", (f"auth.issuer={ISSUER}",), costly=True
    ),
    "auth.store": Effect('"file"', lambda s: credential_store(s)._place, "file"),
    f"{X}.wire_api": Effect(
        '"chat"', lambda s: str(request(s).url), "http://x/v1/chat/completions", PROVIDER
    ),
    f"{X}.supports_reasoning_effort": Effect(
        "true", lambda s: body(s).get("reasoning_effort"), "high",
        (*PROVIDER, f'{X}.wire_api="chat"', 'model_reasoning_effort="high"'),
    ),
    f"{X}.developer_role": Effect(
        '"user"', at_work.role_of_developer, "user", (*PROVIDER, f'{X}.wire_api="chat"')
    ),
    f"{X}.query_params": Effect('{ v = "1" }', lambda s: request(s).url.query, b"v=1", PROVIDER),
    f"{X}.http_headers": Effect('{ Team = "a" }', lambda s: request(s).headers.get("Team"), "a", PROVIDER),
    f"{X}.env_http_headers": Effect(
        '{ Team = "EDITOR" }', lambda s: request(s).headers.get("Team"), "vi", PROVIDER
    ),
    f"{X}.request_max_retries": Effect("9", lambda s: at_work.retries(s)[0], 9, PROVIDER),
    f"{X}.stream_max_retries": Effect("9", lambda s: at_work.retries(s)[1], 9, PROVIDER),
    f"{X}.stream_idle_timeout_ms": Effect(
        "200", lambda s: "no event within 0.2 s" in at_work.failure(s, HELLO), True, PROVIDER, costly=True
    ),
    f"{X}.max_response_bytes": Effect(
        "1048576", lambda s: "more than 1,048,576 bytes" in at_work.failure(s, LARGE), True,
        (*PROVIDER, f"{X}.stream_idle_timeout_ms=500"),
    ),
    f"{X}.connect_timeout_s": Effect("3", at_work.connect_timeout_s, 3, PROVIDER),
    f"{X}.proxy": Effect('"http://127.0.0.1:1"', at_work.proxied, "127.0.0.1", PROVIDER),
    f"{X}.ca_file": Effect(
        '"/none.pem"', refuses_authorities, "model provider x: the authorities in /none.pem",
        (f'{X}.base_url="https://x/v1"', PROVIDER[1]),
    ),
    f"{X}.previous_response_id": Effect("true", lambda s: body(s)["store"], True, PROVIDER),
    f"{X}.parallel_tool_calls": Effect("true", lambda s: body(s)["parallel_tool_calls"], True, PROVIDER),
    f"{X}.requests_per_minute": Effect("3", lambda s: at_work.limits(s).requests_per_minute, 3, PROVIDER),
    f"{X}.tokens_per_minute": Effect("3", lambda s: at_work.limits(s).tokens_per_minute, 3, PROVIDER),
    # MCP servers
    f"{M}.command": Effect('"z"', lambda s: mcp_program(s).argv[0], "z", MCP),
    f"{M}.args": Effect('["a", "b"]', lambda s: mcp_program(s).argv[1:], ("a", "b"), MCP),
    f"{M}.env": Effect('{ A = "1" }', lambda s: mcp_program(s).env.get("A"), "1", MCP),
    f"{M}.env_vars": Effect('["SOME_KEY"]', lambda s: mcp_program(s).env.get("SOME_KEY"), "hush", MCP),
    f"{M}.cwd": Effect('"/opt"', lambda s: mcp_program(s).cwd, Path("/opt"), MCP),
    f"{M}.bearer_token_env_var": Effect(
        '"SOME_KEY"', lambda s: _headers(mcp_server(s)).get("Authorization"), "Bearer hush", MCP_URL
    ),
    f"{M}.http_headers": Effect('{ A = "1" }', lambda s: _headers(mcp_server(s)).get("A"), "1", MCP_URL),
    f"{M}.env_http_headers": Effect(
        '{ A = "EDITOR" }', lambda s: _headers(mcp_server(s)).get("A"), "vi", MCP_URL
    ),
    f"{M}.proxy": Effect(
        '"http://127.0.0.1:1"', lambda s: "Proxy" in type(_transport(mcp_server(s))._pool).__name__, True,
        MCP_URL,
    ),
    f"{M}.ca_file": Effect('"/none.pem"', mcp_refuses_authorities, True, MCP_URL),
    f"{M}.enabled_tools": Effect('["b"]', mcp_tools, {"b": False}, MCP),
    f"{M}.disabled_tools": Effect('["a"]', mcp_tools, {"b": False}, MCP),
    f"{M}.trust_annotations": Effect("true", mcp_tools, {"a": True, "b": False}, MCP),
    # Gateways
    "gateway.allowed_origins": Effect('["https://a.b"]', lambda s: http_rules(s).origins, {"https://a.b"}),
    "gateway.token_issuer": Effect(
        ISSUER,
        lambda s: issuer_tokens(s)._issuer.url,
        "https://id.example",
        ('gateway.token_audience="x"',),
        costly=True,
    ),
    "gateway.token_audience": Effect(
        '"me"',
        lambda s: issuer_tokens(s)._audience,
        "me",
        (f"gateway.token_issuer={ISSUER}",),
        costly=True,
    ),
    "gateway.hosts": Effect('["a.b"]', lambda s: http_rules(s).hosts, {"a.b"}),
    "gateway.loopback_needs_token": Effect("true", loopback_is_refused, True),
    "gateway.max_connections": Effect(
        "5", lambda s: listener_config(s, Authentication()).most_connections, 5
    ),
    "gateway.cwd": Effect('"/var"', folder_of_a_thread, Path("/var")),
    "gateway.workspace": Effect('"portable"', content_of_a_thread, "empty"),
    "gateway.client_tool_timeout_s": Effect("5", limit_of_client_tools, 5_000),
    "gateway.auto_review": Effect('"ask"', lambda s: door_ports(opening(s), NOWHERE).asks_auto_review, True),
    "gateway.tls_certificate": Effect('"/c.pem"', refuses_certificate, True, KEY_FILE, costly=True),
    "gateway.tls_key": Effect('"/k.pem"', refuses_certificate, True, CERTIFICATE, costly=True),
    # Prices
    "model_prices.gpt-5.input": Effect("2", asked_price, 2_000_000, ("model_prices.gpt-5.output=0",)),
    "model_prices.gpt-5.cached_input": Effect("3", asked_price, 3_000_000, ("model_prices.gpt-5.output=0",)),
    "model_prices.gpt-5.output": Effect("4", asked_price, 4_000_000, ("model_prices.gpt-5.input=0",)),
}  # fmt: skip
SEEN_FROM_OUTSIDE = {
    "workspace.keep_s": (
        "tests/workspaces/test_sweep.py",
        "test_copy_that_nobody_has_used_for_long_is_removed",
    ),
    "workspace.max_disk": (
        "tests/workspaces/test_sweep.py",
        "test_least_recently_used_copies_make_room",
    ),
    f"{M}.url": (
        "tests/mcp/test_http.py",
        "test_a_server_behind_a_url_is_listed_and_called_with_its_headers",
    ),
    f"{M}.enabled": (
        "tests/mcp/test_servers.py",
        "test_only_the_tools_that_the_settings_name_are_offered",
    ),
    f"{M}.startup_timeout_sec": (
        "tests/mcp/test_bad_servers.py",
        "test_a_server_that_never_answers_is_given_up_after_its_time_to_start",
    ),
    f"{M}.tool_timeout_sec": (
        "tests/mcp/test_bad_servers.py",
        "test_a_call_that_is_not_answered_in_time_fails_and_the_next_has_a_new_server",
    ),
    "worker.tracing": (
        "tests/telemetry/test_tracing.py",
        "test_worker_sends_its_traces_where_the_standard_variables_say",
    ),
    "worker.trace_contents": (
        "tests/telemetry/test_tracing.py",
        "test_worker_sends_its_traces_where_the_standard_variables_say",
    ),
    **dict.fromkeys(
        ("gateway.metrics_port", "gateway.metrics_host"),
        (
            "tests/telemetry/test_observed_gateway.py",
            "test_gateway_counts_the_connections_of_each_door_where_the_settings_say",
        ),
    ),
    **dict.fromkeys(
        ("worker.metrics_port", "worker.metrics_host"),
        (
            "tests/telemetry/test_health.py",
            "test_worker_serves_its_metrics_where_the_settings_say",
        ),
    ),
    "wire.line_limit_bytes": (
        "tests/cli/test_commands.py",
        "test_proto_reads_lines_up_to_the_set_limit",
    ),
}
"""Settings whose effect a test of whole processes shows."""


def keys() -> set[str]:
    prefixes: Mapping[type[Table], str] = {
        ProviderSettings: f"{X}.",
        ModelPrice: "model_prices.gpt-5.",
        McpServerSettings: f"{M}.",
    }
    records: tuple[type[Table], ...] = (*KEYED_RECORDS, *prefixes)
    return {
        prefixes.get(record, "") + (spec.key or name)
        for record in records
        for name, spec in settings_of(record)
    }


def load(folder: Path, *overrides: str) -> Settings:
    environ = {
        "HOME": str(folder / "user"), "DENDRO_HOME": str(folder / "h"), "PATH": "/usr/bin:/bin",
        "EDITOR": "vi", "SOME_KEY": "hush", "TMPDIR": str(folder / "tmp"),
    }  # fmt: skip
    work = folder / "work"
    for each in ("work", "tmp", "h"):
        (folder / each).mkdir(exist_ok=True)
    return load_settings(SettingsSources(work, environ, overrides=overrides))


def test_each_setting_has_an_effect_that_is_named_here() -> None:
    assert keys() == EFFECTS.keys() | SEEN_FROM_OUTSIDE.keys()
    for file, name in SEEN_FROM_OUTSIDE.values():
        assert f"def {name}(" in (REPOSITORY / file).read_text()


@pytest.mark.parametrize("key", sorted(EFFECTS))
def test_setting_has_its_effect(key: str, tmp_path: Path) -> None:
    effect = EFFECTS[key]
    if not effect.costly:
        assert effect.see(load(tmp_path, *effect.beside)) != effect.seen
    changed = load(tmp_path, *effect.beside, f"{key}={effect.value}".replace("FOLDER", str(tmp_path)))
    assert effect.see(changed) == effect.seen


def test_a_provider_of_another_protocol_is_refused_by_the_protocols_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r'wire_api = .*grpc.*: allowed are "responses", "chat"'):
        load(tmp_path, *PROVIDER, f'{X}.wire_api="grpc"')


def test_a_provider_that_keeps_no_responses_cannot_be_asked_to_go_on_from_one(tmp_path: Path) -> None:
    both = (f'{X}.wire_api="chat"', f"{X}.previous_response_id=true")
    with pytest.raises(SettingsError, match=r'x\.previous_response_id = .*false with wire_api = "chat"'):
        load(tmp_path, *PROVIDER, *both)


def test_queue_of_upkeep_waits_for_its_server_as_long_as_the_settings_say(tmp_path: Path) -> None:
    settings = load(tmp_path, "redis.connect_timeout_s=3", "redis.command_timeout_s=7")
    arguments = upkeep_queue(queue_server(settings, at_work.URL)).connection_pool.connection_kwargs
    assert (arguments["socket_connect_timeout"], arguments["socket_timeout"]) == (3, 7)
