"""The Responses API: what a prompt looks like on the wire, and what comes back.

Knows HTTP, Server-Sent Events and the provider's failures. Must not know sessions,
tasks, the log, or who asks: a prompt goes in, a stream of `ModelEvent` comes out.
"""
