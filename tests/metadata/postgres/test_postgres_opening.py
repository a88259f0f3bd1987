"""Opening: concurrent starts, schemas too new, and every way a URL can be wrong, told at once and without secrets."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import asyncpg
import pytest
from scenes import WAIT_S, Opener

from streamhouse.core.errors import ConfigError, MetadataError, MetadataUnavailable, SchemaTooNew
from streamhouse.core.randomness import SeededRandomness
from streamhouse.metadata.migrations import load_migrations
from streamhouse.metadata.postgres import database, failures, migrate
from streamhouse.metadata.postgres.store import PostgresMetadata
from streamhouse.testing.services import PostgresService

NEWEST = len(load_migrations("streamhouse.metadata.postgres"))
SECRET = "hunter2"


def new_store(dsn: str, seed: int = 0, **settings: int) -> PostgresMetadata:
    return PostgresMetadata(dsn, randomness=SeededRandomness(seed), **settings)


async def test_concurrent_first_starts_wait_for_each_other(postgres_database: str) -> None:
    stores = [new_store(postgres_database, seed) for seed in range(6)]
    try:
        await asyncio.gather(*(store.open() for store in stores))
        infos = [await store.cluster_info() for store in stores]
    finally:
        for store in stores:
            await store.close()
    assert len({info.cluster_id for info in infos}) == 1
    assert {info.schema_version for info in infos} == {NEWEST}


async def test_cluster_info_names_the_server(store: PostgresMetadata, postgres_service: PostgresService) -> None:
    info = await store.cluster_info()
    assert info.backend == f"PostgreSQL {postgres_service.version}"


async def test_a_newer_schema_is_refused(dsn: str, operator: asyncpg.Connection) -> None:
    await operator.execute("INSERT INTO schema_migrations VALUES (9999, 'from_the_future', 0)")
    store = new_store(dsn)
    with pytest.raises(SchemaTooNew, match="9999"):
        await store.open()
    await store.close()


async def test_everything_lives_in_the_schema_that_search_path_names(
    postgres_database: str, open_store: Opener
) -> None:
    connection = await asyncpg.connect(postgres_database)
    try:
        await connection.execute("CREATE SCHEMA streams")
        store = await open_store(f"{postgres_database}?search_path=streams")
        assert await store.list_topics() == []
        found = await connection.fetch(
            "SELECT DISTINCT schemaname FROM pg_tables WHERE tablename IN ('topics', 'entries', 'schema_migrations')"
        )
        assert [row["schemaname"] for row in found] == ["streams"]
        lost = new_store(f"{postgres_database}?search_path=nowhere")
        with pytest.raises(MetadataError, match="search_path"):
            await lost.open()
        await store.close()
    finally:
        await connection.close()


async def refusal(dsn: str, **settings: int) -> MetadataError | ConfigError:
    store = new_store(dsn, **settings)
    with pytest.raises((MetadataError, ConfigError)) as caught:
        await store.open()
    await store.close()
    assert SECRET not in str(caught.value)
    return caught.value


async def test_an_unknown_database_is_named_at_once(postgres_service: PostgresService) -> None:
    error = await refusal(f"postgresql://streamhouse:{SECRET}@127.0.0.1:{postgres_service.port}/no_such_database")
    assert not isinstance(error, MetadataUnavailable)
    assert "no_such_database" in str(error)
    assert "create the database" in str(error)


async def test_an_unknown_user_is_named_at_once(postgres_service: PostgresService) -> None:
    error = await refusal(f"postgresql://stranger:{SECRET}@127.0.0.1:{postgres_service.port}/streamhouse")
    assert not isinstance(error, MetadataUnavailable)
    assert "stranger" in str(error)


@asynccontextmanager
async def answering(respond: Callable[[bytes], bytes]) -> AsyncIterator[str]:
    """A server that gives ``respond``'s answer to each message, until there is none."""

    conversations: list[asyncio.Task[None]] = []

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while received := await reader.read(4096):
                writer.write(respond(received))
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        conversations.append(asyncio.create_task(converse(reader, writer)))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield f"postgresql://streamhouse:{SECRET}@127.0.0.1:{port}/streamhouse"
    finally:
        server.close()
        await server.wait_closed()
        await asyncio.gather(*conversations)


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


def after_ssl_request(answer: bytes) -> Callable[[bytes], bytes]:
    return lambda received: b"N" if received[4:8] == (80877103).to_bytes(4, "big") else answer


async def test_a_wrong_password_is_reported_at_once() -> None:
    fields = b'SFATAL\0C28P01\0Mpassword authentication failed for user "streamhouse"\0\0'
    async with answering(after_ssl_request(message(b"E", fields))) as dsn:
        error = await refusal(dsn)
    assert not isinstance(error, MetadataUnavailable)
    assert "check the password" in str(error)


async def test_something_that_is_not_postgresql_is_recognised_at_once() -> None:
    async with answering(lambda _received: b"HTTP/1.1 400 Bad Request\r\n\r\n") as dsn:
        error = await refusal(dsn)
    assert not isinstance(error, MetadataUnavailable)
    assert "not PostgreSQL" in str(error)


async def test_a_server_too_old_is_refused() -> None:
    welcome = message(b"R", (0).to_bytes(4, "big"))
    for name, value in (("server_version", "12.3"), ("client_encoding", "UTF8"), ("integer_datetimes", "on")):
        welcome += message(b"S", name.encode() + b"\0" + value.encode() + b"\0")
    welcome += message(b"K", bytes(8)) + message(b"Z", b"I")
    async with answering(after_ssl_request(welcome)) as dsn:
        error = await refusal(dsn)
    assert "PostgreSQL 12" in str(error)


