"""An MCP server of the SDK's own that asks a person in the middle of a call."""

from __future__ import annotations

from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel


class Nothing(BaseModel):
    """The answer to a question for yes or no."""


server = MCPServer("asking")


@server.tool()
async def permit(context: Context[Any], twice: bool = False) -> str:
    """Asks once, or once more."""
    said = [(await context.elicit("May I?", Nothing)).action]
    if twice:
        said.append((await context.elicit("Really?", Nothing)).action)
    return " ".join(said)


if __name__ == "__main__":
    server.run("stdio")
