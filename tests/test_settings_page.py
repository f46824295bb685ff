"""Texts about settings: each setting is known everywhere, documented, and read in one place."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from orchestrator import config_keys
from orchestrator.config_keys import McpServerSettings, ModelPrice, ProviderSettings, Table, settings_of
from orchestrator.model.model_client import ModelClient
from orchestrator.settings import SettingsSources, load_settings
from orchestrator.settings.sources import KEYED_RECORDS
from tests.configuration_page import configuration_page, field_texts

REPOSITORY = Path(__file__).parent.parent


def test_every_record_that_can_be_set_is_known_by_file_environment_and_page() -> None:
    assert set(Table.__subclasses__()) == {*KEYED_RECORDS, ProviderSettings, ModelPrice, McpServerSettings}
    assert {record.__name__ for record in Table.__subclasses__()} <= set(config_keys.__all__)


def test_every_setting_is_documented_under_its_field() -> None:
    records: list[type[Table]] = [*KEYED_RECORDS, ProviderSettings, ModelPrice]
    for record in records:
        texts = field_texts(record)
        for name, _ in settings_of(record):
            assert texts.get(name, "").endswith("."), f"{record.__name__}.{name}"


def test_configuration_page_is_up_to_date() -> None:
    page = (REPOSITORY / "docs/configuration.md").read_text()
    assert page == configuration_page(), "run: python -m tests.configuration_page > docs/configuration.md"


def test_settings_that_texts_of_the_program_name_are_there() -> None:
    keys = {spec.key or name for record in KEYED_RECORDS for name, spec in settings_of(record)}
    sections = {key.partition(".")[0] for key in keys if "." in key} | {"archive"}
    named = re.compile(rf"`((?:{'|'.join(sorted(sections))})\.[a-z_]+)`")
    for package in ("orchestrator", "workers"):
        for file in (REPOSITORY / package).rglob("*.py"):
            unknown = {*named.findall(file.read_text())} - keys
            assert unknown <= {"chain.mac"}, file


def test_page_writes_figures_in_full() -> None:
    assert "default: `8388608` · `DENDRO_WIRE_LINE_LIMIT_BYTES`" in configuration_page()
    assert "default: `300000`" in configuration_page()


def test_every_provider_that_the_page_about_them_shows_can_be_asked(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/providers.md").read_text()
    examples = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(examples) == 2
    for number, example in enumerate(examples):
        home = tmp_path / str(number)
        home.mkdir()
        (home / "dendro.toml").write_text(example)
        environ = {"HOME": str(home), "DENDRO_HOME": str(home), "PATH": "/usr/bin:/bin"}
        settings = load_settings(SettingsSources(tmp_path, environ))
        assert not settings.warnings
        client = ModelClient(settings.model.providers[settings.model.provider])
        assert client.provider.wire_api == "chat"


def test_page_is_printed_by_the_module() -> None:
    command = [sys.executable, "-m", "tests.configuration_page"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed == configuration_page()


def test_only_settings_read_the_environment() -> None:
    reading = re.compile(r"\bos\.(environ|getenv)\b")
    readers = {
        str(file.relative_to(REPOSITORY))
        for package in ("orchestrator", "workers")
        for file in (REPOSITORY / package).rglob("*.py")
        if reading.search(file.read_text())
    }
    assert readers <= {
        "orchestrator/home.py",  # before there are settings
        "orchestrator/settings/sources.py",
        "orchestrator/settings/__init__.py",
        "orchestrator/sandbox/trusted_files.py",  # finds programs before there are settings, and in helpers
        "orchestrator/cli/serve.py",  # sets where the standard library looks for a browser
        "orchestrator/sandbox/git.py",  # the person's own git configuration and name
    }
