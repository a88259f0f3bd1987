"""A start waits for an object store that does not answer, and refuses one that does not keep the contract."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from cloud_ground import cloud_store
from obstore.store import MemoryStore as ObstoreMemory

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import (
    StoreCredentialsMissing,
    StoreDenied,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)
from streamhouse.core.randomness import SeededRandomness
from streamhouse.objectstore import probe
from streamhouse.objectstore.memory import MemoryStore
from streamhouse.objectstore.objects import Fetched, ListPage
from streamhouse.objectstore.probe import check_store, wait_for_store

DOWN = StoreUnavailable("put of probe in s3://bucket failed: no answer: connection refused")


class Away(MemoryStore):
    """Fails as the script says, one put after the other; None hangs."""

    def __init__(self, *script: StoreError | None) -> None:
        super().__init__(clock=ManualClock())
        self.script = list(script)

    async def put(self, *args: Any, **kwargs: Any) -> Any:
        if self.script:
            failure = self.script.pop(0)
            if failure is None:
                await asyncio.Event().wait()
            else:
                raise failure
        return await super().put(*args, **kwargs)


async def wait_for(store: Away, **limits: float) -> None:
    limits = {"attempt_timeout_s": 30.0, **limits}
    await wait_for_store(store, clock=ManualClock(), randomness=SeededRandomness(1), **limits)


async def test_a_store_that_comes_back_is_waited_for() -> None:
    store = Away(DOWN, DOWN, DOWN)
    await wait_for(store)
    assert not store.script


async def test_an_attempt_that_hangs_is_given_up_and_repeated() -> None:
    store = Away(None, None)
    await wait_for(store, attempt_timeout_s=0.01)
    assert not store.script


@pytest.mark.parametrize("failure", [DOWN, None], ids=["refused", "hangs"])
async def test_the_wait_ends_with_what_it_waited_for(failure: StoreError | None) -> None:
    store = Away(*[failure] * 10_000)
    words = "connection refused" if failure else "does not answer in time"
    with pytest.raises(StoreUnavailable, match=words):
        await wait_for(store, attempt_timeout_s=0.05, wait_s=0.3)


@pytest.mark.parametrize(
    "failure",
    [
        StoreDenied("the signature does not match"),
        StoreMisconfigured("NoSuchBucket"),
        StoreCredentialsMissing("no credentials were found"),
    ],
    ids=["denied", "no such bucket", "no credentials"],
)
async def test_what_no_waiting_helps_against_ends_it_at_once(failure: StoreError) -> None:
    store = Away(DOWN, failure, DOWN)
    with pytest.raises(type(failure)) as raised:
        await wait_for(store)
    assert raised.value is failure
    assert store.script == [DOWN]


async def test_the_wait_is_told_once_with_its_reason(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(probe, "TELL_WAITING_S", 0.1)
    with caplog.at_level(logging.WARNING), pytest.raises(StoreUnavailable):
        await wait_for(Away(*[DOWN] * 10_000), wait_s=3)  # long enough to be told on a busy machine
    told = [record.getMessage() for record in caplog.records]
    assert told == [f"waiting for the object store memory://: {DOWN.message}"]


class Overwrites(MemoryStore):
    """Accepts the condition of a put and ignores it."""

    async def put(self, key: str, *args: Any, **kwargs: Any) -> Any:
        await super().delete([key])
        return await super().put(key, *args, **kwargs)


class Forgets(MemoryStore):
    async def _list_page(self, prefix: str, start_after: str | None) -> ListPage:
        return ListPage(objects=[], next_start_after=None)


class Garbles(MemoryStore):
    async def _get_range(self, key: str, offset: int, length: int) -> Fetched:
        found = await super()._get_range(key, 0, length)
        return Fetched(data=found.data, size_bytes=found.size_bytes)


async def probe_of(store: MemoryStore) -> list[str]:
    """Run the check; the keys that are left."""
    try:
        await check_store(store, clock=ManualClock(), randomness=SeededRandomness(1))
    finally:
        left = await MemoryStore._list_page(store, "", None)
    return [info.key for info in left.objects]


async def test_a_store_that_keeps_the_contract_passes_and_nothing_is_left() -> None:
    assert await probe_of(MemoryStore(clock=ManualClock())) == []


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Overwrites, "lets a create-only put replace an object"),
        (Forgets, "does not list what was put"),
        (Garbles, "does not return what was put"),
    ],
)
async def test_a_server_that_breaks_the_contract_is_refused_and_its_probe_is_deleted(
    kind: type[MemoryStore], said: str
) -> None:
    store = kind(clock=ManualClock())
    with pytest.raises(StoreMisconfigured, match=said):
        await probe_of(store)
    assert (await MemoryStore._list_page(store, "", None)).objects == []


async def test_an_upload_that_may_replace_an_object_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    store = cloud_store(ObstoreMemory())

    async def replace(source: str, target: str) -> None:
        return None

    monkeypatch.setattr(store, "copy_if_absent", replace)
    with pytest.raises(StoreMisconfigured, match="lets an upload replace an object"):
        await check_store(store, clock=ManualClock(), randomness=SeededRandomness(1))


async def test_a_probe_that_cannot_be_deleted_is_no_fault() -> None:
    class Keeps(MemoryStore):
        async def _delete(self, keys: Any) -> None:
            raise StoreDenied("no")

    await check_store(Keeps(clock=ManualClock()), clock=ManualClock(), randomness=SeededRandomness(1))
