"""`dendro doctor`: what is there, what is missing, and what to do about it.

Looks at this machine with the settings that a worker here would have. Changes nothing that lasts: a file is
written and removed to see that it can be, and a private server is started and stopped. Shows no secret.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

from orchestrator.doctor.findings import Finding, without_credentials
from orchestrator.doctor.fleet import check_fleet
from orchestrator.doctor.mcp_servers import judge_mcp_servers
from orchestrator.doctor.pack_keys import check_pack_keys
from orchestrator.doctor.rules import judge_rules
from orchestrator.doctor.server import check_redis
from orchestrator.sandbox.trusted_files import find_program
from orchestrator.settings import FolderConfig, Settings
from orchestrator.settings.private_home import open_folders

GIB = 1024**3
LITTLE_SPACE = 2 * GIB
TOO_LITTLE_SPACE = GIB // 10
EARLIEST_TIME_S = 1_767_225_600
"""1 January 2026: a clock before that was never set, and ids made with it would sort before all others."""


async def diagnose(settings: Settings) -> list[Finding]:
    """The findings about this machine, checked at once."""
    checks = (_check_sandbox, _check_git, _check_home, _check_archive, _check_workspaces)
    redis, fleet, keys, *others = await asyncio.gather(
        check_redis(settings),
        check_fleet(settings),
        check_pack_keys(settings),
        *(asyncio.to_thread(check, settings) for check in checks),
    )
    found_here = [finding for findings in others for finding in findings]
    judged = [*_judge_settings(settings), *judge_model(settings), *judge_clock(time.time())]
    judged += judge_mcp_servers(settings)
    judged += judge_rules(settings)
    return [*judged, *redis, *fleet, *found_here, *keys]


def _judge_settings(settings: Settings) -> Iterator[Finding]:
    yield Finding("settings", "ok", str(settings.config_file or "no file, the defaults count"))
    if (folder := settings.folder_config) is not None:
        yield _judge_folder(folder)
    for warning in settings.warnings:
        yield Finding("settings", "warn", warning, "correct or remove it")


def _judge_folder(folder: FolderConfig) -> Finding:
    if not folder.ignored:
        return Finding("settings", "ok", f"{folder.path}, {'trusted' if folder.trusted else 'this folder'}")
    what = f"{folder.path} is not trusted and may not set {', '.join(folder.ignored)}"
    return Finding("settings", "warn", what, f"read it, then: dendro trust {shlex.quote(str(folder.path))}")


def judge_model(settings: Settings) -> Iterator[Finding]:
    """The finding about the chosen model: its place, the way there, and what is missing. Sends no request."""
    provider = settings.model.providers[settings.model.provider]
    model = f"{settings.model.model} at {without_credentials(provider.base_url)} ({provider.name})"
    if provider.wire_api == "chat":
        model += " by chat completions"
    if provider.proxy:
        model += f" through the proxy {without_credentials(provider.proxy)}"
    if unusable := _unusable(settings):
        yield Finding("model", "warn", model, unusable)
        return
    if provider.auth == "login":
        yield Finding("model", "ok", f"{model}, key of the sign-in")
    elif provider.env_key is None:
        yield Finding("model", "ok", f"{model}, no key needed")
    elif provider.api_key is not None:
        yield Finding("model", "ok", f"{model}, key from {provider.env_key}")
    else:
        # The demo, replay, verify and export need no model: a gap, not a fault of the machine.
        remedy = provider.env_key_instructions or f"export {provider.env_key}=…"
        yield Finding("model", "warn", f"{model}, but {provider.env_key} is not set", remedy)


def _unusable(settings: Settings) -> str:
    """The reason why no worker could ask the chosen provider; empty if one could."""
    from orchestrator.model.connections import verification
    from orchestrator.model.provider import InvalidProvider, require_proxy

    provider = settings.model.providers[settings.model.provider]
    try:
        require_proxy(provider)
        verification(provider)
    except InvalidProvider as error:
        return str(error)
    return ""


def judge_clock(now_s: float) -> Iterator[Finding]:
    """Whether this machine's clock has been set at all."""
    if now_s < EARLIEST_TIME_S:
        shown = time.strftime("%Y-%m-%d", time.gmtime(now_s))
        remedy = "set it, or run NTP: session ids begin with the time"
        yield Finding("clock", "missing", f"this machine believes that it is {shown}", remedy)
    else:
        yield Finding("clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now_s)))


def _check_sandbox(settings: Settings) -> list[Finding]:
    # Imported here: the probe's module needs Linux, and the rest of the doctor should speak elsewhere too.
    from orchestrator.sandbox.landlock import gaps
    from orchestrator.sandbox.probe import probe

    support = probe()
    works = [f"bubblewrap ({support.bubblewrap})"] if support.bubblewrap else []
    works += [f"Landlock (ABI {support.landlock_abi})"] if support.landlock_abi > 0 else []
    wanted = settings.sandbox.mechanism
    usable = bool(works) if wanted == "auto" else any(wanted in name.lower() for name in works)
    why = "; ".join(support.why)
    remedy = "install bubblewrap (Debian: apt install bubblewrap), or use a kernel with Landlock (5.13 on)"
    if usable:
        found = Finding("sandbox", "ok", " and ".join(works) + (f" ({why})" if why else ""))
        by_landlock = support.bubblewrap is None or wanted == "landlock"
        missing = gaps(support.landlock_abi, support.can_mount) if by_landlock else ()
        advice = "install bubblewrap (Debian: apt install bubblewrap), or see SECURITY.md"
        return [found, *(Finding("sandbox gap", "warn", gap, advice) for gap in missing)]
    unconfined = settings.session_defaults.sandbox.mode == "danger-full-access"
    detail = f"{wanted}: confined commands will be refused ({why})"
    return [Finding("sandbox", "warn" if unconfined else "missing", detail, remedy)]


def _check_git(settings: Settings) -> list[Finding]:
    remedy = "install git (Debian: apt install git): diffs of a turn and the demo need it"
    program = find_program("git", settings.host.search_path)
    if program is None:
        return [Finding("git", "warn", "not found on PATH", remedy)]
    try:
        said = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return [Finding("git", "warn", f"{program} does not run: {error}", remedy)]
    return [Finding("git", "ok", f"{said.stdout.strip()}, {program}")]


def _check_home(settings: Settings) -> list[Finding]:
    finding = _try_to_write(settings.home)
    if finding is not None:
        return [Finding("home", "missing", finding, "make it writable, or set DENDRO_HOME")]
    found = Finding("home", "ok", str(settings.home))
    return [found, *_judge_privacy(settings), _judge_space(settings.home)]


def _judge_privacy(settings: Settings) -> Iterator[Finding]:
    for folder in open_folders(settings):
        detail = f"{folder.path} {folder.why}"
        yield Finding("other users", "missing" if folder.refused else "warn", detail, folder.remedy)


def _check_archive(settings: Settings) -> list[Finding]:
    parts = urlsplit(settings.upkeep.archive_url)
    shown = without_credentials(settings.upkeep.archive_url)
    if parts.scheme != "file":
        return [Finding("archive", "ok", f"{shown} (not tried)")]
    finding = _try_to_write(Path(unquote(parts.path)))
    if finding is not None:
        return [Finding("archive", "missing", finding, "make it writable, or set upkeep.archive_url")]
    return [Finding("archive", "ok", shown)]


def _check_workspaces(settings: Settings) -> list[Finding]:
    """Whether this machine can make portable folders, and with how much room."""
    from orchestrator.sandbox.probe import cannot_mount, probe

    root, name = settings.workspace.root, "workspaces"
    assert root is not None, "filled in with the settings"
    if (finding := _try_to_write(root)) is not None:
        return [Finding(name, "warn", finding, "make it writable, or set workspace.root")]
    if Path(os.path.realpath(root)) != root:
        detail = f"{root} leads through a symbolic link or `..`"
        return [Finding(name, "warn", detail, f"set workspace.root to {os.path.realpath(root)}")]
    if why := cannot_mount(probe(), settings.sandbox.mechanism):
        return [Finding(name, "warn", why, "without it, portable sessions are left to other workers")]
    existing = next(place for place in (root, *root.parents) if place.exists())
    free, least = shutil.disk_usage(existing).free, settings.workspace.min_free
    if free < least:
        detail = f"{root}: {free / GIB:.1f} GiB free, and workspace.min_free wants {least / GIB:.1f}"
        remedy = "make room: until then a worker here leaves portable sessions to other machines"
        return [Finding(name, "warn", detail, remedy)]
    return [Finding(name, "ok", f"{root}, the same on all workers of a pool")]


def _try_to_write(folder: Path) -> str | None:
    """The reason why files cannot be made in a folder, or where it would be made; None if they can."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        return f"{existing} cannot be written: {error.strerror}"
    return None


def _judge_space(folder: Path) -> Finding:
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / GIB:.1f} GiB free in {existing}"
    if free < TOO_LITTLE_SPACE:
        return Finding("disk", "missing", detail, "free some: a full disk stops the server's log")
    if free < LITTLE_SPACE:
        return Finding("disk", "warn", detail, "free some before it is full: the server's log grows")
    return Finding("disk", "ok", detail)
