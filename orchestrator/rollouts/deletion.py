"""Deletion of a whole tree wherever its parts are: from Redis at one moment, then from the archive.

Redis first, because only there can be said that nobody holds a session. A note in the archive, made before,
leads upkeep to what a process that died half-way left behind there.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.broker.errors import SessionHeld
from orchestrator.broker.records import SessionHead
from orchestrator.rollouts.storage import Storage


async def delete_everywhere(storage: Storage, members: Sequence[SessionHead], *, owed: bool = False) -> None:
    """Deletes a tree, whose sessions were seen so; `owed`: what they were given and have not read may go too.

    Raises `SessionHeld` if one was used meanwhile, and nothing is gone; `ArchiveUnavailable`: if Redis does
    not have the tree any more, upkeep removes the rest.
    """
    tree = members[-1].tree
    await storage.archive.condemn(tree)
    try:
        await storage.broker.delete_tree(members, owed=owed)
    except SessionHeld:
        await storage.archive.spare(tree)
        raise
    await storage.archive.delete_tree(tree)
