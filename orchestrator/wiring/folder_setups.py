"""The script that prepares a new session's portable folder: of the settings, or of the folder if trusted.

The folder's own script may be a stranger's, or an agent's. It counts only while a person trusts it as it is,
in that place; its text then goes into the session's first entry, and nothing reads the file again.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from orchestrator.core.settings import FolderSetup
from orchestrator.sandbox.trusted_files import read_regular
from orchestrator.settings import FOLDER_SETUP, Settings, TrustList
from orchestrator.tables import WorkspaceSettings

SCRIPT_BYTES = 16 << 10
"""Bytes of a script: the first entry of the log holds it, and every snapshot of the state."""


class BadSetup(Exception):
    """A script cannot be a set-up; the text says why and what to do."""


def named_setup(workspace: WorkspaceSettings) -> FolderSetup | None:
    """The set-up that the settings name, None without one; raises `BadSetup`."""
    if workspace.setup_script:
        return _setup(workspace.setup_script.encode(), "workspace.setup_script", workspace)
    if workspace.setup is None:
        return None
    try:
        content = read_regular(workspace.setup, SCRIPT_BYTES + 1)
    except OSError as error:
        raise BadSetup(f"workspace.setup: {workspace.setup} cannot be read ({error}): name a file") from error
    return _setup(content, f"workspace.setup ({workspace.setup})", workspace)


def setup_of(settings: Settings, top: Path) -> tuple[FolderSetup | None, str]:
    """The set-up of a folder of this machine, and a warning; raises `BadSetup`."""
    named = named_setup(settings.workspace)
    return (named, "") if named is not None else trusted_setup(settings, top)


def trusted_setup(settings: Settings, top: Path) -> tuple[FolderSetup | None, str]:
    """The folder's own set-up if a person trusts it as it is; else none, with a warning if there is one."""
    file = top / FOLDER_SETUP
    try:
        content = read_regular(file, SCRIPT_BYTES + 1, below=top)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, f"the folder's own set-up is not run: {file} cannot be read ({error})"
    if not TrustList(settings.home).trusts(file, content):
        remedy = f"Read it, then: dendro trust {shlex.quote(str(file))}, and begin a new session"
        return None, f"the folder's own set-up {file} is not run: you have not trusted it as it is. {remedy}"
    try:
        return _setup(content, FOLDER_SETUP, settings.workspace), ""
    except BadSetup as error:
        return None, f"the folder's own set-up is not run: {error}"


def _setup(content: bytes, origin: str, workspace: WorkspaceSettings) -> FolderSetup:
    if len(content) > SCRIPT_BYTES:
        raise BadSetup(
            f"{origin}: a set-up has at most {SCRIPT_BYTES:,} bytes, for the log holds it; let it call a "
            "program of the folder"
        )
    try:
        script = content.decode()
    except UnicodeDecodeError as error:
        raise BadSetup(f"{origin}: a set-up is a script in UTF-8 ({error})") from error
    if not script.strip() or "\0" in script:
        raise BadSetup(f"{origin}: a set-up is a script, and this one is empty or holds a NUL")
    return FolderSetup(script, workspace.setup_network, int(workspace.setup_timeout_s * 1000), origin)
