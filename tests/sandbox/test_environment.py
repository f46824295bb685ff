"""The environment of commands: what of the worker's reaches them."""

from pathlib import Path

import pytest

from orchestrator.config_keys import EnvironmentPolicy
from orchestrator.sandbox.environment import command_environment
from orchestrator.sandbox.policy_paths import Confinement, Mode, Place

CONFINED = Confinement(mode="workspace-write", cwd=Path("/"))
FREE = Confinement(mode="danger-full-access", cwd=Path("/"), network=True)
PARENT = {"PATH": "/bin", "HOME": "/h", "EDITOR": "vi", "OPENAI_API_KEY": "k", "gh_token": "t"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OPENAI_API_KEY", "x"),
        ("gh_token", "x"),
        ("MySecretThing", "x"),
        ("PASSWD_FILE", "x"),
        ("CLOUD_CREDS", "x"),
        ("SESSION_COOKIE", "x"),
        ("PGPASSWORD", "x"),
        ("AWS_CREDENTIALS_FILE", "x"),
        ("DENDRO_REDIS_URL", "redis://localhost"),
        ("DATABASE_URL", "postgres://me:hunter2@db/x"),
        ("MYSQL_PWD", "x"),
        ("SMTP_PASS", "x"),
        ("GITHUB_PAT", "x"),
        ("REDISCLI_AUTH", "x"),
        ("NPM_CONFIG__AUTH", "x"),
        ("SIGNING_PASSPHRASE", "x"),
        ("SENTRY_DSN", "https://0123@sentry.example/1"),
        ("HTTPS_PROXY", "http://me:hunter2@proxy:3128"),
        ("PIP_INDEX_URL", "https://ghp_0123456789abcdef@pypi.example/simple"),
        ("GIT_REMOTE", "https://0123456789abcdef@host/x"),
    ],
)
def test_a_variable_that_looks_secret_stays_with_the_worker(name: str, value: str) -> None:
    assert command_environment({name: value}, EnvironmentPolicy(), FREE) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [("PWD", "/x"), ("OLDPWD", "/x"), ("GIT_REMOTE", "ssh://git@host/x"), ("PATH", "/bin"), ("COMPASS", "n")],
)
def test_a_variable_that_only_sounds_like_a_secret_is_passed_on(name: str, value: str) -> None:
    assert command_environment({name: value}, EnvironmentPolicy(), FREE) == {name: value}


def test_secrets_pass_when_the_user_says_so() -> None:
    said = EnvironmentPolicy(ignore_default_excludes=True)
    assert command_environment(PARENT, said, FREE) == PARENT
    # What leads out of a sandbox is no secret, and is kept from what is confined all the same.
    assert "SSH_AUTH_SOCK" not in command_environment({"SSH_AUTH_SOCK": "/x"}, said, CONFINED)


def test_rules_apply_in_the_order_of_the_peer() -> None:
    rules = EnvironmentPolicy(
        exclude=("edit*",), set={"EDITOR": "ed", "MY_KEY": "1"}, include_only=("E*", "MY*")
    )
    assert command_environment(PARENT, rules, FREE) == {"EDITOR": "ed", "MY_KEY": "1"}


