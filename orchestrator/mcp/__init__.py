"""MCP servers of a worker: programs and URLs that offer tools, through the official SDK (`mcp` on PyPI).

A server is hostile as the model is: whatever it sends has a bound, and what it does wrong costs
one call and its own connection, never the worker.

- `server_records`: the most that a server may send, tools, answers and the ports; light
- `server_connection`: one connection to a server
- `servers`: the servers of a worker: started, listed, called, and ended

Knows neither Redis nor the core's rules. `server_connection` and `servers` import the SDK, which takes
most of a second: they are imported only where a server is configured.
"""
