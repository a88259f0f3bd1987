"""The life of an upload, whatever store it goes to: what may follow what, and what a cancellation leaves."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from crc32c import crc32c

from streamhouse.core.errors import InvalidRequest, ObjectExists, StoreError, StoreUnavailable
from streamhouse.objectstore.upload import Upload


class Watched(Upload):
    """Does what it is told to, and writes it down."""

    def __init__(self) -> None:
        super().__init__("k")
        self.done: list[str] = []
        self.failures: dict[str, list[Exception]] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def _write(self, views: Sequence[memoryview], size_bytes: int) -> None:
        await self._do("write")

    async def _complete(self) -> None:
        await self._do("complete")

    async def _abort(self) -> None:
        await self._do("abort")

    async def _do(self, what: str) -> None:
        await self.gate.wait()
        if self.failures.get(what):
            raise self.failures[what].pop(0)
        self.done.append(what)


async def cancelled(call: asyncio.Task[None]) -> None:
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_failed_write_leaves_only_the_abort() -> None:
    up = Watched()
    up.failures["write"] = [StoreUnavailable("down")]
    with pytest.raises(StoreUnavailable):
        await up.write(b"1")
    for call in (up.write(b"2"), up.complete()):
        with pytest.raises(InvalidRequest, match="spoiled"):
            await call
    await up.abort()
    await up.abort()
    assert up.done == ["abort"]


async def test_complete_may_be_tried_again() -> None:
    up = Watched()
    up.failures["complete"] = [StoreUnavailable("down"), StoreUnavailable("down")]
    await up.write(b"1")
    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await up.complete()
    await up.complete()
    await up.complete()
    await up.abort()
    assert up.done == ["write", "complete"]
    with pytest.raises(InvalidRequest, match="complete"):
        await up.write(b"2")


async def test_a_refused_complete_is_aborted_when_the_block_ends() -> None:
    up = Watched()
    up.failures["complete"] = [ObjectExists("taken")]
    async with up:
        with pytest.raises(ObjectExists):
            await up.complete()
    assert up.done == ["abort"]


async def test_complete_waits_with_one_that_is_under_way() -> None:
    up = Watched()
    up.gate.clear()
    await cancelled(asyncio.ensure_future(up.complete()))
    again = asyncio.ensure_future(up.complete())
    await asyncio.sleep(0)
    with pytest.raises(InvalidRequest, match="still runs"):
        await up.write(b"1")
    up.gate.set()
    await again
    assert up.done == ["complete"]


async def test_an_abort_after_a_cancelled_complete_that_went_through_does_nothing() -> None:
    up = Watched()
    up.gate.clear()
    await cancelled(asyncio.ensure_future(up.complete()))
    aborting = asyncio.ensure_future(up.abort())
    await asyncio.sleep(0)
    up.gate.set()
    await aborting
    assert up.done == ["complete"]


async def test_an_abort_waits_for_a_cancelled_write() -> None:
    up = Watched()
    up.gate.clear()
    await cancelled(asyncio.ensure_future(up.write(b"1")))
    aborting = asyncio.ensure_future(up.abort())
    await asyncio.sleep(0)
    up.gate.set()
    await aborting
    assert up.done == ["write", "abort"]


async def test_what_went_wrong_first_is_told() -> None:
    async def fail_inside() -> None:
        async with Watched() as up:
            up.failures["abort"] = [StoreUnavailable("cannot even abort")]
            raise StoreError("the first")

    with pytest.raises(StoreError, match="the first"):
        await fail_inside()

    async def leave() -> None:
        async with Watched() as up:
            up.failures["abort"] = [StoreUnavailable("cannot abort")]

    with pytest.raises(StoreUnavailable, match="cannot abort"):
        await leave()


async def test_the_fingerprint_is_of_all_that_was_written() -> None:
    up = Watched()
    await up.write(b"123")
    await up.write([b"45", memoryview(b"6789")])
    assert (up.written.size_bytes, up.written.crc) == (9, crc32c(b"123456789"))
