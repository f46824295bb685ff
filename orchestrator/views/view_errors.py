"""The errors of a reader's wish: what it names is not there, or it contradicts itself."""


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
