"""The keys of packs for `dendro doctor`: the file, its rights, and the newest pack of the store."""

from __future__ import annotations

from pathlib import Path

from orchestrator.doctor.findings import Finding
from orchestrator.rollouts.objects import ArchiveUnavailable, Objects
from orchestrator.settings import Settings
from orchestrator.workspaces.keys import KeyUnavailable, PackKeys
from orchestrator.workspaces.packs import BrokenPack, PackName, Packs

NAME = "workspace keys"
LOOKED_AT = 200
"""Trees and sessions in which the newest pack is looked for."""


async def check_pack_keys(settings: Settings) -> list[Finding]:
    """The findings about `workspace.key_file`; nothing without one."""
    file = settings.workspace.key_file
    if file is None:
        return []
    keys = PackKeys(file)
    try:
        keys.first()
    except KeyUnavailable as error:
        return [Finding(NAME, "missing", str(error), "without it no portable folder is stored or made here")]
    packs = Packs(Objects(settings.upkeep.archive_url), keys)
    try:
        newest = await packs.newest(LOOKED_AT)
        return [_judged(file, keys, newest, newest and await packs.is_sealed(newest))]
    except (KeyUnavailable, BrokenPack) as error:
        return [Finding(NAME, "warn", str(error), "sessions that need it are left to other workers")]
    except ArchiveUnavailable as error:
        return [Finding(NAME, "warn", f"{file}; no pack could be tried: {error}", "see upkeep.archive_url")]


def _judged(file: Path, keys: PackKeys, newest: PackName | None, sealed: object) -> Finding:
    known = f"{file}, key {keys.first().id} writes"
    if newest is None or sealed is None:
        return Finding(NAME, "ok", f"{known}; the store has no pack to try")
    if sealed:
        return Finding(NAME, "ok", f"{known}; the newest pack opens")
    remedy = "if it is younger than the key, set workspace.key_file for every worker, gateway and client"
    return Finding(NAME, "warn", f"{known}; the newest pack is not encrypted: {newest}", remedy)
