"""Where this user's data is, known before any setting is read."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote

FILE_URL = "file:///"


def user_home(environ: Mapping[str, str]) -> Path:
    """The user's home folder; a `HOME` that is no whole path would begin where each process does."""
    given = environ.get("HOME", "")
    return Path(given if given.startswith("/") else pwd.getpwuid(os.getuid()).pw_dir)


def data_home(given: str | None, environ: Mapping[str, str], cwd: Path) -> Path:
    """Dendro's data folder: `--home`, else `DENDRO_HOME`, else the user's place for data."""
    own = user_home(environ)
    if text := given or environ.get("DENDRO_HOME"):
        return absolute(text, cwd, own)
    data = environ.get("XDG_DATA_HOME", "")
    # The base directory specification: a relative path is to be ignored.
    return (Path(data) if data.startswith("/") else own / ".local/share") / "dendro"


def home_of_process(given: Path | None) -> Path:
    """The data folder of this process, before its settings are loaded; `given` is `--home`."""
    return data_home(None if given is None else str(given), os.environ, Path.cwd())


def absolute(text: str, base: Path, user_home: Path) -> Path:
    """A path as a person writes it: `~/` is the user's home, relative ones count from `base`."""
    if text == "~" or text.startswith("~/"):
        return user_home / text[2:]
    return base / text


def without_links(path: Path) -> Path:
    """The path without links. Those that lead in a circle stay: `Path.resolve` ends with an error there."""
    return Path(os.path.realpath(path))


def folder_of(url: str) -> Path | None:
    """The folder that a `file:///…` URL names, its `%20` and the like read; None for other URLs."""
    return Path(unquote(url[len(FILE_URL) - 1 :])) if url.startswith(FILE_URL) else None
