"""The SQ/EQ over TCP and unix sockets: `dendro proto` for clients that are elsewhere, any number of them.

The first line of a connection opens a session or attaches to one; what follows is NDJSON as on standard
input and output.
"""
