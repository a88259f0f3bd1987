"""Opening a file: what is in force afterwards, what is refused, and what is left alone."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import MetadataError, MetadataUnavailable, SchemaTooNew, StreamHouseError
from streamhouse.core.ids import TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.contract import NewTopic
from streamhouse.metadata.migrations import Migration
from streamhouse.metadata.sqlite import schema
from streamhouse.metadata.sqlite.engine import ThreadedEngine
from streamhouse.metadata.sqlite.store import SqliteMetadata


def new_store(path: Path | str, *, threads: bool = True, retry_deadline_ms: int = 30_000) -> SqliteMetadata:
    return SqliteMetadata(
        path,
        clock=ManualClock(),
        randomness=SeededRandomness(1),
        threads=threads,
        retry_deadline_ms=retry_deadline_ms,
    )


def writer_of(store: SqliteMetadata) -> sqlite3.Connection:
    connection = store._engine._connection
    assert connection is not None
    return connection


def names_in(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


async def create(store: SqliteMetadata, name: str, partitions: int = 1, seed: int = 5) -> None:
    topic_id = TopicId(SeededRandomness(seed).uuid())
    await store.create_topic(NewTopic(topic_id=topic_id, name=name, partition_count=partitions, configs={}))


@pytest.mark.parametrize("threads", [True, False])
async def test_write_ahead_log_and_full_sync_are_in_force(tmp_path: Path, threads: bool) -> None:
    async with new_store(tmp_path / "metadata.db", threads=threads) as store:
        connections = [writer_of(store)]
        if isinstance(store._engine, ThreadedEngine):
            readers = [store._engine._idle.get() for _ in range(store._engine._idle.qsize())]
            for reader in readers:
                assert tuple(reader.execute("PRAGMA query_only").fetchone()) == (1,)
                store._engine._idle.put(reader)
            connections += readers
            assert len(connections) > 1
        for connection in connections:
            assert tuple(connection.execute("PRAGMA journal_mode").fetchone()) == ("wal",)
            assert tuple(connection.execute("PRAGMA synchronous").fetchone()) == (2,)


async def test_closing_leaves_one_plain_file(tmp_path: Path) -> None:
    """The last one out folds the log into the file, so that copying the file copies everything."""
    async with new_store(tmp_path / "metadata.db") as store:
        await create(store, "orders")
    assert names_in(tmp_path) == ["metadata.db"]
    async with new_store(tmp_path / "metadata.db") as store:
        assert (await store.get_topic("orders")).name == "orders"


async def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "metadata.db"
    async with new_store(path):
        pass
    with sqlite3.connect(path) as raw:
        raw.execute(
            "INSERT INTO schema_migrations VALUES (?, 'from_the_future', 0)", (schema.MIGRATIONS[-1].version + 1,)
        )
    raw.close()
    before = path.read_bytes()
    newest = schema.MIGRATIONS[-1].version
    with pytest.raises(
        SchemaTooNew, match=rf"\.db has schema version {newest + 1}; this StreamHouse knows up to {newest}"
    ):
        await new_store(path).open()
    assert path.read_bytes() == before


async def test_a_migration_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "metadata.db"
    broken = Migration(version=99, name="broken", sql="CREATE TABLE half (a);\nINSERT INTO nowhere VALUES (1);\n")
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, broken))
        with pytest.raises(MetadataError, match="nowhere"):
            await new_store(path).open()
    with sqlite3.connect(path) as raw:
        assert raw.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,)
    raw.close()
    async with new_store(path) as store:
        await create(store, "orders")


async def test_r7_a_file_of_before_lets_go_of_what_only_adopted_manifests_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until schema 2 a manifest counted as a reference also when its entries did."""
    path = tmp_path / "metadata.db"
    with monkeypatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:2])
        async with new_store(path):
            pass
    slices = [("kept", 0, 0), ("kept", 1, 7), ("gone", 2, 9), ("gone", 3, 11), ("waiting", 4, None)]
    with sqlite3.connect(path) as raw:
        raw.executemany(
            "INSERT INTO objects (object_key, size_bytes, created_at, refs) VALUES (?, 1, 0, ?)",
            [("kept", 3), ("gone", 2), ("waiting", 1)],
        )
        raw.executemany(
            "INSERT INTO sink_slices VALUES ('q', x'00', 0, ?2, 0, ?1, 1, 0, 0, 1, 1, 'kafka', 0, 0, ?3, ?3)", slices
        )
    raw.close()
    async with new_store(path):
        pass
    with sqlite3.connect(path) as raw:
        found = raw.execute("SELECT object_key, refs, dereferenced_at IS NULL FROM objects ORDER BY 1").fetchall()
    raw.close()
    assert found == [("gone", 0, 0), ("kept", 1, 1), ("waiting", 1, 1)]


def not_a_database(path: Path) -> None:
    path.write_bytes(b"this is a letter, not a database\n" * 200)


def damaged(path: Path) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute("PRAGMA journal_mode = WAL")
        raw.execute("CREATE TABLE schema_migrations (version, name, applied_at)")
        raw.executemany("INSERT INTO schema_migrations VALUES (?, ?, 0)", [(n, "x" * 500) for n in range(100)])
    raw.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)


