"""The local directory: durable in the right order, whole or not at all, and nothing outside its root."""

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

from streamhouse.core.clock import ManualClock, SystemClock
from streamhouse.core.errors import (
    InvalidRequest,
    ObjectExists,
    ObjectNotFound,
    StoreDenied,
    StoreMisconfigured,
    StoreUnavailable,
)
from streamhouse.core.limits import STALE_TEMP_MS
from streamhouse.core.randomness import SystemRandomness
from streamhouse.objectstore.local import LocalStore
from streamhouse.objectstore.retries import RetryingStore


async def opened(root: Path, clock: SystemClock | ManualClock | None = None) -> LocalStore:
    return await LocalStore.open(root, clock=clock or SystemClock(), randomness=SystemRandomness())


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalStore]:
    async with await opened(tmp_path / "objects") as store:
        yield store


class Recorder:
    """Writes down the system calls that matter, by path, in order. The calls happen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.calls: list[str] = []
        self._root = root
        for name in ("fsync", "link", "unlink", "mkdir", "writev"):
            monkeypatch.setattr(os, name, self._recording(name, getattr(os, name)))

    def _recording(self, name, real):  # type: ignore[no-untyped-def]
        def call(first, *rest, **options):  # type: ignore[no-untyped-def]
            if options:  # a test's folder being removed: the store gives paths alone
                return real(first, *rest, **options)
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else first
            path = rest[0] if name == "link" else path
            shown = str(Path(path).relative_to(self._root))
            self.calls.append(f"{name} {'TEMP' if shown.startswith('.tmp/') else shown}")
            return real(first, *rest)

        return call


async def test_a_put_is_durable_before_it_returns(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch, Path(local.files.root))
    await local.put("a/b/x", b"1")
    assert recorder.calls == [
        "writev TEMP",
        "fsync TEMP",
        "mkdir a",
        "fsync .",
        "mkdir a/b",
        "fsync a",
        "link a/b/x",
        "fsync a/b",
        "unlink TEMP",
    ]
    recorder.calls.clear()
    await local.put("a/b/y", b"1")
    assert recorder.calls == ["writev TEMP", "fsync TEMP", "link a/b/y", "fsync a/b", "unlink TEMP"]


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


async def test_a_directory_another_process_made_is_not_trusted_to_be_durable(
    local: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path(local.files.root) / "a" / "b").mkdir(parents=True)
    recorder = Recorder(monkeypatch, Path(local.files.root))
    await local.put("a/b/x", b"1")
    assert [call for call in recorder.calls if call.startswith("fsync")] == [
        "fsync TEMP",
        "fsync .",
        "fsync a",
        "fsync a/b",
    ]


async def test_a_root_that_is_made_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder(monkeypatch, tmp_path)
    async with await opened(tmp_path / "new" / "objects"):
        pass
    assert recorder.calls[:4] == ["mkdir new", "fsync .", "mkdir new/objects", "fsync new"]


async def test_r11_taken_means_durably_taken(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first try linked the object and died before the directory was synced; the retry must not say yes too early."""
    real_fsync, failures = os.fsync, [1]

    def failing_once(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/a") and failures:
            failures.pop()
            raise OSError(errno.EIO, "disk problem")
        real_fsync(fd)

    monkeypatch.setattr(os, "fsync", failing_once)
    with pytest.raises(StoreUnavailable, match="disk problem"):
        await local.put("a/x", b"1")
    recorder = Recorder(monkeypatch, Path(local.files.root))
    with pytest.raises(ObjectExists):
        await local.put("a/x", b"1")
    assert recorder.calls[-2:] == ["fsync a", "unlink TEMP"]


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


def temp_files(store: LocalStore) -> list[str]:
    return os.listdir(Path(store.files.root) / ".tmp")


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


async def test_a_listing_is_in_s3_order_also_where_names_continue_folders(local: LocalStore) -> None:
    names = ["A", "a-b", "a.b", "a/b", "a/c", "a0", "a=b", "a_b", "ab/c"]
    assert sorted(names) == names
    for name in reversed(names):
        await local.put(name, b"")
    assert [info.key async for info in local.list()] == names
    for after in [*names, "a", "a/", "a/b0", "a~"]:
        assert [info.key async for info in local.list(start_after=after)] == [name for name in names if name > after]


async def test_a_listing_shows_objects_and_nothing_else(local: LocalStore, tmp_path: Path) -> None:
    root = Path(local.files.root)
    (root / "empty" / "folder").mkdir(parents=True)
    (root / "a b").write_text("no key of ours")
    (root / ".hidden").write_text("nor this")
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text("nor this")
    (tmp_path / "outside").write_text("secret")
    (root / "link").symlink_to(tmp_path / "outside")
    (root / "links").symlink_to(tmp_path)
    await local.put("fine", b"")
    assert [info.key async for info in local.list()] == ["fine"]
    for call in (local.get("link"), local.head("link"), local.get_range("link", 0, 1)):
        with pytest.raises(ObjectNotFound):
            await call


async def test_an_object_cannot_be_a_folder(local: LocalStore) -> None:
    await local.put("a/b", b"1")
    with pytest.raises(InvalidRequest, match="directory"):
        await local.put("a", b"1")
    with pytest.raises(InvalidRequest, match="path"):
        await local.put("a/b/c", b"1")
    assert temp_files(local) == []


async def test_a_directory_removed_by_hand_is_made_again(local: LocalStore) -> None:
    await local.put("a/b/x", b"1")
    (Path(local.files.root) / "a" / "b" / "x").unlink()
    (Path(local.files.root) / "a" / "b").rmdir()
    (Path(local.files.root) / "a").rmdir()
    await local.put("a/b/y", b"2")
    assert [info.key async for info in local.list()] == ["a/b/y"]


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


async def test_partial_writes_are_continued(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.writev
    monkeypatch.setattr(os, "writev", lambda fd, views: real(fd, [views[0][:3]]))
    await local.put("a", [b"0123456789", b"ab", b"cdefghi"])
    assert await local.get("a") == b"0123456789abcdefghi"


async def test_partial_reads_are_continued(local: LocalStore, monkeypatch: pytest.MonkeyPatch) -> None:
    await local.put("a", b"0123456789")
    real = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: real(fd, min(length, 3), offset))
    assert await local.get("a") == b"0123456789"
    assert await local.get_range("a", 2, 7) == b"2345678"


async def test_thousands_of_buffers_are_written(local: LocalStore) -> None:
    await local.put("a", [b"%04d" % n for n in range(3000)])
    assert await local.get("a") == b"".join(b"%04d" % n for n in range(3000))


async def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreMisconfigured, match="file"):
        await opened(tmp_path / "file" / "objects")
    with pytest.raises(StoreMisconfigured):
        await opened(tmp_path / "file")


async def test_a_missing_root_is_refused_if_asked(tmp_path: Path) -> None:
    with pytest.raises(StoreMisconfigured, match="no directory"):
        await LocalStore.open(tmp_path / "none", clock=SystemClock(), randomness=SystemRandomness(), create=False)
    assert not (tmp_path / "none").exists()


async def test_a_file_system_without_hard_links_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(StoreMisconfigured, match="hard links"):
        await opened(tmp_path / "objects")
    assert list((tmp_path / "objects" / ".tmp").iterdir()) == []


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
