"""The window's modules of other authors: kept as they were published, each with its licence beside it."""

from __future__ import annotations

import gzip
import hashlib
import json
import re

import pytest

from tests.window_vendor import AXE_FOLDER, AXE_SHA256, CHARACTERS, MANIFEST, PARTS, SOURCES, VENDOR

LICENCES = {"MIT", "Apache-2.0", "BSD-3-Clause", "OFL-1.1"}


def _packages() -> list[dict[str, object]]:
    packages: list[dict[str, object]] = json.loads(MANIFEST.read_text())["packages"]
    return packages


def _files() -> dict[str, str]:
    return {name: one["sha256"] for package in _packages() for name, one in package["files"].items()}  # type: ignore[attr-defined]


def test_each_vendored_file_is_unchanged_since_it_was_fetched() -> None:
    there = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in VENDOR.iterdir()
        if file != MANIFEST
    }
    assert there == _files()


def test_the_manifest_says_what_the_tool_would_fetch() -> None:
    assert [f"{one['name']}@{one['version']}" for one in _packages()] == list(SOURCES)
    assert {str(one["licence"]) for one in _packages()} == LICENCES


def test_each_first_part_of_a_font_is_as_it_was_cut_and_the_style_sheet_names_its_characters() -> None:
    parts = json.loads(MANIFEST.read_text())["parts"]
    there = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in PARTS.iterdir()}
    assert there == {name: one["sha256"] for name, one in parts.items()}
    assert {one["of"] for one in parts.values()} == {file.name for file in VENDOR.glob("*.woff2")}
    styles = (PARTS.parent / "window.css").read_text()
    for name in parts:
        face = re.search(rf"@font-face {{[^}}]*url\(fonts/{name}\)[^}}]*unicode-range: ([^;]*);", styles)
        assert face is not None
        assert face[1].replace(" ", "") == CHARACTERS, name


def test_axe_is_unchanged_since_it_was_fetched_and_has_its_licence() -> None:
    assert hashlib.sha256((AXE_FOLDER / "axe.min.js").read_bytes()).hexdigest() == AXE_SHA256
    assert "Mozilla Public License" in (AXE_FOLDER / "LICENSE").read_text()


def test_each_vendored_package_has_its_licence_beside_it() -> None:
    for package in _packages():
        licence = next(name for name in package["files"] if name.endswith(".LICENSE"))  # type: ignore[attr-defined]
        assert (VENDOR / licence).read_text().strip(), package["name"]


def test_what_a_page_loads_at_its_start_is_small() -> None:
    assets = VENDOR.parent / "assets"
    page = (assets / "index.html").read_text()
    imports = json.loads(re.search(r'importmap">(.*?)</script>', page, re.S)[1])["imports"]  # type: ignore[index]
    found, left = {assets / "index.html", assets / "window.css", assets / "icon.svg"}, [assets / "main.js"]
    while left:
        script = left.pop()
        found.add(script)
        if script.parent == assets:
            named = re.findall(r'^(?:import|export) .*?from "([^"]+)"', script.read_text(), re.M)
            files = (
                VENDOR / imports[name].split("/")[-1] if name in imports else assets / name for name in named
            )
            left += [file.resolve() for file in files if file.resolve() not in found]
    sent = [len(gzip.compress(file.read_bytes(), 9)) for file in found]
    fonts = [file.stat().st_size for file in PARTS.iterdir()]
    # As a browser counts it: 300 bytes for the head of each answer.
    assert sum(sent) + sum(fonts) + 300 * (len(sent) + len(fonts)) <= 100_000
    assert not {"tree.js", "fleet.js", "markdown-it.mjs"} & {file.name for file in found}


def test_the_page_names_vendored_modules_alone_and_all_of_them() -> None:
    assets = VENDOR.parent / "assets"
    page = (assets / "index.html").read_text()
    imports = json.loads(re.search(r'importmap">(.*?)</script>', page, re.S)[1])["imports"]  # type: ignore[index]
    modules = {f"{{{{assets}}}}/vendor/{name}" for name in _files() if name.endswith(".mjs")}
    assert set(imports.values()) == modules
    for script in assets.glob("*.js"):
        named = {
            first or second
            for first, second in re.findall(
                r'^import .*?from "([^"]+)"|\bimport\("([^"]+)"\)', script.read_text(), re.M
            )
        }
        assert {name for name in named if not name.startswith("./")} <= set(imports), script.name


@pytest.mark.parametrize(
    "newer",
    [
        r"^\s*&|[;{]\s*&",
        r"@(container|layer|scope|starting-style|property)\b",
        r"\bpopover\b|anchor-name|field-sizing|interpolate-size|scrollbar-gutter",
        r"^(const \w+ = )?await ",
        r"Promise\.(withResolvers|try)|\b(Object|Map)\.groupBy|\.to(Sorted|Reversed|Spliced)\(|Array\.fromAsync",
        r"(?<!-webkit-)\buser-select: none(?<!-webkit-user-select: none; user-select: none)",
    ],
)
def test_the_page_needs_no_more_of_a_browser_than_its_page_of_docs_says(newer: str) -> None:
    for file in (VENDOR.parent / "assets").iterdir():
        if file.suffix in (".js", ".css", ".html"):
            found = re.search(newer, file.read_text(), re.M)
            assert found is None, f"{file.name}: {found and found[0]}"
