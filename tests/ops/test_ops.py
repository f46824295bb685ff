"""Files for operators work: configurations load, units parse, process types exist, CI can fail."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import yaml
from honcho.environ import parse_procfile
from redis import AuthenticationError, Redis
from typer.testing import CliRunner

from orchestrator.broker.embedded import ServerBinary, installed_servers
from orchestrator.broker.rights import examine
from orchestrator.doctor import judge_server
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.settings.sources import known_paths, variable
from tests.servers import debian_redis, free_ports, required

REPOSITORY = Path(__file__).parent.parent.parent
UNITS = sorted((REPOSITORY / "ops/systemd").glob("*.service"))
SERVERS = list(installed_servers(os.environ["PATH"]))


# --- redis.conf


@pytest.fixture
def address() -> Iterator[Path]:
    # Not the test's own folder: its path can be longer than a socket's may be.
    with tempfile.TemporaryDirectory(prefix="dendro-ops-") as folder:
        yield Path(folder) / "redis.sock"


@pytest.mark.realredis
@pytest.mark.parametrize("server", SERVERS, ids=lambda server: str(server.version))
async def test_every_server_takes_the_configuration_and_the_doctor_is_content(
    server: ServerBinary, address: Path
) -> None:
    command: list[str | Path] = [
        server.path,
        REPOSITORY / "ops/redis.conf",
        "--port",
        "0",
        "--unixsocket",
        address,
    ]
    # Its last line says that it serves, so nobody has to ask again and again.
    with subprocess.Popen(
        [*command, "--dir", address.parent, "--logfile", ""], stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            assert running.stdout is not None
            lines: list[str] = []
            while not any("ready to accept connections" in line.lower() for line in lines[-1:]):
                lines.append(running.stdout.readline())
                assert lines[-1], f"the server ended: {''.join(lines)}"
            sources = SettingsSources(address.parent, {"DENDRO_REDIS_URL": f"unix://{address}"})
            settings = load_settings(sources)
            facts = await examine(settings.redis)
        finally:
            running.terminate()
    assert facts.settings is not None
    assert facts.settings["appendonly"] == "yes"
    assert facts.settings["stream-node-max-bytes"] == "2048"
    assert facts.settings["hash-max-ziplist-value"] == "512"
    assert {finding.level for finding in judge_server(facts, settings)} == {"ok"}


def test_server_of_the_configuration_listens_on_loopback_only() -> None:
    lines = (REPOSITORY / "ops/redis.conf").read_text().splitlines()
    assert "bind 127.0.0.1 -::1" in lines
    assert "protected-mode yes" in lines


# --- systemd


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_unit_has_what_its_kind_needs(unit: Path) -> None:
    parser = configparser.RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(unit)
    service = parser["Service"]
    assert service["User"] != "root"
    assert service["Restart"] == "always"
    assert int(service["TimeoutStopSec"]) > 10, "a drain takes 10 s and more"
    if "dendro " in service["ExecStart"]:
        assert service["ExecStart"].split()[1] in {"worker", "upkeep", "serve"}


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_understands_the_unit(unit: Path, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    # Programs that this machine lacks would be its only complaint.
    text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text())
    copy = tmp_path / unit.name.replace("@.", "@1.")
    copy.write_text(text)
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, check=False)
    complaints = [line for line in done.stderr.splitlines() if unit.name.partition("@")[0] in line]
    assert done.returncode == 0, done.stderr
    assert complaints == []


# --- compose.yaml


def test_containers_get_only_variables_that_exist() -> None:
    text = (REPOSITORY / "ops/compose.yaml").read_text()
    known = {variable(path) for path in known_paths()} | {
        "DENDRO_HOME",
        "DENDRO_REDIS_PASSWORD",
        "DENDRO_TOKEN",
    }
    assert set(re.findall(r"\bDENDRO_[A-Z_]+\b", text)) <= known


def test_compose_understands_its_file() -> None:
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode
    ):
        pytest.skip("docker compose is not installed")
    subprocess.run(
        ["docker", "compose", "-f", REPOSITORY / "ops/compose.yaml", "config", "--quiet"],
        env={**os.environ, "DENDRO_REDIS_PASSWORD": "x"},
        check=True,
    )


def _services() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((REPOSITORY / "ops/compose.yaml").read_text())["services"]
    return found


def test_no_port_but_the_gateways_is_published_and_that_on_loopback() -> None:
    published = {name: service["ports"] for name, service in _services().items() if "ports" in service}
    assert published == {"gateway": ["${GATEWAY_ADDRESS:-127.0.0.1}:4500:4500"]}


def test_gateway_of_the_containers_starts_only_when_asked_for() -> None:
    asked = {name for name, service in _services().items() if service.get("profiles")}
    assert asked == {"gateway"}, "without a certificate it could not start"


def test_gateway_of_the_containers_needs_a_certificate_and_holds_no_key_of_a_model() -> None:
    gateway = _services()["gateway"]
    assert gateway["command"] == ["serve", "--listen", "wss://0.0.0.0:4500"]
    files = [gateway["environment"][f"DENDRO_GATEWAY_TLS_{one}"] for one in ("CERTIFICATE", "KEY")]
    (mounted,) = [one for one in gateway["volumes"] if "GATEWAY_TLS" in one]
    assert {str(Path(file).parent) for file in files} == {mounted.split(":")[-2]}
    assert mounted.endswith(":ro")
    assert not any("API_KEY" in name for name in gateway["environment"])
    assert "gateway" in (REPOSITORY / "docs/operations.md").read_text().partition("profile gateway")[2]


def test_gateway_of_the_containers_reads_what_workers_write() -> None:
    services = _services()
    worker, gateway = services["worker"], services["gateway"]
    shared = set(worker["environment"]) & set(gateway["environment"])
    assert {"DENDRO_REDIS_URL", "DENDRO_POOL", "DENDRO_UPKEEP_ARCHIVE_URL"} <= shared
    assert all(worker["environment"][name] == gateway["environment"][name] for name in shared)
    assert set(worker["volumes"]) <= set(gateway["volumes"])


# --- Procfile


def _commands() -> dict[str, str]:
    processes = parse_procfile((REPOSITORY / "Procfile").read_text()).processes
    return dict(processes)


def test_procfile_names_the_process_types() -> None:
    commands = _commands()
    assert list(commands) == ["redis", "stub", "worker", "upkeep", "gateway"]
    subcommands = {"stub": "model-stub", "worker": "worker", "upkeep": "upkeep", "gateway": "serve"}
    for name, subcommand in subcommands.items():
        assert f"exec dendro {subcommand}" in commands[name]
    for command in commands.values():
        subprocess.run(["sh", "-n", "-c", command], check=True)


def test_commands_of_the_procfile_exist() -> None:
    main = pytest.importorskip("orchestrator.cli.main")
    for command in _commands().values():
        if found := re.search(r"exec dendro (\S+)(.*)", command):
            shown = CliRunner().invoke(main.app, [found[1], "--help"], env={"COLUMNS": "200"})
            assert shown.exit_code == 0
            for option in re.findall(r"--[a-z-]+", found[2]):
                assert option in shown.output


def test_processes_of_the_procfile_find_one_another() -> None:
    commands = _commands()
    (port,) = re.findall(r"--port (\d+)", commands["redis"])
    for name in ("worker", "upkeep", "gateway"):
        assert f"DENDRO_REDIS_URL=redis://:$(ops/redis-password)@127.0.0.1:{port}/0 " in commands[name]
    (stub,) = re.findall(r"--port (\d+)", commands["stub"])
    assert f"OPENAI_BASE_URL=http://127.0.0.1:{stub}/v1" in commands["worker"]


def _redis_password(home: Path) -> subprocess.Popen[str]:
    script, environ = REPOSITORY / "ops/redis-password", {"HOME": str(home), "PATH": os.environ["PATH"]}
    return subprocess.Popen([script], env=environ, stdout=subprocess.PIPE, text=True)


def test_password_of_the_procfile_is_made_once_for_this_user_alone(tmp_path: Path) -> None:
    passwords = {process.communicate()[0] for process in [_redis_password(tmp_path) for _ in range(4)]}
    (password,) = passwords
    assert re.fullmatch("[0-9a-f]{48}", password)
    folder = tmp_path / ".local/share/dendro/procfile"
    assert [path.name for path in folder.iterdir()] == ["password"]
    assert (folder / "password").stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def _checked(folder: Path, says: str) -> subprocess.CompletedProcess[str]:
    """The check before the Procfile's server starts, on a machine whose server says this of itself."""
    binary = folder / "bin/redis-server"
    binary.parent.mkdir(exist_ok=True)
    binary.write_text(f"#!/bin/sh\necho '{says}'\n")
    binary.chmod(0o755)
    environ = {"PATH": f"{binary.parent}:{os.environ['PATH']}"}
    command = [REPOSITORY / "ops/check-redis-version", folder / "data"]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False)


