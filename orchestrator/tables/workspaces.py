"""Settings of portable folders: where copies lie, what is recorded, and within which bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from pydantic import model_validator

from orchestrator.tables.base import MIB, Table, conflict, setting

DEFAULT_EXCLUDES = (".env", ".env.*", "*.pem", "id_rsa*", "id_dsa*", "id_ecdsa*", "id_ed25519*")
FOLDER_SETUP = ".dendro/setup.sh"
"""A folder's own set-up, which is run only if a person has trusted it as it is."""
GIB = 1024 * MIB


class WorkspaceSettings(Table):
    """Portable folders: copies that any worker makes from the log."""

    root: Path | None = setting(None, "workspace.root", shown_default="`workspaces` in the home folder")
    """Folder below which this machine has its copies. Commands see a portable folder at
    `<root>/<tree>/<name>` on every machine, so all workers of a pool need the same one; a worker with another
    one gives such a session back. It may not lead through a symbolic link."""

    key_file: Path | None = setting(None, "workspace.key_file")
    """File of the keys by which packs of portable folders are encrypted before the store gets them
    (`dendro keys new FILE` makes one), readable for its owner only. Every process that writes or reads such
    packs needs it: workers, gateways, and commands such as `dendro diff`. The first key writes, all of them
    read. Packs of before there was a key are read as well."""

    include: tuple[str, ...] = setting((), "workspace.include")
    """Files that are recorded although the folder's rules ignore them: lines as in a `.gitignore`. Counts for
    sessions that are made with it."""

    exclude: tuple[str, ...] = setting(DEFAULT_EXCLUDES, "workspace.exclude")
    """New files that are never recorded, whatever the folder's rules say: lines as in a `.gitignore`. Each is
    named once in a warning. Files that the repository has are recorded. Counts for sessions that are made
    with it."""

    setup: Path | None = setting(None, "workspace.setup")
    """File with a script that prepares each portable folder, for instance by installing packages. It runs in
    the folder once it was made, before the first call that needs it, and again where the folder is made anew.
    Its text is read when a session is made, or an agent's copy of an ordinary folder, and stays that one's;
    no sandboxed command writes the file. Without it a folder's own `.dendro/setup.sh` runs if you have
    trusted it as it is (`dendro trust .dendro/setup.sh`)."""

    setup_script: str = setting("", "workspace.setup_script")
    """The script itself, instead of a file."""

    setup_network: bool = setting(False, "workspace.setup_network")
    """Lets the script reach the network, in every folder in which it runs: also where files that it reads,
    such as a list of packages, are an agent's by then. Counts for sessions that are made with it."""

    setup_timeout_s: float = setting(600.0, "workspace.setup_timeout_s", at_least=1, at_most=14_400)
    """Seconds until the script is killed, and the task fails. Counts for sessions that are made with it."""

    max_file: int = setting(50 * MIB, "workspace.max_file", at_least=1024)
    """Bytes of a file from which on it is left out, and named in a warning."""

    max_files: int = setting(200_000, "workspace.max_files", at_least=1, at_most=2_000_000)
    """Files of a folder; one with more is refused as a portable folder."""

    max_bytes: int = setting(4 * GIB, "workspace.max_bytes", at_least=MIB)
    """Bytes of all recorded files of a folder; one with more is refused as a portable folder."""

    seconds: float = setting(120.0, "workspace.seconds", at_least=1)
    """Seconds for one snapshot, or for making one folder."""

    store_s: float = setting(10.0, "workspace.store_s", at_least=0.1)
    """Seconds that a call's end waits for the store to take a snapshot. Then the session goes on, its folder
    is unsaved, and the store is tried again."""

    hold_s: float = setting(86_400.0, "workspace.hold_s", at_least=0)
    """Seconds for which a worker keeps a session whose folder the store does not take, and tries again. Then
    it gives the session back, and its machine tries again now and then. Another machine takes the session,
    and goes on without the changes, when that one's workers are gone, or a person gives the changes up."""

    leave_s: float = setting(1.0, "workspace.leave_s", at_least=0, at_most=60)
    """Seconds for which workers of other machines leave a portable session to the machine that has its copy,
    where it need not be made anew. A machine whose workers are gone or full is not waited for."""

    min_free: int = setting(1 * GIB, "workspace.min_free", at_least=0)
    """Bytes that have to be free on the disk of `workspace.root`: with less, this machine makes no folder,
    and its workers leave portable sessions to those of other machines."""

    max_disk: int | None = setting(None, "workspace.max_disk", at_least=MIB, shown_default="no limit")
    """Bytes that all copies of this machine may take. Above it those of sessions that nobody works on are
    removed before their time, least recently used first. Copies with unsaved changes stay."""

    keep_s: float = setting(3600.0, "workspace.keep_s", at_least=0)
    """Seconds for which a copy stays on the machine after its session was given back: the next claim here
    finds it. Copies with unsaved changes stay."""

    git_protocols: tuple[str, ...] = setting(("https", "ssh"), "workspace.git_protocols")
    """Protocols by which a worker may clone the repository that a session's first content comes from, with
    the worker's own credentials. `file` lets whoever makes sessions read repositories of the worker's
    machine."""

    clone_s: float = setting(300.0, "workspace.clone_s", at_least=1)
    """Seconds for such a clone."""

    @model_validator(mode="after")
    def _plain(self) -> Self:
        if self.root is not None and (not self.root.is_absolute() or len(str(self.root)) > 512):
            raise conflict(
                "workspace.root", str(self.root)[:80], "an absolute path of at most 512 characters"
            )
        if self.key_file is not None and not self.key_file.is_absolute():
            raise conflict("workspace.key_file", str(self.key_file)[:80], "an absolute path")
        for key, globs in (("workspace.include", self.include), ("workspace.exclude", self.exclude)):
            if len(globs) > 256 or any(not glob or len(glob) > 512 or "\n" in glob for glob in globs):
                raise conflict(key, f"{len(globs)} lines", "at most 256 lines of at most 512 characters")
        if self.setup is not None and self.setup_script:
            both = "workspace.setup, workspace.setup_script"
            raise conflict(both, "a file and a text", "one of them: they mean the same script")
        if any(not name.isalnum() for name in self.git_protocols):
            raise conflict(
                "workspace.git_protocols", "a name with signs", "names of protocols, such as https"
            )
        return self
