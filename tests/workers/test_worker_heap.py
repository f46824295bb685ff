"""The heap of a process that lives long, tried in a process of its own."""

from __future__ import annotations

import asyncio
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator.cli import invocation, serve
from orchestrator.gateways.wires.addresses import parse_address
from orchestrator.sandbox import kernel
from orchestrator.settings import SettingsSources, load_settings
from workers import turns, upkeep

_PROGRAM = """
import asyncio, gc, weakref
import orchestrator.wiring.gateway
from orchestrator.wiring.gateway import settle_heap

class Cycle:
    pass

async def starts():
    settle_heap()

asyncio.run(starts())
kept = gc.get_freeze_count()
lost = Cycle()
lost.itself = lost
seen = weakref.ref(lost)
del lost
young = [[] for _ in range(gc.get_threshold()[0] + 100)]
print(kept > 10_000, len(gc.get_objects()) < kept, seen() is None)
"""


def test_worker_walks_no_object_of_its_start_and_still_collects_cycles() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]


_THREADS = """
import ctypes, os, sys, threading
from orchestrator.sandbox.kernel import share_heap

share_heap()
libc = ctypes.CDLL(None)
met = threading.Barrier(9)

def allocate():
    kept = bytes(100_000)
    met.wait()
    met.wait()

threads = [threading.Thread(target=allocate) for _ in range(8)]
for thread in threads:
    thread.start()
met.wait()
libc.fopen.restype = ctypes.c_void_p
told = libc.fopen(b"/dev/stdout", b"w")
libc.malloc_info(0, ctypes.c_void_p(told))
libc.fclose(ctypes.c_void_p(told))
met.wait()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the GNU C library counts its heaps")
def test_threads_of_a_process_share_its_heap() -> None:
    done = subprocess.run([sys.executable, "-c", _THREADS], capture_output=True, text=True, check=True)
    assert done.stdout.count("<heap nr=") == 1


_FREED = """
import asyncio, gc, time
from pathlib import Path
from orchestrator.wiring import gateway

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) >> 8

async def lives():
    gc.disable()
    gateway.settle_heap()
    blocks = [b"x" * 100_000 for _ in range(600)]
    last = blocks.pop()
    full, until = resident(), time.monotonic() + 20
    blocks.clear()
    while full - resident() <= 40 and time.monotonic() < until:
        await asyncio.sleep(0.01)
    print(full - resident(), len(last))

gateway.TRIM_S = 0.01
asyncio.run(lives())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the GNU C library keeps what is freed")
def test_what_is_freed_below_a_block_that_stays_is_given_back() -> None:
    done = subprocess.run([sys.executable, "-c", _FREED], capture_output=True, text=True, check=True)
    assert int(done.stdout.split()[0]) > 40, "MiB of 57"


class Opens(Exception):
    """A process goes on to what has threads."""


@pytest.mark.parametrize("process", ["worker", "upkeep", "gateway", "listening app-server"])
def test_process_that_lives_long_shares_its_heap_before_it_has_threads(
    process: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = list[bool]()
    for module in (turns, upkeep, kernel):
        monkeypatch.setattr(module, "share_heap", lambda: shared.append(True))

    def opens(*_: object, **more: object) -> None:
        raise Opens

    for module, name in ((turns, "redis_url"), (upkeep, "redis_url"), (invocation, "opened")):
        monkeypatch.setattr(module, name, opens)
    sources = SettingsSources(tmp_path, {"HOME": str(tmp_path)})
    settings, address = load_settings(sources), parse_address("unix://", tmp_path / "socket")
    with pytest.raises(Opens):
        match process:
            case "worker":
                turns.run_turns(settings)
            case "upkeep":
                upkeep.run_upkeep(settings)
            case "gateway":
                asyncio.run(serve._serve_sockets(settings, sources, [address]))
            case _:
                asyncio.run(serve._serve_app(settings, sources, (address, (b"", False)), None))
    assert shared == [True]
