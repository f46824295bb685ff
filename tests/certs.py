"""Private authorities and what they sign, made by `openssl` as operators make them.

From 3.13 on Python believes no certificate that does not say what it is for and by whom it was signed.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.servers import required

_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


def make_authority(folder: Path) -> None:
    """`ca.pem` and `ca.key`."""
    name = ("-subj", "/CN=authority", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _openssl(folder, "req", "-x509", *_KEY, "-keyout", "ca.key", "-out", "ca.pem", *name)


def make_certificate(folder: Path, name: str, whose: str = "IP:127.0.0.1") -> None:
    """`<name>.pem` and `<name>.key`, signed by the folder's authority."""
    _openssl(folder, "req", *_KEY, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    (folder / f"{name}.cnf").write_text(
        f"subjectAltName={whose}\nbasicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n"
        "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
    )
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.cnf")
    _openssl(folder, "x509", "-req", "-in", f"{name}.csr", *signed, "-out", f"{name}.pem")


def _openssl(folder: Path, *args: str) -> None:
    found = shutil.which("openssl")
    binary = required(Path(found) if found else None, "openssl")
    subprocess.run([str(binary), *args], cwd=folder, check=True, capture_output=True)