REDIS_62, REDIS_7, REDIS_10, VALKEY_8 = (
    "Redis server v=6.2.14 sha=00000000:0 malloc=libc bits=64 build=0",
    "Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=1",
    "Redis server v=10.0.1 sha=00000000:0",
    "Valkey server v=8.0.1 sha=00000000:0",
)


@pytest.mark.parametrize(
    ("before", "now", "opens"),
    [
        (REDIS_62, REDIS_62, True), (REDIS_62, REDIS_7, True), (REDIS_7, REDIS_10, True),
        (REDIS_7, VALKEY_8, True), (REDIS_7, REDIS_62, False), (REDIS_10, REDIS_7, False),
        (VALKEY_8, REDIS_10, False), (REDIS_10, VALKEY_8, False),
    ],
)  # fmt: skip
def test_server_of_the_procfile_is_not_started_on_data_that_it_cannot_open(
    tmp_path: Path, before: str, now: str, opens: bool
) -> None:
    (tmp_path / "data").mkdir()
    assert _checked(tmp_path, before).returncode == 0
    again = _checked(tmp_path, now)
    assert (again.returncode == 0) == opens, again.stderr
    if not opens:
        assert "cannot open" in again.stderr
        assert f"move {tmp_path / 'data'} away" in again.stderr
        assert _checked(tmp_path, before).returncode == 0, "the refused one is not recorded"


