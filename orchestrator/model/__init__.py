"""Model providers: what a prompt looks like on the wire, and what comes back.

`model_client` is one for all of them, and says what it asks of a wire format; `responses` and
`chat_completions` are these. Knows HTTP, Server-Sent Events and the providers' failures. Must not know
sessions, tasks, the log, or who asks: a prompt goes in, a stream of `ModelEvent` comes out.
"""
