"""Paths kept from confined commands: the data folder, copies and keys, Redis's socket, Dendro's code.

A command that reaches Redis could approve itself and edit logs. Knows settings and a URL;
how paths are hidden is the sandbox's matter.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import orchestrator
from orchestrator.private_files import make_folder
from orchestrator.sandbox.place import COPIES
from orchestrator.settings import Settings
from orchestrator.settings.private_home import is_shared
from orchestrator.wiring.deployment import embedded_config


def hidden_paths(settings: Settings, url: str) -> tuple[Path, ...]:
    """The folders, each as it is named.

    The socket's folder, not its file: a server that starts again makes a new file. The private
    server may choose another folder then. The home folder is made if it is not there: what is missing
    cannot be hidden, and a command that makes it could fill it with settings.
    """
    make_folder(settings.home)
    parts, runtime = urlsplit(url), settings.host.runtime_dir
    paths = [settings.home]
    if settings.redis.url is None:
        fallback = embedded_config(settings).fallback_folder
        # Made now: what does not exist cannot be hidden, and a command could make it.
        with suppress(OSError):
            make_folder(fallback)
        paths.append(fallback)
    root = settings.workspace.root
    if root is not None and not root.is_relative_to(settings.home):
        # What agents of other sessions work on; a command's own copy is mounted at its path.
        copies = root / COPIES
        with suppress(OSError):
            make_folder(copies)
            paths.append(copies)
    if runtime is not None and runtime.is_dir() and not is_shared(settings, runtime):
        paths.append(runtime)
    if settings.workspace.key_file is not None:
        paths.append(_around(settings, settings.workspace.key_file))
    place = urlsplit(settings.upkeep.archive_url)
    archive = Path(unquote(place.path))
    # Other sessions' logs, and what a session is restored from.
    if place.scheme == "file" and archive.is_dir() and not is_shared(settings, archive):
        paths.append(archive)
    if parts.scheme == "unix":
        socket = Path(unquote(parts.path))
        in_workspace = socket.parent.resolve() == settings.session_defaults.cwd.resolve()
        paths.append(socket if in_workspace or is_shared(settings, socket.parent) else socket.parent)
    return tuple(dict.fromkeys(paths))


def _around(settings: Settings, file: Path) -> Path:
    """The folder of a secret file, so that a new file in its place is hidden, too.

    The file alone where commands need the folder.
    """
    folder = file.parent
    holds_work = settings.session_defaults.cwd.resolve().is_relative_to(folder.resolve())
    return file if holds_work or is_shared(settings, folder) else folder


def own_code() -> tuple[Path, ...]:
    """The code of this process: its package and its virtual environment, which may lie in the workspace.

    A command that writes there changes what the next `dendro` runs outside of the sandbox.
    """
    package = Path(orchestrator.__file__).parent
    return (package, Path(sys.prefix)) if sys.prefix != sys.base_prefix else (package,)
