"""Logs of sessions, wherever they are kept: in Redis, in the archive, in a file.

    full_log        a log as one sequence, from the archive and from Redis
    segments        sealed parts of a log, as the archive keeps them; `archive`, `object_store`: where
    log_source      what a reader of logs needs, and where it comes from
    inherited_lines entries on their way into a file, and what a fork inherited
    rollout_file    the file that Codex's `resume` opens, kept up to date
    file_format     what files look like, and how any of them is read again
    export, imports a log into a file, and a file into a session
    replay          the fold of a log, held against the live one
    audit, verify   what a log, or a file of one, shows of itself

Begin with `full_log` and `file_format`. Must not know runners, claims of workers, doors and terminals.
"""


# ── log errors ────────────────────────────────────────────────────────────────────────────────────
# The error that a reader of logs and files raises for a person.


class RolloutError(Exception):
    """A log or a file cannot be used for what was asked; the message says why."""


class ArchiveUnavailable(Exception):
    """The archive could not be asked, or did not take what it was given: the same may succeed later."""


class BrokenArchive(Exception):
    """The archive does not hold what the manifest says; the message names the object."""