def of_another_program(path: Path) -> None:
    with sqlite3.connect(path) as raw:
        raw.execute("CREATE TABLE bookmarks (url TEXT)")
    raw.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (not_a_database, "is not an SQLite database"),
        (damaged, "is damaged"),
        (of_another_program, "of another program .*bookmarks"),
    ],
)
async def test_a_file_that_is_not_ours_is_refused_and_not_touched(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / "metadata.db"
    make(path)
    before = path.read_bytes()
    with pytest.raises(MetadataError, match=message) as caught:
        await new_store(path).open()
    assert str(path) in caught.value.message
    assert caught.value.hint
    assert path.read_bytes() == before
    assert names_in(tmp_path) == ["metadata.db"]


def damage_schema(path: Path) -> None:
    """SQLite quotes the broken name in its message, which is then no UTF-8 either."""
    with sqlite3.connect(path) as raw:
        raw.execute("PRAGMA writable_schema = ON")
        raw.execute("UPDATE sqlite_master SET name = CAST(x'ff41' AS TEXT), sql = 'nonsense' WHERE name = 'topics'")
        raw.execute("PRAGMA schema_version = 9999")
    raw.close()


@pytest.mark.parametrize("threads", [True, False])
async def test_damage_that_is_not_even_text_is_told_as_damage(tmp_path: Path, threads: bool) -> None:
    path = tmp_path / "metadata.db"
    async with new_store(path, threads=threads) as store:
        await create(store, "orders")
        damage_schema(path)
        for call in (store.list_topics, lambda: create(store, "other")):
            with pytest.raises(MetadataError, match="is damaged") as caught:
                await call()
            assert str(path) in caught.value.message
    with pytest.raises(MetadataError, match="is damaged"):
        await new_store(path, threads=threads).open()


@pytest.mark.parametrize("threads", [True, False])
async def test_a_missing_directory_is_named_and_not_made(tmp_path: Path, threads: bool) -> None:
    with pytest.raises(MetadataError, match=r"there is no directory .*nowhere"):
        await new_store(tmp_path / "nowhere" / "metadata.db", threads=threads).open()
    assert names_in(tmp_path) == []


async def test_a_directory_in_place_of_the_file(tmp_path: Path) -> None:
    with pytest.raises(MetadataError, match="that is a directory"):
        await new_store(tmp_path).open()


async def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    """/proc refuses even root, which these tests may run as."""
    with pytest.raises(MetadataError, match=r"/proc/metadata\.db") as caught:
        await new_store("/proc/metadata.db").open()
    assert caught.value.hint
    if os.geteuid() != 0:
        os.chmod(tmp_path, 0o500)
        with pytest.raises(MetadataError, match="not writable"):
            await new_store(tmp_path / "metadata.db").open()


async def test_a_full_disk_fails_the_call_that_needs_room_and_no_other(tmp_path: Path) -> None:
    async with new_store(tmp_path / "metadata.db") as store:
        await create(store, "before")
        pages = writer_of(store).execute("PRAGMA page_count").fetchone()[0]
        writer_of(store).execute(f"PRAGMA max_page_count = {pages}")
        outcomes = await asyncio.gather(
            create(store, "huge", partitions=2000, seed=6),
            store.now_ms(),
            store.get_topic("before"),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], MetadataUnavailable)
        assert "no space left" in outcomes[0].message
        assert str(tmp_path) in outcomes[0].message
        assert [type(outcome) for outcome in outcomes[1:]] == [int, type(await store.get_topic("before"))]
        assert [topic.name for topic in await store.list_topics()] == ["before"]
        writer_of(store).execute("PRAGMA max_page_count = 1000000")
        await create(store, "huge", partitions=2000, seed=6)


async def test_instances_that_open_together_all_succeed(tmp_path: Path) -> None:
    stores = [new_store(tmp_path / "metadata.db") for _ in range(8)]
    await asyncio.gather(*(store.open() for store in stores))
    try:
        await asyncio.gather(*(create(store, f"t{n}", seed=n) for n, store in enumerate(stores)))
        listed = await asyncio.gather(*(store.list_topics() for store in stores))
        assert [len(topics) for topics in listed] == [8] * 8
    finally:
        await asyncio.gather(*(store.close() for store in stores))


@pytest.mark.parametrize("threads", [True, False])
async def test_a_lock_that_is_never_given_up(tmp_path: Path, threads: bool) -> None:
    """Retried until the deadline, then an error that says the outcome is open; opening and writing alike."""
    path = tmp_path / "metadata.db"
    async with new_store(path, threads=threads, retry_deadline_ms=300) as store:
        with sqlite3.connect(path, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(MetadataUnavailable, match="locked by another process") as caught:
                await create(store, "orders")
            assert caught.value.retriable
            with pytest.raises(MetadataUnavailable, match="locked by another process"):
                await new_store(path, threads=threads, retry_deadline_ms=300).open()
            assert await store.list_topics() == []  # reading needs no lock
            other.execute("ROLLBACK")
        other.close()
        await create(store, "orders")


@pytest.mark.parametrize("threads", [True, False])
async def test_a_lock_that_is_given_up_is_waited_for(tmp_path: Path, threads: bool) -> None:
    path = tmp_path / "metadata.db"
    async with new_store(path, threads=threads) as store:
        with sqlite3.connect(path, isolation_level=None) as other:
            other.execute("BEGIN IMMEDIATE")
            waiting = asyncio.create_task(create(store, "orders"))
            await asyncio.sleep(0.05)
            assert not waiting.done()
            other.execute("ROLLBACK")
            await waiting
        other.close()
        assert (await store.get_topic("orders")).name == "orders"


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize("path", ["file", ":memory:"])
async def test_a_store_that_is_not_open_says_so(tmp_path: Path, path: str, threads: bool) -> None:
    store = new_store(tmp_path / "metadata.db" if path == "file" else path, threads=threads)
    with pytest.raises(MetadataError, match="is not open"):
        await store.list_topics()
    await store.open()
    with pytest.raises(MetadataError, match="open already"):
        await store.open()
    await store.close()
    await store.close()
    for call in (store.list_topics, store.now_ms, lambda: create(store, "orders")):
        with pytest.raises(StreamHouseError, match="is not open"):
            await call()
    await store.open()
    await create(store, "orders")
    await store.close()