async def test_a_server_that_is_not_there_is_waited_for_until_the_deadline() -> None:
    error = await refusal(f"postgresql://streamhouse:{SECRET}@127.0.0.1:1/streamhouse", retry_deadline_ms=200)
    assert isinstance(error, MetadataUnavailable)
    assert "127.0.0.1:1/streamhouse" in str(error)


async def test_an_opening_gives_up_earlier_than_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """A person waits for a start. Within 15 s: the last try begins before the deadline and has a time limit itself."""
    assert database.TELL_WAITING_S <= 2
    assert database.OPEN_DEADLINE_S + database.CONNECT_TIMEOUT_S <= 15
    monkeypatch.setattr(database, "OPEN_DEADLINE_S", 0.2)
    an_hour_ms = 3_600_000
    error = await refusal(f"postgresql://streamhouse:{SECRET}@127.0.0.1:1/streamhouse", retry_deadline_ms=an_hour_ms)
    assert isinstance(error, MetadataUnavailable)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == database.__name__]


async def until_told(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(WAIT_S):
        while not told(caplog):  # noqa: ASYNC110  # a log has no event to wait for
            await asyncio.sleep(0.01)


async def test_a_wait_for_the_server_is_told_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "TELL_WAITING_S", 0.5)  # long enough for one refusal on a busy machine
    await refusal(f"postgresql://streamhouse:{SECRET}@127.0.0.1:1/streamhouse", retry_deadline_ms=2_500)
    assert told(caplog) == ["waiting for PostgreSQL at 127.0.0.1:1/streamhouse: connection refused"]


async def test_a_wait_for_a_silent_server_is_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "TELL_WAITING_S", 0.05)
    async with answering(lambda _received: b"") as dsn:
        store = new_store(dsn)
        opening = asyncio.create_task(store.open())
        await until_told(caplog)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
    (line,) = told(caplog)
    assert re.fullmatch(r"waiting for PostgreSQL at 127\.0\.0\.1:\d+/streamhouse: no answer yet", line)


async def test_a_wait_for_another_process_to_migrate_is_told(
    postgres_database: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "TELL_WAITING_S", 1.0)  # long enough to connect on a busy machine
    other = await asyncpg.connect(postgres_database)
    try:
        await other.execute("SELECT pg_advisory_lock($1, $2)", *migrate._LOCK)
        store = new_store(postgres_database)
        opening = asyncio.create_task(store.open())
        await until_told(caplog)
        assert not opening.done()
    finally:
        await other.close()
    await opening
    await store.close()
    (line,) = told(caplog)
    assert line.endswith(": its tables are being brought up to date, by this process or another")


async def test_an_opening_that_did_not_wait_tells_nothing_later(
    dsn: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    timers: list[asyncio.TimerHandle] = []

    def call_later(delay: float, callback: Callable[..., object], *args: object) -> asyncio.TimerHandle:
        handle = loop.call_at(loop.time() + delay, callback, *args)
        if delay == database.TELL_WAITING_S:
            timers.append(handle)
        return handle

    monkeypatch.setattr(loop, "call_later", call_later)
    monkeypatch.setattr(database, "TELL_WAITING_S", 61.5)
    store = new_store(dsn)
    await store.open()
    await store.close()
    (timer,) = timers
    assert timer.cancelled()
    assert told(caplog) == []


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)"), "connection refused"),
        (
            OSError(
                "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), "
                "[Errno 111] Connect call failed ('127.0.0.1', 1)"
            ),
            "connection refused",
        ),
        (OSError("Multiple exceptions: [Errno 101] a, [Errno 111] b"), "network is unreachable, connection refused"),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (TimeoutError(), "no answer"),
        (asyncpg.CannotConnectNowError("the database system is starting up"), "the database system is starting up"),
        (EOFError(), "EOFError"),
    ],
)
def test_why_a_connection_did_not_come_about_in_short(error: Exception, words: str) -> None:
    assert failures.in_short(error) == words


async def test_a_server_that_is_still_starting_is_waited_for(postgres_service: PostgresService, dsn: str) -> None:
    postgres_service.kill()
    store = new_store(dsn)
    opening = asyncio.create_task(store.open())
    await asyncio.to_thread(postgres_service.restart)
    await opening
    assert await store.list_topics() == []
    await store.close()


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@host:port/db",
        f"postgresql://u:{SECRET}/{SECRET}@host/db",
        f"postgresql://u:{SECRET}@127.0.0.1:1/db?sslmode=perhaps",
        f"mysql://u:{SECRET}@host/db",
    ],
)
async def test_a_malformed_url_is_refused_without_showing_its_password(url: str) -> None:
    error = await refusal(url, retry_deadline_ms=100)
    assert isinstance(error, ConfigError)


async def test_a_store_is_opened_once(store: PostgresMetadata) -> None:
    with pytest.raises(MetadataError, match="open already"):
        await store.open()


async def test_durable_even_where_the_database_is_not(
    dsn: str, open_store: Opener, operator: asyncpg.Connection
) -> None:
    """Whatever a role or a database defaults to, an answered commit survives a crash."""
    database = dsn.rpartition("/")[2]
    await operator.execute(f'ALTER DATABASE "{database}" SET synchronous_commit = off')
    await operator.execute(f"ALTER DATABASE \"{database}\" SET default_transaction_isolation = 'repeatable read'")
    store = await open_store()
    found = await store._database.fetchrow(
        "SELECT current_setting('synchronous_commit') AS sync, current_setting('transaction_isolation') AS isolation"
    )
    assert found is not None
    assert (found["sync"], found["isolation"]) == ("on", "read committed")
