"""Fetches the window's vendored modules again: `make vendor`.

They come from the npm registry as published, by `npm pack`, and are kept unchanged, so that a checkout
and a wheel need neither npm nor a network. The manifest beside them has version, licence and SHA-256 of each.

Of the fonts a page gets a part at first: the characters of English and of its own words, in the weights that
it uses, cut by fontTools. A page that shows any other character loads the whole font.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

VENDOR = Path(__file__).parents[1] / "orchestrator" / "gateways" / "window" / "vendor"
MANIFEST = VENDOR / "MANIFEST.json"
SOURCES = {
    "preact@11.2.0": {"preact.mjs": "dist/preact.mjs", "preact-hooks.mjs": "hooks/dist/hooks.mjs"},
    "htm@3.1.1": {"htm.mjs": "dist/htm.mjs"},
    "@preact/signals@2.11.4": {"preact-signals.mjs": "dist/signals.mjs"},
    "@preact/signals-core@1.14.5": {"preact-signals-core.mjs": "dist/signals-core.mjs"},
    "markdown-it@15.0.3": {"markdown-it.mjs": "dist/browser/markdown-it.esm.min.mjs"},
    "tinykeys@4.0.0": {"tinykeys.mjs": "dist/tinykeys.mjs"},
    "@leeoniya/ufuzzy@1.0.19": {"ufuzzy.mjs": "dist/uFuzzy.mjs"},
    "uplot@1.6.32": {"uplot.mjs": "dist/uPlot.esm.js", "uplot.css": "dist/uPlot.min.css"},
    "diff@9.0.0": {"diff.mjs": "dist/diff.min.js"},
    "@fontsource-variable/geist@5.3.0": {"geist.woff2": "files/geist-latin-wght-normal.woff2"},
    "@fontsource-variable/geist-mono@5.3.0": {"geist-mono.woff2": "files/geist-mono-latin-wght-normal.woff2"},
}
"""The files that are kept of each package, by the names under which they are kept."""
PARTS = VENDOR.parent / "assets" / "fonts"
TOOLS = ("fonttools==4.68.0", "brotli==1.2.1")
CHARACTERS = (
    "U+20-7E,U+A0,U+AB,U+B0,U+B1,U+B7,U+BB,U+D7,U+2013,U+2014,U+2018,U+2019,U+201C,U+201D,U+2022,U+2026,"
    "U+2039,U+203A,U+2190-2193,U+2197,U+2212"
)
"""Those of the fonts' first parts, as the style sheet names them (`unicode-range`)."""
FEATURES = "kern,liga,calt,tnum,ccmp,locl,mark"
WEIGHTS = "wght=400:700"


AXE = "axe-core@4.14.1"
"""The checker of the pages in the browser tests (MPL-2.0); it is no part of the package."""
AXE_FOLDER = Path(__file__).parent / "window" / "browser" / "axe"
AXE_SHA256 = "29348999450cdf2849a8e70b7912fc2da85a849da39c0d0d5394f51d4a9ed95c"


def fetch(folder: Path = VENDOR) -> None:
    """Writes all files and the manifest."""
    _package(AXE, {"axe.min.js": "axe.min.js"}, AXE_FOLDER, "LICENSE")
    packages = [_package(name, files, folder) for name, files in SOURCES.items()]
    told = {"packages": packages, "parts": _parts(folder)}
    (folder / MANIFEST.name).write_text(json.dumps(told, indent=2) + "\n")


def _parts(folder: Path) -> dict[str, Any]:
    """Cuts the first parts of the fonts; the tools for that live as long as this does."""
    PARTS.mkdir(exist_ok=True)
    found = {}
    with tempfile.TemporaryDirectory() as place:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        subprocess.run([*pip, "--target", place, *TOOLS], check=True)
        tool, environ = [sys.executable, "-m", "fontTools"], {**os.environ, "PYTHONPATH": place}
        for font in sorted(folder.glob("*.woff2")):
            few, part = Path(place) / font.name, PARTS / font.name
            wanted = [f"--unicodes={CHARACTERS}", f"--layout-features={FEATURES}", "--flavor=woff2"]
            for words in (
                ["subset", str(font), *wanted, f"--output-file={few}"],
                ["varLib.instancer", "-q", "--no-recalc-timestamp", str(few), WEIGHTS, "-o", str(part)],
            ):
                subprocess.run([*tool, *words], env=environ, check=True)
            found[part.name] = {"of": font.name, "sha256": hashlib.sha256(part.read_bytes()).hexdigest()}
    return found


def _package(name: str, files: dict[str, str], folder: Path, licence: str = "") -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        packed = subprocess.run(
            ["npm", "pack", "--silent", name], cwd=place, check=True, capture_output=True, text=True
        ).stdout.split()[-1]
        with tarfile.open(Path(place) / packed) as archive:
            about = json.loads(_member(archive, "package.json"))
            kept = {**files, licence or _licence_name(files): "LICENSE"}
            written = dict(_written(archive, kept, folder))
    return {"name": about["name"], "version": about["version"], "licence": about["license"], "files": written}


def _written(archive: tarfile.TarFile, kept: dict[str, str], folder: Path) -> Iterator[tuple[str, Any]]:
    for here, there in kept.items():
        content = _member(archive, there)
        (folder / here).write_bytes(content)
        yield here, {"of": there, "sha256": hashlib.sha256(content).hexdigest()}


def _member(archive: tarfile.TarFile, name: str) -> bytes:
    file = archive.extractfile(f"package/{name}")
    if file is None:
        raise FileNotFoundError(name)
    return file.read()


def _licence_name(files: dict[str, str]) -> str:
    return f"{Path(next(iter(files))).stem}.LICENSE"


if __name__ == "__main__":
    fetch()
