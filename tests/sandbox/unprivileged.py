"""A program for a user without privileges: tries every attack under every mechanism it finds.

Usage: python unprivileged.py <root of the checkout> <empty folder>. Prints one line for each
mechanism (what was found) and one for each attack that did harm. Standard library only.
"""

import asyncio
import dataclasses
import sys
from pathlib import Path

sys.path.append(sys.argv[1])

from orchestrator.sandbox.probe import Preference, SandboxSupport, probe
from tests.sandbox.attacks import ATTACKS, NEEDS_MOUNTS, run_in, scene, supervised


async def _try_all(name: str, support: SandboxSupport, prefer: Preference, folder: Path) -> None:
    print("mechanism", name, flush=True)
    async with supervised(prefer, support) as supervisor:
        for number, (attack, script) in enumerate(ATTACKS.items()):
            if prefer == "landlock" and not support.can_mount and attack in NEEDS_MOUNTS:
                continue
            with scene(folder / f"{name}-{number}") as there:
                finished = await run_in(there, script, supervisor)
                harm = there.harm() + (["HARM"] if b"HARM" in finished.stdout else [])
                if harm or finished.error is not None:
                    print("harm", name, attack, harm, finished.error, finished.stderr, flush=True)


async def _main(folder: Path) -> None:
    support = probe()
    print("support", support, flush=True)
    if support.bubblewrap:
        await _try_all("bubblewrap", support, "bubblewrap", folder)
    if support.landlock_abi:
        bare = dataclasses.replace(support, can_mount=False)
        await _try_all("landlock-without-mounts", bare, "landlock", folder)
    if support.landlock_abi and support.can_mount:
        await _try_all("landlock", support, "landlock", folder)


asyncio.run(_main(Path(sys.argv[2])))
