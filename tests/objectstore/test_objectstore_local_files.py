"""Files under a root: durable in the right order, listed in key order, and nothing that is no object."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from local_ground import Recorder, opened, temp_files

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import (
    InvalidRequest,
    LimitExceeded,
    ObjectExists,
    ObjectNotFound,
    StoreMisconfigured,
    StoreUnavailable,
)
from streamhouse.core.randomness import SystemRandomness
from streamhouse.objectstore import checks, local_files
from streamhouse.objectstore.local import LocalStore
from streamhouse.objectstore.local_files import DurableFiles


@pytest.fixture
async def local(tmp_path: Path) -> AsyncIterator[LocalStore]:
    async with await opened(tmp_path / "objects") as store:
        yield store


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


def files_in(root: Path) -> DurableFiles:
    files = DurableFiles(root)
    files.open(create=True)
    return files


def put(files: DurableFiles, key: str, body: bytes) -> None:
    files.put(key, [memoryview(body)], f"temp-of-{key.replace('/', '-')}")


def test_only_temp_files_older_than_asked_are_removed(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    for name, at_s in (("old", 10), ("edge", 20), ("young", 30)):
        fd, path = files.create_temp(name)
        os.close(fd)
        os.utime(path, (at_s, at_s))
    assert files.remove_stale_temps(20_000) == 1
    assert sorted(os.listdir(tmp_path / ".tmp")) == ["edge", "young"]


def test_a_page_of_a_listing_is_bounded_and_says_where_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_files, "MAX_LOCAL_LIST_PAGE", 2)
    files = files_in(tmp_path)
    for key in ("a/1", "a/2", "b/3"):
        put(files, key, b"1")
    first = files.list_page("", None)
    assert ([info.key for info in first.objects], first.next_start_after) == (["a/1", "a/2"], "a/2")
    second = files.list_page("", first.next_start_after)
    assert ([info.key for info in second.objects], second.next_start_after) == (["b/3"], None)
    assert [info.key for info in files.list_page("a/2", None).objects] == ["a/2"]
    assert files.list_page("none/", None).objects == []


def test_an_object_over_the_limit_is_read_in_ranges_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = files_in(tmp_path)
    put(files, "a", b"0123456789")
    monkeypatch.setattr(checks, "MAX_REQUEST_BODY_BYTES", 9)
    with pytest.raises(LimitExceeded, match="object a"):
        files.read("a")
    found = files.read("a", 2, 3)
    assert (bytes(found.data), found.size_bytes) == (b"234", 10)


def test_a_put_that_is_refused_leaves_the_object_and_no_temp_file(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    put(files, "a/x", b"first")
    with pytest.raises(ObjectExists, match="a/x exists already"):
        put(files, "a/x", b"second")
    assert bytes(files.read("a/x").data) == b"first"
    assert os.listdir(tmp_path / ".tmp") == []


def test_deleting_what_is_not_there_or_is_a_folder_does_nothing(tmp_path: Path) -> None:
    files = files_in(tmp_path)
    put(files, "a/x", b"1")
    files.delete(["a", "a/x/y", "none", "a/x"])
    assert files.list_page("", None).objects == []
    assert (tmp_path / "a").is_dir(), "directories stay: others know them to be durable"
