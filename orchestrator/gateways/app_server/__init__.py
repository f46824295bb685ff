"""The app-server door: JSON-RPC for terminals, SDKs and editors, versions 1 and 2 told apart by method.

- `client_connection`: one connection, from its first message to its end; `messages` reads what comes in
- `door`: the same connection as the methods see it; `outbox` is what waits to be sent
- `live_threads`: sessions that connections hear, each followed once; `write_requests` puts their
  requests to clients
- `method`: what a method is; `methods`: the table of all of them
- `door_ports`: what this package needs of the deployment, and is given
"""
