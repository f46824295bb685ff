"""MCP servers of a worker: programs and URLs that offer tools, through the official SDK (`mcp` on PyPI).

A server is hostile as the model is: whatever it sends has a bound, and what it does wrong costs
one call and its own connection, never the worker.

- `records`: the most that a server may send; tools, answers and the ports; light, for those who only name them
- `names`, `schemas`: a server's tools as a model is offered them
- `results`: a call's result as the model reads it and as its event shows it
- `stdio`, `http`: messages to a program over its pipes, and to a URL
- `connection`: one server, from its handshake to its end
- `servers`: all servers of a worker, one connection for each folder; shared by the sessions

Knows neither Redis nor the core's rules. `connection`, `stdio`, `http` and `servers` import the SDK, which
takes most of a second: they are imported only where a server is configured.
"""
