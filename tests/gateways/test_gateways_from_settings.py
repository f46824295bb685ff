"""A gateway as its settings say: names and origins, each holder's share, and the links to its window."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from orchestrator.gateways.wires.addresses import parse_address
from orchestrator.gateways.wires.listeners import Doors
from orchestrator.settings import Settings, SettingsSources, load_settings
from orchestrator.wiring.gateway import Entrance, _url, gateway, http_rules


def settings(folder: Path, *overrides: str) -> Settings:
    return load_settings(SettingsSources(folder, {"HOME": str(folder)}, overrides=overrides))


def test_names_and_origins_are_those_of_the_settings_however_they_are_written(tmp_path: Path) -> None:
    rules = http_rules(
        settings(
            tmp_path,
            'gateway.hosts=["Dendro.Example", "other.example"]',
            'gateway.allowed_origins=["https://Dendro.Example/", "https://other.example"]',
        )
    )
    assert rules.hosts == {"dendro.example", "other.example"}
    assert rules.origins == {"https://dendro.example", "https://other.example"}
    plain = http_rules(settings(tmp_path))
    assert (plain.hosts, plain.origins, plain.any_host) == (frozenset(), frozenset(), False)


@pytest.mark.parametrize(
    ("listen", "hosts", "url"),
    [
        ("http://127.0.0.1:4600", (), "http://127.0.0.1:4600"),
        ("http://127.0.0.1:4600", ("dendro.example",), "http://127.0.0.1:4600"),
        ("https://10.0.0.2:443", ("dendro.example",), "https://10.0.0.2:443"),
        ("https://0.0.0.0:443", (), "https://127.0.0.1:443"),
        ("https://[::]:443", (), "https://[::1]:443"),
        ("https://0.0.0.0:443", ("dendro.example", "second.example"), "https://dendro.example:443"),
        ("https://[::]:443", ("dendro.example",), "https://dendro.example:443"),
    ],
)
def test_link_to_a_window_names_an_address_that_leads_to_it_under_a_name_that_it_knows(
    listen: str, hosts: tuple[str, ...], url: str, tmp_path: Path
) -> None:
    names = ", ".join(f'"{host}"' for host in hosts)
    assert _url(settings(tmp_path, f"gateway.hosts=[{names}]"), parse_address(listen)) == url


@pytest.mark.parametrize(("most", "half"), [(1, 1), (2, 1), (3, 1), (4, 2), (9, 4), (4096, 2048)])
async def test_holder_of_a_token_has_half_of_the_connections_at_all_addresses_together(
    most: int, half: int, tmp_path: Path
) -> None:
    async def answers(*_: Any) -> None: ...

    broker = SimpleNamespace(requests=None, command=answers)
    found = SimpleNamespace(settings=settings(tmp_path, f"gateway.max_connections={most}"), broker=broker)
    entrances: list[Entrance] = []

    def doors(entrance: Entrance) -> Doors:
        entrances.append(entrance)
        return Doors()

    listen = [parse_address(text) for text in ("ws://127.0.0.1:0", f"unix://{tmp_path}/g.sock")]
    async with gateway(cast(Any, found), listen, doors) as addresses:
        assert len(addresses) == 2
    (entrance,) = entrances
    assert entrance.watch._most == half
