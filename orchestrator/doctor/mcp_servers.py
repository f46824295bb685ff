"""Findings about the MCP servers of a worker here. Starts no program and sends no request."""

from __future__ import annotations

from collections.abc import Iterator

from orchestrator.doctor.findings import Finding, without_credentials
from orchestrator.sandbox.trusted_files import find_named_program, not_found
from orchestrator.settings import Settings
from orchestrator.tables import McpServerSettings


def judge_mcp_servers(settings: Settings) -> Iterator[Finding]:
    """A finding for each server: an agent can work without one, so none is worse than a warning."""
    for server in settings.mcp_servers.values():
        where = without_credentials(server.url) if server.url is not None else str(server.command)
        what = f"{server.id}: {where}"
        if not server.enabled:
            yield Finding("mcp server", "ok", f"{what}, not enabled")
        elif (fault := _fault(server, settings)) is not None:
            yield Finding("mcp server", "warn", f"{what}, but {fault[0]}", fault[1])
        else:
            yield Finding("mcp server", "ok", what)


def _fault(server: McpServerSettings, settings: Settings) -> tuple[str, str] | None:
    """The reason why the server cannot work, and the remedy."""
    if server.command is not None and not _is_there(server, settings):
        mend = "correct" if "/" in server.command else "name it by its path in"
        return f"it {not_found(server.command)}", f"install it, or {mend} mcp_servers.{server.id}.command"
    names = [*server.env_vars, *server.env_http_headers.values(), server.bearer_token_env_var]
    missing = [name for name in names if name and not settings.host.environ.get(name)]
    if missing:
        return f"{', '.join(missing)} is not set", f"export {missing[0]}=…"
    return None


def _is_there(server: McpServerSettings, settings: Settings) -> bool:
    assert server.command is not None
    if "/" in server.command and not server.command.startswith("/"):
        return True  # it counts from a session's folder
    return find_named_program(server.command, server.env.get("PATH", settings.host.search_path)) is not None
