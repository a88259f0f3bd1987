"""A start waits for an object store that does not answer, and for nothing that waiting does not help against."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

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
from streamhouse.objectstore.probe import wait_for_store

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
