"""Settings of MCP servers: programs and URLs whose tools a worker offers to its agents."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from orchestrator.tables.base import Secret, Table, conflict, setting, unfit

_OF_PROGRAMS = ("args", "env", "env_vars", "cwd")
_OF_URLS = ("bearer_token_env_var", "http_headers", "env_http_headers", "proxy", "ca_file")


class McpServerSettings(Table):
    """An MCP server: a table `[mcp_servers.NAME]`. It belongs to the worker; a client never sends one."""

    id: str

    command: str | None = setting(None, shown_default="none: the server has a URL")
    """Program to start. It speaks MCP on its standard input and output, runs outside of the sandbox with
    the environment that commands get, and ends with the worker."""

    args: tuple[str, ...] = setting(())
    """Its arguments."""

    env: Mapping[str, str] = setting({}, hidden=True)
    """Variables that it gets beside those that commands get."""

    env_vars: tuple[str, ...] = setting(())
    """Names of variables of the worker's own environment that it gets too, secret ones among them."""

    cwd: Path | None = setting(None, shown_default="the session's folder")
    """Folder that it runs in."""

    url: str | None = setting(None, shown_default="none: the server is a program")
    """URL of a server that speaks MCP over streamable HTTP."""

    bearer_token_env_var: str | None = setting(None, shown_default="none: no token is sent")
    """Environment variable that holds the token for the `Authorization` header."""

    http_headers: Mapping[str, str] = setting({}, hidden=True)
    """Added to every request."""

    env_http_headers: Mapping[str, str] = setting({})
    """Header → environment variable that holds its value; left out when that is empty."""

    proxy: str | None = setting(
        None, hidden=True, shown_default="`HTTPS_PROXY`, `HTTP_PROXY`, unless `NO_PROXY` says so"
    )
    """HTTP proxy on the way to the URL."""

    ca_file: Path | None = setting(None, shown_default="`SSL_CERT_FILE`, else the built-in authorities")
    """PEM file of the authorities to trust for the URL."""

    enabled: bool = setting(True)
    """Without it the server is not started and offers nothing."""

    startup_timeout_s: float = setting(10.0, "startup_timeout_sec", at_least=0.1, at_most=600)
    """Seconds until a server that has not listed its tools counts as failed. The first request of a session
    waits as long."""

    tool_timeout_s: float = setting(60.0, "tool_timeout_sec", at_least=0.1, at_most=86_400)
    """Seconds until a call that was not answered has failed."""

    enabled_tools: tuple[str, ...] | None = setting(None, shown_default="all")
    """Tools to offer, by the server's own names."""

    disabled_tools: tuple[str, ...] = setting(())
    """Tools not to offer; counts after `enabled_tools`."""

    trust_annotations: bool = setting(False)
    """Believe the server when it says of a tool that it only reads (`readOnlyHint`). Such a tool is not
    asked about under the approval policy `untrusted`, and is offered to helpers, reviews and plans."""

    bearer_token: Secret | None = Field(None, repr=False)
    """Value of the variable that `bearer_token_env_var` names."""

    secret_headers: Mapping[str, str] = Field({}, repr=False)
    """Resolved `env_http_headers`."""

    given_env: Mapping[str, str] = Field({}, repr=False)
    """Resolved `env_vars`."""

    @field_validator("url")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        try:
            parts = urlsplit(url or "http://none")
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            raise unfit("an http:// or https:// URL")
        return url

    @model_validator(mode="after")
    def _is_one_kind(self) -> Self:
        key = f"mcp_servers.{self.id}"
        if (self.command is None) == (self.url is None):
            found = "both" if self.url else "neither"
            raise conflict(f"{key}.command, url", found, "a server is a program (command) or a URL (url)")
        strange = _OF_URLS if self.command is not None else _OF_PROGRAMS
        for name in strange:
            if getattr(self, name):
                wanted = "url" if self.command is not None else "command"
                raise conflict(f"{key}.{name}", "set", f"counts only for a server with `{wanted}`")
        return self

    def offers(self, tool: str) -> bool:
        """Whether the settings let a tool of the server be offered."""
        return (self.enabled_tools is None or tool in self.enabled_tools) and tool not in self.disabled_tools
