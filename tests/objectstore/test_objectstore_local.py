"""The store in a directory: whole or not at all after a crash, uploads that end cleanly, errors in one line."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from local_ground import Recorder, opened, temp_files

from streamhouse.core.clock import ManualClock, SystemClock
from streamhouse.core.errors import (
    InvalidRequest,
    StoreDenied,
    StoreUnavailable,
)
from streamhouse.core.limits import STALE_TEMP_MS
from streamhouse.core.randomness import SystemRandomness
from streamhouse.objectstore.local import LocalStore
from streamhouse.objectstore.retries import RetryingStore


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalStore]:
    async with await opened(tmp_path / "objects") as store:
        yield store


async def test_an_upload_is_durable_before_it_returns(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch, Path(local.files.root))
    async with await local.open_upload("a/x") as up:
        await up.write(b"1")
        await up.complete()
    assert recorder.calls == [
        "writev TEMP",
        "fsync TEMP",
        "mkdir a",
        "fsync .",
        "link a/x",
        "fsync a",
        "unlink TEMP",
    ]


async def test_r11_a_failed_sync_after_the_link_is_resolved_by_the_retry(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_fsync, failures = os.fsync, [1, 2]

    def failing_twice(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/a") and failures:
            failures.pop()
            raise OSError(errno.EIO, "disk problem")
        real_fsync(fd)

    store = RetryingStore(local, clock=SystemClock(), randomness=SystemRandomness())
    await store.put("a/x", b"1")
    monkeypatch.setattr(os, "fsync", failing_twice)
    await store.put("a/y", b"22")
    assert await store.get("a/y") == b"22"
    failures[:] = [1]
    async with await store.open_upload("a/z") as up:
        await up.write(b"333")
        await up.complete()
    assert await store.get("a/z") == b"333"
    assert temp_files(local) == []


WRITER = """
import asyncio, os, sys, time
from pathlib import Path
from streamhouse.core.clock import SystemClock
from streamhouse.core.randomness import SystemRandomness
from streamhouse.objectstore.local import LocalStore

async def main():
    store = await LocalStore.open(Path(sys.argv[1]), clock=SystemClock(), randomness=SystemRandomness())
    await store.put("logs/before", b"whole")
    real = getattr(os, sys.argv[2])

    def hang(*arguments):
        if sys.argv[3] == "after":
            real(*arguments)
        sys.stdout.write("there\\n")
        sys.stdout.flush()
        time.sleep(600)

    setattr(os, sys.argv[2], hang)
    await store.put("logs/victim", [b"x" * 300_000, b"y" * 300_000])

asyncio.run(main())
"""


@pytest.mark.parametrize(
    ("call", "when", "visible"),
    [
        ("pwrite", "before", False),
        ("pwrite", "after", False),
        ("ftruncate", "before", False),
        ("fsync", "before", False),
        ("fsync", "after", False),
        ("link", "before", False),
        ("link", "after", True),
    ],
)
async def test_kill_9_in_the_middle_of_a_put_leaves_all_or_nothing(
    tmp_path: Path, call: str, when: str, visible: bool
) -> None:
    root = tmp_path / "objects"
    writer = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, root, call, when, stdout=asyncio.subprocess.PIPE
    )
    assert writer.stdout is not None
    assert await writer.stdout.readline() == b"there\n"
    writer.send_signal(signal.SIGKILL)
    assert await writer.wait() == -signal.SIGKILL
    async with await opened(root) as store:
        assert [info.key async for info in store.list()] == ["logs/before"] + ["logs/victim"] * visible
        if visible:
            assert await store.get("logs/victim") == b"x" * 300_000 + b"y" * 300_000
        assert len(temp_files(store)) == 1
        await store.put("logs/victim", [b"x" * 300_000, b"y" * 300_000], accept_equal=True)
    later = ManualClock(wall_ms=SystemClock().wall_ms() + 2 * STALE_TEMP_MS)
    async with await opened(root, later) as store:
        assert temp_files(store) == []
        assert len([info async for info in store.list()]) == 2


async def test_opening_leaves_the_temp_files_of_live_writers(tmp_path: Path) -> None:
    root = tmp_path / "objects"
    async with await opened(root) as one, await one.open_upload("a") as up:
        await up.write(b"half")
        async with await opened(root) as two:
            assert len(temp_files(two)) == 1
        await up.write(b" and half")
        await up.complete()
        assert await one.get("a") == b"half and half"
        assert temp_files(one) == []


async def test_an_upload_whose_temp_file_was_cleared_away_says_so(local: LocalStore) -> None:
    async with await local.open_upload("a/x") as up:
        await up.write(b"1")
        for name in temp_files(local):
            (Path(local.files.root) / ".tmp" / name).unlink()
        with pytest.raises(Exception, match="cleared away"):
            await up.complete()


@pytest.mark.parametrize(
    ("number", "expected", "match"),
    [
        (errno.ENOSPC, StoreUnavailable, "free some space"),
        (errno.EDQUOT, StoreUnavailable, "free some space"),
        (errno.EIO, StoreUnavailable, "check the disk"),
        (errno.EROFS, StoreDenied, "mount"),
        (errno.EACCES, StoreDenied, "permissions"),
    ],
)
async def test_a_failing_disk_is_told_in_one_line(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch, number: int, expected: type[Exception], match: str
) -> None:
    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "writev", fail)
    with pytest.raises(expected, match=match) as caught:
        await local.put("a/x", b"1")
    assert "put of a/x" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert temp_files(local) == []


async def test_a_cancelled_write_is_waited_for_before_the_file_is_let_go(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, started, release = os.writev, asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def slow(fd: int, views: list[memoryview]) -> int:
        loop.call_soon_threadsafe(started.set)
        release.wait(10)
        return real(fd, views)

    async with await local.open_upload("a/x") as up:
        monkeypatch.setattr(os, "writev", slow)
        writing = asyncio.ensure_future(up.write(b"1"))
        await started.wait()
        writing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await writing
        with pytest.raises(InvalidRequest, match="still runs"):
            await up.complete()
        aborting = asyncio.ensure_future(up.abort())
        await asyncio.wait({aborting}, timeout=0.1)
        assert not aborting.done()
        assert len(temp_files(local)) == 1
        release.set()
        await aborting
    assert temp_files(local) == []
