"""Bundles a session's tree in a fresh process, or checks a bundle in one, and tells what that took.

python -m bench.bundle_process SESSION FILE
python -m bench.bundle_process FILE
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Any

import orjson

from bench.machine import peak_mib
from orchestrator.core.ids import TreeId
from orchestrator.rollouts.bundle_check import check_bundle
from orchestrator.rollouts.bundle_writer import Order, write_bundle
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.wiring.open_deployment import opened


async def _bundle(session: str, file: Path) -> dict[str, Any]:
    async with opened(load_settings(SettingsSources.of_process())) as found:
        began = time.perf_counter()
        with file.open("wb") as out:
            made = await write_bundle(found, TreeId(session), out, Order("bench/home", "now", "bench"))
        wall_s = time.perf_counter() - began
    unpacked = sum(one.bytes for one in made.manifest.files.values())
    return {"entries": made.entries, "mb": unpacked / 1e6, "wall_s": wall_s, "peak_mib": peak_mib()}


def _check(file: Path) -> dict[str, Any]:
    began = time.perf_counter()
    report = check_bundle(file)
    wall_s = time.perf_counter() - began
    entries = sum(log.entries for log in report.logs.values())
    return {"findings": len(report.findings), "entries": entries, "wall_s": wall_s, "peak_mib": peak_mib()}


if __name__ == "__main__":
    told = (
        _check(Path(sys.argv[1]))
        if len(sys.argv) == 2
        else asyncio.run(_bundle(sys.argv[1], Path(sys.argv[2])))
    )
    sys.stdout.buffer.write(orjson.dumps(told))
