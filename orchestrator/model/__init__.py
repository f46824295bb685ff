"""Model providers: what a prompt looks like on the wire, and what comes back.

`client` is one for all of them; `responses` and `chat` are the wire formats, `formats` what the client asks
of one. Knows HTTP, Server-Sent Events and the providers' failures. Must not know sessions, tasks, the log, or
who asks: a prompt goes in, a stream of `ModelEvent` comes out.
"""
