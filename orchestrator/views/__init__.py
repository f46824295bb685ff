"""Views of sessions and trees as records, for terminals, gateways and pages alike.

    sessions    the list, with one word for each
    find        what a person's text means: a session, an abbreviation, an agent of a tree
    tree        a tree at one moment, its usage and budgets
    agent_past  an agent's events, from the end of its log, and messages among them; `search` in them
    approvals   requests that wait for a person; `asked_requests` by events, `patterns` over them,
                `decided_requests` on those that wait no more
    event_text  events in words
    turns       turns and their items, by events

Begin with `sessions` and `agent_past`. Views must not know terminals, commands and how anything is drawn.
"""


# ── view errors ───────────────────────────────────────────────────────────────────────────────────
# The errors of a reader's wish: what it names is not there, or it contradicts itself.


class ViewError(Exception):
    """A wish that cannot be granted; the message is for a person and names the remedy."""


class Contradiction(ViewError):
    """A wish that answers one request in two different ways."""


class SetAside(ViewError):
    """A session that is quarantined: no worker goes on with it until a person readmits it."""

    def __init__(self, session: str) -> None:
        super().__init__(
            f"session {session} was quarantined, because five workers in a row could not go on with it; "
            f"see the workers' logs, then let it run again: dendro revoke {session}"
        )
