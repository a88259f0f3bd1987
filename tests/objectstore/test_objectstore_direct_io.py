"""Objects written past the page cache: every byte and no more, and the usual way where that cannot be done."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import ReadPastEnd, StoreError
from streamhouse.core.randomness import SystemRandomness
from streamhouse.objectstore import direct_io
from streamhouse.objectstore.direct_io import MIN_DIRECT_BYTES
from streamhouse.objectstore.local import LocalStore

STAGE = direct_io._STAGE_BYTES


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalStore]:
    clock, randomness = SystemClock(), SystemRandomness()
    async with await LocalStore.open(tmp_path / "objects", clock=clock, randomness=randomness) as store:
        yield store


class Calls:
    """Counts the aligned writes; the writes happen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.aligned = 0
        self._real = os.pwrite
        monkeypatch.setattr(os, "pwrite", self._pwrite)

    def _pwrite(self, fd: int, data: memoryview, position: int) -> int:
        self.aligned += 1
        return self._real(fd, data, position)


@pytest.mark.parametrize(
    "size",
    [MIN_DIRECT_BYTES, MIN_DIRECT_BYTES + 1, STAGE - 1, STAGE, STAGE + 1, 2 * STAGE, 2 * STAGE + 4096, 3 * STAGE + 77],
)
async def test_an_object_of_any_size_is_what_was_put(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    calls = Calls(monkeypatch)
    body = os.urandom(size)
    cuts = sorted({0, 1, 61, size // 3, size // 2 + 7, size - 1, size})
    pieces = [body[start:end] for start, end in pairwise(cuts)]
    await local.put("a/b", pieces)
    assert calls.aligned == -(-size // STAGE), "this file system writes directly"
    assert bytes(await local.get("a/b")) == body
    assert (await local.head("a/b")).size_bytes == size


async def test_a_small_object_is_written_the_usual_way(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls(monkeypatch)
    await local.put("a/b", [bytes(MIN_DIRECT_BYTES - 1)])
    assert calls.aligned == 0


async def test_a_file_system_that_refuses_is_written_the_usual_way_from_then_on(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = 0

    def refuse(fd: int, data: memoryview, position: int) -> int:
        nonlocal refused
        refused += 1
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "pwrite", refuse)
    first, second = os.urandom(STAGE + 5), os.urandom(STAGE + 6)
    await local.put("a/1", [first])
    await local.put("a/2", [second])
    assert refused == 1
    assert bytes(await local.get("a/1")) == first
    assert bytes(await local.get("a/2")) == second


async def test_short_writes_are_continued(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: real(fd, data[: 4096 * 3], position))
    body = os.urandom(STAGE + 5)
    await local.put("a/b", [body])
    assert bytes(await local.get("a/b")) == body


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EINVAL])
async def test_r11_a_write_that_fails_midway_publishes_nothing(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    real = os.pwrite

    def fail_late(fd: int, data: memoryview, position: int) -> int:
        if position:
            raise OSError(number, os.strerror(number))
        return real(fd, data, position)

    monkeypatch.setattr(os, "pwrite", fail_late)
    with pytest.raises(StoreError):
        await local.put("a/b", [bytes(2 * STAGE)])
    assert [each async for each in local.list("")] == []
    assert list((Path(local.files.root) / ".tmp").iterdir()) == []


async def test_a_disk_that_takes_nothing_is_full(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pwrite", lambda fd, data, position: 0)
    with pytest.raises(StoreError, match="space"):
        await local.put("a/b", [bytes(STAGE)])


@pytest.mark.parametrize(
    ("offset", "length"),
    [(0, STAGE), (1, STAGE), (4095, MIN_DIRECT_BYTES), (4096, 4096 * 64), (STAGE + 4, STAGE), (77, 2 * STAGE)],
)
async def test_any_range_is_what_was_asked_for(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, offset: int, length: int
) -> None:
    body = os.urandom(2 * STAGE + 5000)
    await local.put("a/b", [body])
    monkeypatch.setattr(os, "pread", None)
    assert bytes(await local.get_range("a/b", offset, length)) == body[offset : offset + length]


async def test_a_range_past_the_end_is_said_so(local: LocalStore) -> None:
    await local.put("a/b", [bytes(STAGE)])
    with pytest.raises(ReadPastEnd):
        await local.get_range("a/b", 5, STAGE)


async def test_short_reads_are_continued(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    body = os.urandom(STAGE)
    await local.put("a/b", [body])
    real = os.preadv
    monkeypatch.setattr(os, "preadv", lambda fd, views, offset: real(fd, [views[0][: 4096 * 5]], offset))
    assert bytes(await local.get("a/b")) == body


async def test_a_file_system_that_refuses_is_read_the_usual_way(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = os.urandom(STAGE + 5)
    await local.put("a/b", [body])

    def refuse(fd: int, views: list[memoryview], offset: int) -> int:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(os, "preadv", refuse)
    assert bytes(await local.get("a/b")) == body


async def test_it_can_be_turned_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "preadv", None)
    monkeypatch.setattr(os, "pwrite", None)
    body = os.urandom(STAGE)
    opening = LocalStore.open(tmp_path / "o", clock=SystemClock(), randomness=SystemRandomness(), direct_io=False)
    async with await opening as store:
        await store.put("a/b", [body])
        assert bytes(await store.get("a/b")) == body
