"""The same attacks as a user without privileges, which most users are and a root in CI is not."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOBODY = 65534
RECENT_ENOUGH = "import sys; sys.exit(sys.version_info < (3, 11))"

pytestmark = [pytest.mark.sandbox, pytest.mark.slow]


def as_nobody(*argv: str) -> subprocess.CompletedProcess[str]:
    # `env` between them: setpriv itself still looks its program up with root's rights.
    identity = ("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "env")
    return subprocess.run(
        [*identity, *argv], capture_output=True, text=True, cwd="/", env={"PATH": os.defpath}
    )


def interpreter_for_nobody() -> str:
    for candidate in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(candidate).exists() and as_nobody(candidate, "-c", RECENT_ENOUGH).returncode == 0:
            return candidate
    pytest.skip("no Python 3.11 that another user may run")


@pytest.mark.skipif(os.geteuid() != 0, reason="the other tests run without privileges already")
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_no_command_of_an_unprivileged_user_breaks_out() -> None:
    python = interpreter_for_nobody()
    if as_nobody("ls", str(ROOT)).returncode != 0:
        pytest.skip("the checkout is out of another user's reach")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        os.chown(folder, NOBODY, NOBODY)
        done = as_nobody(python, str(ROOT / "tests/sandbox/unprivileged.py"), str(ROOT), folder)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    if not any(line.startswith("mechanism") for line in lines):
        pytest.skip(f"no mechanism works for another user: {lines}")
    assert [line for line in lines if line.startswith("harm")] == []
