"""The error that a reader of logs and files raises for a person."""


class RolloutError(Exception):
    """A log or a file cannot be used for what was asked; the message says why."""
