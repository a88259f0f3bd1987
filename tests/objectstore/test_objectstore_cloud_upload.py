"""Uploads to a cloud: small ones in one put, large ones staged and copied, and nothing left of one that ends early."""

from __future__ import annotations

from typing import Any, cast

import obstore
import pytest
from cloud_ground import cloud_store, paths
from obstore.store import MemoryStore as ObstoreMemory

from streamhouse.core.errors import ObjectExists, StoreError, StoreUnavailable
from streamhouse.objectstore import cloud_upload
from streamhouse.objectstore.cloud_upload import CloudUpload

THRESHOLD = 1000


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cloud_upload, "MULTIPART_THRESHOLD_BYTES", THRESHOLD)
    monkeypatch.setattr(cloud_upload, "MULTIPART_PART_BYTES", 400)


class Writers:
    """Stands for obstore's writer: parts are kept until they are joined. ``fails``: what ``close`` raises."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, memory: ObstoreMemory) -> None:
        self.memory = memory
        self.opened: list[str] = []
        self.aborted: list[str] = []
        self.fails: list[tuple[Exception, bool]] = []
        """The error, and whether the parts were joined all the same."""
        monkeypatch.setattr(obstore, "open_writer_async", self._open)

    def _open(self, client: Any, path: str, **options: int) -> Any:
        assert options["buffer_size"] == 400
        self.opened.append(path)
        return _Writer(self, path)


class _Writer:
    def __init__(self, writers: Writers, path: str) -> None:
        self._writers = writers
        self._path = path
        self._body = bytearray()

    async def write(self, data: bytes | memoryview) -> int:
        self._body += data
        return len(data)

    async def close(self) -> None:
        error, joined = self._writers.fails.pop(0) if self._writers.fails else (None, True)
        if joined:
            await obstore.put_async(self._writers.memory, self._path, bytes(self._body))
        if error is not None:
            raise error

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        assert kind is not None, "without an error obstore would complete the upload"
        self._writers.aborted.append(self._path)


@pytest.fixture
def writers(monkeypatch: pytest.MonkeyPatch) -> Writers:
    return Writers(monkeypatch, ObstoreMemory())


async def upload_of(writers: Writers, key: str = "a/x") -> CloudUpload:
    return cast(CloudUpload, await cloud_store(writers.memory).open_upload(key))


async def test_below_the_threshold_one_put_at_the_end_and_nothing_staged(writers: Writers) -> None:
    up = await upload_of(writers)
    buffer = bytearray(b"1" * 500)
    await up.write(buffer)
    buffer[:] = b"2" * 500
    await up.write(b"3" * (THRESHOLD - 501))
    assert paths(writers.memory) == []
    await up.complete()
    assert writers.opened == []
    assert await cloud_store(writers.memory).get("a/x") == b"1" * 500 + b"3" * 499


async def test_from_the_threshold_on_parts_are_staged_copied_and_the_staged_object_is_deleted(writers: Writers) -> None:
    up = await upload_of(writers)
    await up.write(b"1" * 600)
    await up.write([b"2" * 300, b"3" * 100])
    (staged,) = writers.opened
    assert staged.startswith("p/")
    assert staged != "p/a/x"
    await up.complete()
    assert paths(writers.memory) == ["p/a/x"]
    assert await cloud_store(writers.memory).get("a/x") == b"1" * 600 + b"2" * 300 + b"3" * 100


@pytest.mark.parametrize("size", [10, 2 * THRESHOLD])
async def test_a_key_that_is_taken_is_kept_and_nothing_is_left(writers: Writers, size: int) -> None:
    await cloud_store(writers.memory).put("a/x", b"theirs")
    async with await upload_of(writers) as up:
        await up.write(b"1" * size)
        with pytest.raises(ObjectExists):
            await up.complete()
    assert paths(writers.memory) == ["p/a/x"]
    assert await cloud_store(writers.memory).get("a/x") == b"theirs"


async def test_an_abort_tells_the_server_to_forget_the_parts(writers: Writers) -> None:
    async with await upload_of(writers) as up:
        await up.write(b"1" * THRESHOLD)
    assert writers.aborted == writers.opened != []
    assert paths(writers.memory) == []


async def test_a_lost_reply_to_the_joining_is_resolved_by_the_staged_object(writers: Writers) -> None:
    writers.fails = [(OSError("ConnectionReset"), True)]
    up = await upload_of(writers)
    await up.write(b"1" * THRESHOLD)
    await up.complete()
    assert paths(writers.memory) == ["p/a/x"]


async def test_parts_that_could_not_be_joined_are_lost_for_good_and_say_so_each_time(writers: Writers) -> None:
    writers.fails = [(OSError("ConnectionReset"), False)]
    async with await upload_of(writers) as up:
        await up.write(b"1" * THRESHOLD)
        for _ in range(2):
            with pytest.raises(StoreError, match="the parts of a/x could not be joined") as lost:
                await up.complete()
            assert not isinstance(lost.value, StoreUnavailable), "another try cannot help"
    assert paths(writers.memory) == []


async def test_a_publishing_that_failed_may_be_tried_again(writers: Writers, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = obstore.copy_async, [OSError("ConnectionReset")]

    async def copy(*args: Any, **kwargs: Any) -> None:
        if failures:
            raise failures.pop()
        await real(*args, **kwargs)

    monkeypatch.setattr(obstore, "copy_async", copy)
    up = await upload_of(writers)
    await up.write(b"1" * THRESHOLD)
    with pytest.raises(StoreUnavailable, match="publishing of a/x"):
        await up.complete()
    await up.complete()
    assert paths(writers.memory) == ["p/a/x"]
    assert len(writers.opened) == 1
