"""Wires: how messages come in and go out, whatever a door makes of them.

A `Wire` is one connection: messages in, messages out, and the principal at its other end. Standard
input and output, NDJSON over TCP and unix sockets, and WebSockets each give one.
"""
