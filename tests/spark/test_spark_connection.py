"""The stores of a Spark process: opened once, at their first use, closed for good, and not shared with a fork."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import DataLost, MetadataUnavailable
from streamhouse.core.randomness import SeededRandomness
from streamhouse.objectstore.opening import StoreOptions
from streamhouse.spark import connection as connection_module
from streamhouse.spark.address import StoreAddress
from streamhouse.spark.connection import Connection, close_connections, connect, one_line


@pytest.fixture
def address(tmp_path: Path) -> StoreAddress:
    return StoreAddress(
        metadata_url=f"sqlite://{tmp_path}/metadata.db",
        store_url=f"file://{tmp_path}/objects",
        store=StoreOptions(),
        request_timeout_ms=1_000,
        retry_deadline_ms=2_000,
    )


@pytest.fixture
def connection(address: StoreAddress) -> Iterator[Connection]:
    opened = Connection(address, clock=ManualClock(), randomness=SeededRandomness(1))
    yield opened
    opened.close()


def test_each_store_is_opened_at_its_first_use_and_once(connection: Connection, tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []

    async def twice() -> bool:
        one, other = await asyncio.gather(connection.metadata(), connection.metadata())
        return one is other

    assert connection.run(twice())
    assert (tmp_path / "metadata.db").exists()
    assert not (tmp_path / "objects").exists()
    connection.run(connection.objects())
    assert (tmp_path / "objects").is_dir()


def test_an_error_of_the_call_comes_here_and_a_call_that_never_ends_is_given_up(connection: Connection) -> None:
    async def fails() -> None:
        raise TimeoutError("its own")

    cancelled = []

    async def hangs() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    with pytest.raises(TimeoutError, match="its own"):
        connection.run(fails())
    with pytest.raises(MetadataUnavailable, match="no answer from the stores within 0 s"):
        connection.run(hangs(), timeout_s=0.05)
    connection.run(asyncio.sleep(0))
    assert cancelled == [True]


def test_closing_ends_what_still_runs_and_may_be_repeated(address: StoreAddress) -> None:
    opened = Connection(address)
    opened.run(opened.metadata())
    hanging = opened.spawn(asyncio.sleep(1_000))
    opened.close()
    opened.close()
    assert hanging.cancelled()


def test_a_process_has_one_connection_to_an_address_until_all_are_closed(address: StoreAddress) -> None:
    first = connect(address)
    assert connect(address) is first
    close_connections()
    second = connect(address)
    assert second is not first
    second.run(second.metadata())
    close_connections()


def test_a_forked_worker_opens_connections_of_its_own(address: StoreAddress, monkeypatch: pytest.MonkeyPatch) -> None:
    inherited: list[Connection] = []
    monkeypatch.setattr(connection_module, "_inherited", inherited)
    parents = connect(address)
    connection_module._forget_connections()
    assert inherited == [parents], "kept, and not closed: it belongs to the parent"
    own = connect(address)
    assert own is not parents
    assert parents.run(asyncio.sleep(0, "still open")) == "still open"
    parents.close()


def test_only_an_error_of_ours_hides_the_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})

    @one_line
    def call(error: Exception) -> None:
        raise error

    with pytest.raises(ZeroDivisionError):
        call(ZeroDivisionError())
    assert os.environ == {}
    with pytest.raises(DataLost):
        call(DataLost("gone"))
    assert os.environ == {"SPARK_HIDE_TRACEBACK": "1"}
