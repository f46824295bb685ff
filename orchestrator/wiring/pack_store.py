"""The store of the packs of portable folders, as settings name it."""

from __future__ import annotations

from orchestrator.rollouts.objects import Objects
from orchestrator.settings import Settings
from orchestrator.workspaces.keys import PackKeys
from orchestrator.workspaces.packs import Packs


def pack_store(settings: Settings) -> Packs:
    """The archive's store, with this process's keys."""
    keys = settings.workspace.key_file
    return Packs(Objects(settings.upkeep.archive_url), None if keys is None else PackKeys(keys))
