"""Providers behind a proxy, and under a private authority: reached, or told why not."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from orchestrator.config_keys import ProviderSettings, Secret
from orchestrator.model.connections import InvalidProvider, verification
from orchestrator.model.model_client import HttpBudget, ModelClient, ModelClients
from orchestrator.model.prompt import Completed
from orchestrator.model.provider_errors import FatalModelError, RetryableModelError
from orchestrator.stub import Scenario, StubConfig, running
from tests.certs import make_authority, make_certificate
from tests.model.proxy import proxy, tls_end
from tests.model.stubbed_client import prompt, provider

OUTSIDE = "https://model.example/v1"
USER = "http://agent:pa%20ss@"
AS_USER = "Basic YWdlbnQ6cGEgc3M="


@pytest.fixture(scope="module")
def certs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates that a company has signed for the provider's name, and for its proxy's address."""
    folder = tmp_path_factory.mktemp("certs")
    make_authority(folder)
    make_certificate(folder, "model", "DNS:model.example")
    make_certificate(folder, "proxy")
    return folder


def identity(certs: Path, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certs / f"{name}.pem", certs / f"{name}.key")
    return context


@asynccontextmanager
async def model() -> AsyncIterator[tuple[str, int]]:
    """Where a model is served, without TLS."""
    async with running(StubConfig(Scenario.parse([{"items": [{"text": "Hello."}]}]))) as stub:
        parts = urlsplit(stub.base_url)
        yield str(parts.hostname), int(parts.port or 0)


async def completes(base_url: str, **options: Any) -> bool:
    """Whether a request through all that comes to its end."""
    table = provider(base_url, "far", request_max_retries=0, api_key=Secret("sk-secret"), **options)
    async with ModelClient(table) as client:
        events = [event async for event in client.stream(prompt(), HttpBudget(0))]
    return isinstance(events[-1], Completed)


async def test_a_provider_under_a_private_authority_is_reached_through_a_proxy_that_asks_who_it_is(
    certs: Path,
) -> None:
    async with (
        model() as place,
        tls_end(place, identity(certs, "model")) as outside,
        proxy(outside, AS_USER) as gate,
    ):
        assert await completes(OUTSIDE, proxy=USER + gate.address, ca_file=certs / "ca.pem")
        assert gate.asked == ["CONNECT model.example:443 HTTP/1.1"]


async def test_a_provider_without_tls_is_asked_for_at_the_proxy() -> None:
    async with model() as place, proxy(place) as gate:
        assert await completes("http://model.example/v1", proxy=f"http://{gate.address}")
        assert gate.asked == ["POST http://model.example/v1/responses HTTP/1.1"]


async def test_a_proxy_that_is_reached_by_tls_is_believed_by_the_same_authority(certs: Path) -> None:
    async with (
        model() as place,
        tls_end(place, identity(certs, "model")) as outside,
        proxy(outside, context=identity(certs, "proxy")) as gate,
    ):
        assert await completes(OUTSIDE, proxy=f"https://{gate.address}", ca_file=certs / "ca.pem")


async def test_what_a_proxy_refuses_is_told_without_its_password() -> None:
    async with proxy(("127.0.0.1", 1), "Basic other") as gate:
        with pytest.raises(RetryableModelError) as refused:
            await completes(OUTSIDE, proxy=USER + gate.address)
    assert f"through the proxy {gate.address}: 407" in refused.value.message
    assert "pa%20ss" not in refused.value.message


async def test_a_provider_that_nobody_vouches_for_is_not_believed(certs: Path) -> None:
    async with model() as place, tls_end(place, identity(certs, "model")) as outside, proxy(outside) as gate:
        with pytest.raises(RetryableModelError, match="CERTIFICATE_VERIFY_FAILED"):
            await completes(OUTSIDE, proxy=f"http://{gate.address}")


@pytest.mark.parametrize(
    "url",
    [
        "socks5://user:hidden@127.0.0.1:1",
        "127.0.0.1:1",
        "http://",
        "http://user:hidden@proxy:99999",
        "http://user:hidden@proxy:0",
        "http://user%3Ax:hidden@proxy:1",
        "http://user:hidden@pro\txy:1",
    ],
)
async def test_a_proxy_of_another_kind_is_refused_before_any_request(url: str) -> None:
    known = {name: ProviderSettings(id=name, base_url=OUTSIDE, proxy=url) for name in ("far", "unused")}
    near = {"near": ProviderSettings(id="near", base_url=OUTSIDE)}
    with pytest.raises(InvalidProvider, match="far: its proxy must be an http:// or https:// URL") as refused:
        ModelClients(known, chosen="far")
    assert "hidden" not in str(refused.value)
    # The environment names one for each provider: what nobody uses keeps no worker from its start.
    clients = ModelClients(known | near, chosen="near")
    with pytest.raises(
        FatalModelError, match="unused: its proxy must be an http:// or https:// URL"
    ) as ended:
        [event async for event in clients.stream("unused", prompt(), HttpBudget(0))]
    assert "hidden" not in str(ended.value)
    assert not ended.value.served


@pytest.mark.parametrize("content", [None, "nothing of a certificate"])
async def test_authorities_that_cannot_be_read_end_the_request_in_words(
    tmp_path: Path, content: str | None
) -> None:
    file = tmp_path / "ca.pem"
    if content is not None:
        file.write_text(content)
    table = ProviderSettings(id="far", base_url=OUTSIDE, ca_file=file)
    clients = ModelClients({"far": table})
    with pytest.raises(FatalModelError, match=r"far: the authorities in .*/ca\.pem cannot be read") as ended:
        [event async for event in clients.stream("far", prompt(), HttpBudget(0))]
    assert not ended.value.served
    with pytest.raises(InvalidProvider, match="correct ca_file"):
        verification(table)
