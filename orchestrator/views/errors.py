"""The errors of a reader's wish: what it names is not there, or it contradicts itself."""


class ViewError(Exception):
    """A wish that cannot be granted; the message is for a person and names the remedy."""


class Contradiction(ViewError):
    """A wish that says two different things of one request."""


class SetAside(ViewError):
    """A session that is quarantined: nobody goes on with it until a person lets it run again."""

    def __init__(self, session: str) -> None:
        super().__init__(
            f"session {session} was set aside, because five workers in a row could not go on with it; "
            f"see the workers' logs, then let it run again: dendro revoke {session}"
        )
