"""The environment that a command gets: the worker's own, without what looks secret.

Pure: the worker's variables come in as a mapping. A command that could read the worker's
API key could spend it, so the default excludes are on here although Codex's are off.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import TYPE_CHECKING

from orchestrator.sandbox.policy_paths import Confinement

if TYPE_CHECKING:
    from orchestrator.config_keys import EnvironmentPolicy

DEFAULT_EXCLUDES = (
    *("*KEY*", "*TOKEN*", "*SECRET*", "*PASSWORD*", "*PASSWD*", "*PASSPHRASE*", "*CREDENTIAL*", "DENDRO_*"),
    *("*_PASS", "*_PWD", "*_PAT", "*_AUTH", "*_CREDS", "*_COOKIE", "*_DSN"),
)
CONTROL = (
    *("SSH_AUTH_SOCK", "SSH_AGENT_PID", "SSH_ASKPASS", "GPG_AGENT_INFO", "GIT_ASKPASS", "SUDO_ASKPASS"),
    *("DBUS_*", "XDG_RUNTIME_DIR", "DISPLAY", "WAYLAND_*", "XAUTHORITY", "SWAYSOCK", "I3SOCK", "HYPRLAND_*"),
    *("TMUX", "TMUX_*", "STY", "ZELLIJ*", "KITTY_LISTEN_ON", "WEZTERM_UNIX_SOCKET", "ALACRITTY_SOCKET"),
    *("DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST", "CONTAINERD_*", "PODMAN_*", "LIBVIRT_*"),
    *("VSCODE_*", "NVIM", "NVIM_LISTEN_ADDRESS", "EMACS_SOCKET_NAME", "EMACS_SERVER_FILE"),
    *("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "PULSE_*", "PIPEWIRE_*"),
)
"""Variables that reach programs acting for the user: signing agents, desktops, multiplexers, containers."""
CORE = frozenset(
    ("PATH", "SHELL", "TMPDIR", "TEMP", "TMP", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "USER")
)
_PASSWORD_IN_URL = re.compile(r"://(?:[^/\s:@]*:[^/\s@]+|[^/\s:@]{16,})@")
"""A password, or a token in the place of a user's name, which is shorter."""


def command_environment(
    parent: Mapping[str, str], rules: EnvironmentPolicy, confinement: Confinement
) -> dict[str, str]:
    """Applies the rules in Codex's order (inherit, default excludes, exclude, set, include_only).

    A confined command inherits nothing that leads out of the sandbox; what a person sets, it gets.

    `DENDRO_SANDBOX` and `CODEX_SANDBOX_NETWORK_DISABLED` are added last: they describe the
    sandbox, and test suites use them to skip what cannot work inside one.
    """
    chosen = _inherited(parent, rules)
    if confinement.place is not None:
        # A folder of the worker's; a portable folder has a /tmp of its own.
        chosen = {k: v for k, v in chosen.items() if k not in {"TMPDIR", "TEMP", "TMP"}}
    if confinement.mode != "danger-full-access":
        chosen = {k: v for k, v in chosen.items() if not _matches(k, CONTROL)}
    if not rules.ignore_default_excludes:
        chosen = {k: v for k, v in chosen.items() if not _looks_secret(k, v)}
    chosen = {k: v for k, v in chosen.items() if not _matches(k, rules.exclude)}
    chosen |= rules.set
    if rules.include_only:
        chosen = {k: v for k, v in chosen.items() if _matches(k, rules.include_only)}
    return chosen | _sandbox_marks(confinement)


def _inherited(parent: Mapping[str, str], rules: EnvironmentPolicy) -> dict[str, str]:
    match rules.inherit:
        case "all":
            return dict(parent)
        case "core":
            return {k: v for k, v in parent.items() if k in CORE}
        case "none":
            return {}


def _looks_secret(name: str, value: str) -> bool:
    """By its name, or because its value is a URL with a password in it (`DATABASE_URL`)."""
    return _matches(name, DEFAULT_EXCLUDES) or _PASSWORD_IN_URL.search(value) is not None


def _matches(name: str, globs: Iterable[str]) -> bool:
    return _matched(name, tuple(globs))


@lru_cache(maxsize=2_048)  # the same variables for each command of a worker
def _matched(name: str, globs: tuple[str, ...]) -> bool:
    upper = name.upper()
    return any(fnmatchcase(upper, glob.upper()) for glob in globs)


def _sandbox_marks(confinement: Confinement) -> dict[str, str]:
    if confinement.mode == "danger-full-access":
        return {}
    marks: dict[str, str] = {"DENDRO_SANDBOX": confinement.mode}
    if not confinement.network:
        marks["CODEX_SANDBOX_NETWORK_DISABLED"] = "1"
    return marks


def secret_variables(given: Mapping[str, str]) -> dict[str, str]:
    """Those of some variables that commands would not inherit."""
    return {name: value for name, value in given.items() if _looks_secret(name, value)}