def test_core_inherits_the_shell_s_variables_and_none_nothing() -> None:
    assert command_environment(PARENT, EnvironmentPolicy(inherit="core"), FREE) == {
        "PATH": "/bin",
        "HOME": "/h",
    }
    assert command_environment(PARENT, EnvironmentPolicy(inherit="none"), FREE) == {}
    core = ["PATH", "SHELL", "TMPDIR", "TEMP", "TMP", "HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "USER"]
    shell = dict.fromkeys(core, "/x")
    assert command_environment(shell | PARENT, EnvironmentPolicy(inherit="core"), FREE).keys() == {*core}


AGENTS = "SSH_AUTH_SOCK SSH_AGENT_PID SSH_ASKPASS GPG_AGENT_INFO GIT_ASKPASS SUDO_ASKPASS"
DESKTOPS = (
    "DBUS_SESSION_BUS_ADDRESS XDG_RUNTIME_DIR DISPLAY WAYLAND_DISPLAY XAUTHORITY SWAYSOCK I3SOCK HYPRLAND_CMD"
)
TERMINALS = "TMUX TMUX_PANE STY ZELLIJ_PANE_ID KITTY_LISTEN_ON WEZTERM_UNIX_SOCKET ALACRITTY_SOCKET"
CONTAINERS = "DOCKER_HOST DOCKER_CONTEXT CONTAINER_HOST CONTAINERD_ADDRESS PODMAN_USERNS LIBVIRT_DEFAULT_URI"
EDITORS = "VSCODE_IPC_HOOK NVIM NVIM_LISTEN_ADDRESS EMACS_SOCKET_NAME EMACS_SERVER_FILE"
SERVICES = "NOTIFY_SOCKET LISTEN_FDS LISTEN_PID LISTEN_FDNAMES PULSE_SERVER PIPEWIRE_REMOTE"


@pytest.mark.parametrize(
    "name", " ".join((AGENTS, DESKTOPS, TERMINALS, CONTAINERS, EDITORS, SERVICES)).split()
)
def test_a_confined_command_inherits_no_way_to_programs_that_act_for_the_person(name: str) -> None:
    assert name not in command_environment({name: "/x"}, EnvironmentPolicy(), CONFINED)
    assert command_environment({name: "/x"}, EnvironmentPolicy(), FREE) == {name: "/x"}
    named = EnvironmentPolicy(set={name: "/y"})
    assert command_environment({name: "/x"}, named, CONFINED)[name] == "/y", "a person says so"


def test_a_confined_command_is_told_of_its_sandbox() -> None:
    marks = command_environment({}, EnvironmentPolicy(), CONFINED)
    assert marks == {"DENDRO_SANDBOX": "workspace-write", "CODEX_SANDBOX_NETWORK_DISABLED": "1"}


PORTABLE = Place(Path("/copy"), Path("/seen"), Path("/copy-tmp"))
MODES: tuple[Mode, ...] = ("read-only", "workspace-write", "danger-full-access")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("network", [True, False])
@pytest.mark.parametrize("portable", [True, False])
def test_command_gets_what_leads_to_its_folder_and_no_further_in_every_mode(
    mode: Mode, network: bool, portable: bool
) -> None:
    parent = {"TMPDIR": "/t", "TEMP": "/t", "TMP": "/t", "TMUX": "/run/tmux", "EDITOR": "vi"}
    place = PORTABLE if portable else None
    confinement = Confinement(mode=mode, cwd=Path("/"), network=network, place=place)
    free = mode == "danger-full-access"
    expected = {"EDITOR": "vi"}
    # A portable folder has a /tmp of its own, in every mode.
    expected |= {} if portable else dict.fromkeys(("TMPDIR", "TEMP", "TMP"), "/t")
    expected |= {"TMUX": "/run/tmux"} if free else {"DENDRO_SANDBOX": mode}
    expected |= {} if free or network else {"CODEX_SANDBOX_NETWORK_DISABLED": "1"}
    assert command_environment(parent, EnvironmentPolicy(), confinement) == expected


@pytest.mark.parametrize("name", ["MY_KEY", "TMUX", "EDITOR"])
def test_variable_that_a_person_sets_is_given_whatever_it_looks_like_unless_others_alone_are_included(
    name: str,
) -> None:
    given = command_environment({}, EnvironmentPolicy(set={name: "1"}), FREE)
    assert given == {name: "1"}
    assert command_environment({}, EnvironmentPolicy(set={name: "1"}, include_only=("PATH",)), FREE) == {}
    assert command_environment({}, EnvironmentPolicy(set={name: "1"}, exclude=(name,)), FREE) == {name: "1"}
