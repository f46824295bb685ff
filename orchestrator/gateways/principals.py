"""Principals: who speaks through a door, in which namespace, and how far their rights go.

A principal is a token's, or the machine's user on standard input and on unix sockets. Knows no wire
and no token's text.
"""

from __future__ import annotations

import getpass
import os
import socket
from enum import IntEnum
from typing import Literal, TypeAlias, get_args

from orchestrator.core.frozen import record
from orchestrator.core.sender import MACHINE, Sender, Via

HOME_NAMESPACE = ""
"""The namespace of the machine's user: of all sessions that no token's holder has made."""


WorkspaceKind: TypeAlias = Literal["host", "portable"]
"""The folder of a new session: one of the machine, or a copy in the session's log."""
WORKSPACE_KINDS: tuple[WorkspaceKind, ...] = get_args(WorkspaceKind)


class Scope(IntEnum):
    """The rights of a principal; each holds those before it."""

    READ = 1
    """See sessions, follow them, list them."""
    SUBMIT = 2
    """Begin sessions and turns, speak to agents, interrupt them."""
    APPROVE = 3
    """Answer requests for approval, questions and plans; loosen what a session may do."""
    ADMIN = 4
    """Delete sessions, and change what is the deployment's."""

    @property
    def word(self) -> str:
        """The name that people write."""
        return self.name.lower()

    @classmethod
    def of_word(cls, word: str) -> Scope:
        """The scope that a person named; raises `ValueError` that lists them all."""
        for scope in cls:
            if scope.word == word:
                return scope
        raise ValueError(f"{word!r} is no scope: {', '.join(scope.word for scope in cls)}")


class NotPermitted(Exception):
    """A principal asked for what its scope does not hold; the message says which scope would do."""


@record
class Principal:
    """A person or program at a door."""

    name: str
    """Signs submissions and decisions: `who` in the log."""
    namespace: str = HOME_NAMESPACE
    scope: Scope = Scope.ADMIN
    """The highest scope; it holds the lower ones."""
    token: str = ""
    """The id of the token that it came with; empty for the machine's user."""
    workspace: WorkspaceKind | None = None
    """The kind of folder where it does not choose one itself; None: as the gateway's settings say."""
    subject: str = ""
    """The same one beyond this deployment: `uid:<number>@<host>`, or an issuer and its subject."""

    @property
    def is_tenant(self) -> bool:
        """Whether it is of a namespace: such a one learns nothing of the machine."""
        return self.namespace != HOME_NAMESPACE

    @property
    def sees_machine(self) -> bool:
        """Whether files, commands and addresses of the machine are shown to it."""
        return not self.is_tenant and self.may(Scope.APPROVE)

    def sender(self, via: Via) -> Sender:
        """The sender of what it hands in at a door."""
        token = self.token or MACHINE
        return Sender(self.name, self.namespace, self.scope.word, via, token, self.subject)

    def may(self, scope: Scope) -> bool:
        """Whether its rights reach so far."""
        return self.scope >= scope

    def require(self, scope: Scope, what: str) -> None:
        """Raises `NotPermitted` where its rights end before `scope`."""
        if not self.may(scope):
            raise NotPermitted(
                f"{what} needs the scope {scope.word}, and {self.name} has {self.scope.word}: "
                f"ask for a token with --scope {scope.word}"
            )


def machine_user() -> Principal:
    """The user of this process, with all rights over the sessions of this machine's user."""
    return Principal(user_name(), subject=f"uid:{os.getuid()}@{socket.gethostname()}")


def user_name() -> str:
    """`user@host`; the user's number where the user has no name."""
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):
        # A container's user may have no name.
        return f"uid {os.getuid()}@{socket.gethostname()}"