def test_server_of_the_procfile_is_not_started_on_newer_data_without_a_record(tmp_path: Path) -> None:
    (tmp_path / "data/appendonlydir").mkdir(parents=True)
    assert _checked(tmp_path, REDIS_62).returncode == 1
    assert _checked(tmp_path, REDIS_7).returncode == 0


def test_server_of_the_procfile_lets_nobody_in_without_the_password(tmp_path: Path) -> None:
    required(debian_redis(), "redis-server")
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    command = _commands()["redis"].replace("--port 6380", f"--port {port}")
    environ = {"HOME": str(tmp_path), "PATH": os.environ["PATH"]}
    server = subprocess.Popen(
        ["sh", "-c", command], cwd=REPOSITORY, env=environ, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        assert any("Ready to accept connections" in line for line in server.stdout)
        password = _redis_password(tmp_path).communicate()[0]
        with Redis(port=port, password=password) as client:
            assert client.ping()
            assert client.config_get("appendonly") == {"appendonly": "yes"}, "by ops/redis.conf"
        with Redis(port=port) as stranger, pytest.raises(AuthenticationError):
            stranger.ping()
        cmdline = Path(f"/proc/{server.pid}/cmdline").read_text()
        assert "redis-server" in cmdline
        assert password not in cmdline, "every user can read it there"
    finally:
        server.terminate()
        server.communicate(timeout=20)


def _answers_ready(address: Path) -> bool:
    with closing(socket.socket(socket.AF_UNIX)) as client:
        client.settimeout(20)
        client.connect(str(address))
        client.sendall(b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        return client.recv(4096).startswith(b"HTTP/1.1 200")


@pytest.mark.realredis
def test_gateway_of_the_procfile_answers_its_user_and_keeps_the_first_token(
    tmp_path: Path, address: Path
) -> None:
    required(debian_redis(), "redis-server")
    (port,) = free_ports(1)
    home = address.parent
    own = home / ".local/share/dendro/procfile"
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # Without the environment's programs for the server: one of them may be another redis-server.
    environ = {"HOME": str(home), "PATH": os.environ["PATH"]}
    with ExitStack() as stack:
        for name, ready in (("redis", "Ready to accept connections"), ("gateway", "listening on")):
            if name == "gateway":
                environ["PATH"] = programs
            process = subprocess.Popen(
                ["sh", "-c", _commands()[name].replace("6380", str(port))],
                cwd=REPOSITORY,
                env=environ,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            stack.callback(process.communicate, timeout=20)
            stack.callback(process.terminate)
            assert process.stdout is not None
            assert any(ready in line for line in process.stdout), f"{name} ended"
        # It looks at Redis itself, which may take longer than a look may on a machine at its limit.
        assert any(_answers_ready(own / "gateway.sock") for _ in range(5))
        password = (own / "password").read_text()
        environ["DENDRO_REDIS_URL"] = f"redis://:{password}@127.0.0.1:{port}/0"
        made = subprocess.run(
            ["dendro", "token", "new", "me", "--scope", "approve"],
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        )
        assert made.stdout.startswith("dendro_")


# --- .ci/run


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A repository with nothing but the script, and tools that only say what they were asked."""
    folder = tmp_path / "clone"
    (folder / ".ci").mkdir(parents=True)
    (folder / "bin").mkdir()
    shutil.copy(REPOSITORY / ".ci/run", folder / ".ci/run")
    for tool in ("redis-server", "bwrap", "git", "openssl", "luacheck"):
        _tool(folder, tool, "exit 0")
    for tool in ("bash", "dirname", "env", "id"):
        (folder / "bin" / tool).symlink_to(shutil.which(tool) or tool)
    _tool(folder, "make", 'echo "make $1 CI=$CI in $PWD"; [ "$1" != "$BROKEN" ]')
    return folder


def _tool(folder: Path, name: str, script: str) -> None:
    tool = folder / "bin" / name
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)


def _run(clone: Path, broken: str = "") -> subprocess.CompletedProcess[str]:
    environ = {"PATH": str(clone / "bin"), "BROKEN": broken}
    return subprocess.run(
        [clone / ".ci/run"], cwd="/", env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def test_ci_runs_every_part_in_the_repository_and_tells_its_seconds(clone: Path) -> None:
    done = _run(clone)
    assert done.returncode == 0, done.stdout + done.stderr
    for target in ("setup", "check", "test"):
        assert f"make {target} CI=true in {clone}" in done.stdout
        assert re.search(rf"(?m)^{target}\s+\d+ s of +\d+ s  ok$", done.stdout)


@pytest.mark.parametrize("broken", ["setup", "check", "test"])
def test_ci_fails_when_a_part_fails(clone: Path, broken: str) -> None:
    done = _run(clone, broken)
    assert done.returncode == 1
    assert f"failed: {broken}" in done.stdout
    assert ("make test" in done.stdout) is (broken != "setup")


def test_ci_installs_what_is_missing_or_fails(clone: Path) -> None:
    (clone / "bin/redis-server").unlink()
    assert _run(clone).returncode == 1
    _tool(clone, "apt-get", 'echo "apt-get $*"')
    _tool(clone, "sudo", 'shift; exec "$@"')
    done = _run(clone)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("apt-get update") == 1
    assert re.search(r"apt-get install .* redis-server$", done.stdout, re.M)


def test_budgets_of_ci_fit_into_a_quarter_of_an_hour() -> None:
    script = (REPOSITORY / ".ci/run").read_text()
    budgets = [int(seconds) for seconds in re.findall(r"part \w+ (\d+) ", script)]
    assert len(budgets) == 5
    assert sum(budgets) <= 900
    assert (REPOSITORY / ".ci/run").stat().st_mode & stat.S_IXUSR


def test_files_name_only_places_that_every_machine_has() -> None:
    allowed = [
        "bin",
        "data",
        "dev",
        "etc",
        "healthz",
        "opt/dendro",
        "readyz",
        "spec/replicas",  # of an object of Kubernetes
        "spec/template/spec/containers",
        "src",
        "tmp",
        "usr",
        "var/lib/dendro",
        "var/lib/apt",
        "var/lib/dbus",
        "var/lib/dendro-redis",
        "workspaces",
    ]
    for file in (REPOSITORY / ".ci/run", REPOSITORY / "Procfile", *(REPOSITORY / "ops").rglob("*")):
        if file.is_file() and file.suffix != ".md":
            places = re.findall(r"(?<![\w.:/}\"$])/([a-z][\w./-]*)", file.read_text())
            for place in places:
                assert any(place == root or place.startswith(f"{root}/") for root in allowed), (file, place)


# --- Documents


@pytest.mark.parametrize(
    "page",
    ["docs/operations.md", "docs/providers.md", "docs/workspaces.md", "docs/fleet.md", "ops/runbook.md"],
)
def test_pages_name_only_settings_files_and_commands_that_exist(page: str) -> None:
    text = (REPOSITORY / page).read_text()
    known = {variable(path) for path in known_paths()} | {
        "DENDRO_HOME",
        "DENDRO_REDIS_PASSWORD",
        "DENDRO_TOKEN",
    }
    assert set(re.findall(r"\bDENDRO_[A-Z_]+\b", text)) <= known
    keys = {".".join(path) for path in known_paths()}
    tables = {key.partition(".")[0] for key in keys if "." in key}
    mentioned = {f"{table}.{key}" for table, key in re.findall(r"`([a-z_]+)\.([a-z_]+)(?: = [^`]*)?`", text)}
    assert {key for key in mentioned if key.partition(".")[0] in tables} <= keys
    for target in re.findall(r"\]\((?!http)([^)#]+)", text):
        assert (REPOSITORY / page).parent.joinpath(target).exists(), target


def test_python_of_the_image_is_one_that_the_package_supports() -> None:
    version = re.search(r"FROM python:3\.(\d+)", (REPOSITORY / "ops/Dockerfile").read_text())
    assert version is not None
    assert int(version[1]) >= 11
    assert sys.version_info >= (3, 11)
