"""The health of a real process over its admin port: good, bad while a store is away, and good again."""

from __future__ import annotations

import asyncio
import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from streamhouse import StreamHouse
from streamhouse.app.front_ends import registered_http
from streamhouse.app.health import ProcessHealth
from streamhouse.chaos.fleet.proxy import Proxy, ProxyMode
from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import BackPressureRejected, ConfigError
from streamhouse.core.settings import resolve
from streamhouse.gateway.admin.health import Readiness
from streamhouse.log.reader.damage import HEALTH
from streamhouse.testing.services import PostgresService, S3Service

WAIT_S = 120
ADMIN: dict[str, Any] = {"admin_enabled": True, "admin_listen": "127.0.0.1:0"}


async def get(sh: StreamHouse, path: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        connection = http.client.HTTPConnection(sh.admin_addresses[0], timeout=WAIT_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    return await asyncio.to_thread(ask)


async def until(sh: StreamHouse, status: int) -> dict[str, Any]:
    """Ask for the readiness until it has this status."""
    async with asyncio.timeout(WAIT_S):
        while (found := await get(sh, "/readyz"))[0] != status:  # noqa: ASYNC110 -- as an orchestrator does
            await asyncio.sleep(0.2)
    said: dict[str, Any] = json.loads(found[1])
    return said


@pytest.fixture
def postgres_behind(postgres_service: PostgresService, postgres_database: str) -> Iterator[tuple[Proxy, str]]:
    """A proxy, and the URL of an empty database through it."""
    proxy = Proxy(postgres_service.port)
    yield proxy, postgres_database.replace(f":{postgres_service.port}/", f":{proxy.port}/")
    proxy.stop()


@pytest.fixture
def s3_behind(s3_service: S3Service, s3_bucket: str) -> Iterator[tuple[Proxy, dict[str, Any]]]:
    proxy = Proxy(urlsplit(s3_service.endpoint_url).port or 0)
    yield (
        proxy,
        {
            "store_url": f"s3://{s3_bucket}",
            "store_endpoint_url": f"http://127.0.0.1:{proxy.port}",
            "store_access_key_id": s3_service.access_key,
            "store_secret_access_key": s3_service.secret_key,
            "store_region": s3_service.region,
        },
    )
    proxy.stop()


async def test_every_path_of_a_real_agent_answers(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), agent_id="a-1", **ADMIN) as sh:
        assert await get(sh, "/livez") == (200, '{\n  "state": "alive"\n}\n')
        said = await until(sh, 200)
        assert said == {"state": "ready", "process": "agent a-1", "problems": []}
        status, text = await get(sh, "/metrics")
        assert status == 200
        assert "\nstreamhouse_ready 1.0\n" in text
        (agent,) = await sh.stores.metadata.list_agents()
        assert agent.listeners == {"http": sh.admin_addresses[0]}


async def test_without_being_asked_for_there_is_no_admin_port(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        assert sh.admin_addresses == []
        assert sh.observed.health.known().state is Readiness.READY
        assert b"streamhouse_ready 1.0" in sh.observed.metrics.text()


@pytest.mark.parametrize("embedded_agent", [True, False])
async def test_readiness_turns_bad_while_the_metadata_store_is_away(
    tmp_path: Path, postgres_behind: tuple[Proxy, str], embedded_agent: bool
) -> None:
    proxy, url = postgres_behind
    settings = {"metadata_url": url, "store_url": f"file://{tmp_path}/objects", "profile": "fast"}
    async with StreamHouse.open(data_dir=str(tmp_path), embedded_agent=embedded_agent, **settings, **ADMIN) as sh:
        await until(sh, 200)
        proxy.set_mode(ProxyMode.REFUSE)
        said = await until(sh, 503)
        (problem,) = [each for each in said["problems"] if each["blocks"]]
        assert problem["what"] == "the metadata store"
        assert "metadata.url" in problem["what_to_do"]
        assert (await get(sh, "/livez"))[0] == 200
        assert "\nstreamhouse_ready 0.0\n" in (await get(sh, "/metrics"))[1]
        proxy.set_mode(ProxyMode.PASS)
        await until(sh, 200)


async def test_readiness_turns_bad_while_the_object_store_is_away_from_an_idle_agent(
    tmp_path: Path, s3_behind: tuple[Proxy, dict[str, Any]]
) -> None:
    proxy, settings = s3_behind
    async with StreamHouse.open(data_dir=str(tmp_path), **settings, **ADMIN) as sh:
        await until(sh, 200)
        proxy.set_mode(ProxyMode.REFUSE)
        said = await until(sh, 503)
        (problem,) = [each for each in said["problems"] if each["blocks"]]
        assert problem["what"] == "the object store"
        assert "store.url" in problem["what_to_do"]
        proxy.set_mode(ProxyMode.PASS)
        assert (await until(sh, 200))["state"] == "ready"


async def test_a_problem_that_keeps_no_client_away_is_degraded(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), **ADMIN) as sh:
        member = sh.agent.member
        member.report(HEALTH, RuntimeError("orders/0: a damaged object"))
        said = await until(sh, 200)
        assert said["state"] == "degraded"
        (problem,) = said["problems"]
        assert (problem["what"], problem["problem"]) == (HEALTH, "orders/0: a damaged object")
        assert "docs/reading.md" in problem["what_to_do"]
        member.report("the write-ahead log's disk", BackPressureRejected("no room"))
        said = await until(sh, 503)
        assert [each["blocks"] for each in said["problems"]] == [True, False]
        assert "free space" in said["problems"][0]["what_to_do"]


async def test_a_process_says_that_it_starts_and_that_it_stops() -> None:
    health = ProcessHealth(clock=ManualClock())
    (problem,) = (await health.report()).problems
    assert (problem.problem, problem.blocks) == ("it starts", True)
    health.serves(None)
    report = await health.report()
    assert (report.state, report.process) == (Readiness.READY, "server without an agent")
    await health.stops()
    (problem,) = (await health.report()).problems
    assert (problem.problem, problem.blocks) == ("it stops and hands its partitions over", True)


async def test_a_taken_admin_port_stops_the_start(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path / "one"), **ADMIN) as sh:
        settings = {**ADMIN, "admin_listen": sh.admin_addresses[0]}
        with pytest.raises(ConfigError, match="--admin-listen"):
            async with StreamHouse.open(data_dir=str(tmp_path / "two"), **settings):
                pass
    assert not (tmp_path / "two").exists()


def test_an_agent_registers_an_http_address_that_others_can_reach() -> None:
    class Listening:
        def __init__(self, address: str) -> None:
            self.addresses = [address]

    def registered(address: str, **flags: object) -> str | None:
        settings = resolve(flags={key.replace("__", "."): value for key, value in flags.items()}).require().settings
        return registered_http(settings, Listening(address))  # type: ignore[arg-type]

    assert registered("127.0.0.1:8080") == "127.0.0.1:8080"
    assert registered("0.0.0.0:8080") is None
    assert registered("0.0.0.0:8080", agent__address="broker-1:9092") == "broker-1:8080"
    assert registered("[::]:8080", agent__address="broker-1:9092") == "broker-1:8080"
