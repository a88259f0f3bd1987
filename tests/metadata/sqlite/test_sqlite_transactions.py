"""Steps in one transaction: shared, undone one by one, run again alone when the whole breaks, and bounded in bulk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import InvalidRequest, MetadataDamaged, MetadataError, TopicNotFound
from streamhouse.metadata.contract import Change, ChangeKind
from streamhouse.metadata.sqlite.clock import StoreClock
from streamhouse.metadata.sqlite.connections import MEMORY, Busy, connect
from streamhouse.metadata.sqlite.transactions import Job, Tx, run_jobs, run_read

WHERE = "the test's file"
WALL_MS = 1_000_000


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    opened = connect(MEMORY, busy_timeout_ms=0)
    opened.execute("CREATE TABLE store_info (clock_ms INTEGER NOT NULL)")
    opened.execute("INSERT INTO store_info VALUES (0)")
    opened.execute("CREATE TABLE numbers (n INTEGER PRIMARY KEY, text TEXT)")
    yield opened
    opened.close()


@pytest.fixture
def clock() -> StoreClock:
    return StoreClock(ManualClock(wall_ms=WALL_MS))


def insert(*numbers: int) -> Job[int]:
    return Job(lambda tx: tx.run_many("INSERT INTO numbers (n) VALUES (?)", [(n,) for n in numbers]))


def stored(connection: sqlite3.Connection) -> list[int]:
    return [n for (n,) in connection.execute("SELECT n FROM numbers ORDER BY n")]


def test_jobs_share_one_transaction_and_each_has_its_own_result(
    connection: sqlite3.Connection, clock: StoreClock
) -> None:
    ran: list[str] = []
    connection.set_trace_callback(ran.append)
    jobs = [insert(1), insert(2, 3), Job(lambda tx: tx.value("SELECT count(*) FROM numbers"))]
    run_jobs(connection, clock, jobs, WHERE)
    connection.set_trace_callback(None)
    assert [job.outcome() for job in jobs] == [1, 2, 3]
    assert ran.count("COMMIT") == 1


def test_a_job_that_is_refused_undoes_itself_only_and_announces_nothing(
    connection: sqlite3.Connection, clock: StoreClock
) -> None:
    def refused(tx: Tx) -> None:
        tx.run("INSERT INTO numbers (n) VALUES (7)")
        tx.notify(Change(kind=ChangeKind.ANY))
        raise TopicNotFound("no")

    def told(tx: Tx) -> None:
        tx.notify(Change(kind=ChangeKind.TOPICS))

    jobs: list[Job[object]] = [insert(1), Job(refused), Job(told)]  # type: ignore[list-item]
    run_jobs(connection, clock, jobs, WHERE)
    assert stored(connection) == [1]
    with pytest.raises(TopicNotFound):
        jobs[1].outcome()
    assert jobs[1].changes == []
    assert [change.kind for change in jobs[2].changes] == [ChangeKind.TOPICS]


def test_when_the_transaction_breaks_each_job_is_run_again_alone(
    connection: sqlite3.Connection, clock: StoreClock
) -> None:
    jobs = [insert(1), insert(2, 2), insert(3)]
    run_jobs(connection, clock, jobs, WHERE)
    assert stored(connection) == [1, 3]
    with pytest.raises(MetadataError, match=f"{WHERE} refused a statement: UNIQUE"):
        jobs[1].outcome()
    assert not connection.in_transaction


def test_a_busy_store_fails_all_and_runs_none_again(connection: sqlite3.Connection, clock: StoreClock) -> None:
    runs = []

    def busy(tx: Tx) -> None:
        runs.append(1)
        error = sqlite3.OperationalError("database is locked")
        error.sqlite_errorcode = sqlite3.SQLITE_BUSY
        raise error

    jobs: list[Job[object]] = [insert(1), Job(busy)]  # type: ignore[list-item]
    run_jobs(connection, clock, jobs, WHERE)
    assert [type(job.error) for job in jobs] == [Busy, Busy]
    assert runs == [1]
    assert stored(connection) == []


@pytest.mark.parametrize("value", [2**63, "\ud800"])
def test_a_value_that_cannot_be_stored_is_the_callers_fault(
    connection: sqlite3.Connection, clock: StoreClock, value: object
) -> None:
    job = Job(lambda tx: tx.run("INSERT INTO numbers (n, text) VALUES (1, ?)", (value,)))
    run_jobs(connection, clock, [insert(5), job], WHERE)
    with pytest.raises(InvalidRequest, match="cannot be stored"):
        job.outcome()
    assert stored(connection) == [5]
    with pytest.raises(InvalidRequest, match="cannot be stored"):
        run_read(connection, clock, lambda tx: tx.row("SELECT ?", (value,)), WHERE)


def test_a_step_sees_the_stores_time_which_is_stored_and_never_goes_back(
    connection: sqlite3.Connection, clock: StoreClock
) -> None:
    seen: Job[int] = Job(lambda tx: tx.now_ms)
    run_jobs(connection, clock, [seen], WHERE)
    assert seen.outcome() == WALL_MS
    assert connection.execute("SELECT clock_ms FROM store_info").fetchone()[0] == WALL_MS
    connection.execute("UPDATE store_info SET clock_ms = ?", (WALL_MS + 500,))
    assert run_read(connection, clock, lambda tx: tx.now_ms, WHERE) == WALL_MS + 500


def test_a_store_without_its_identity_is_damaged(connection: sqlite3.Connection, clock: StoreClock) -> None:
    connection.execute("DELETE FROM store_info")
    job = insert(1)
    run_jobs(connection, clock, [job], WHERE)
    with pytest.raises(MetadataDamaged, match="no identity row"):
        job.outcome()
    assert stored(connection) == []


@pytest.mark.parametrize("count", [0, 1, 3, 256, 700])
def test_many_rows_go_in_few_statements_and_none_is_left_out(
    connection: sqlite3.Connection, clock: StoreClock, count: int
) -> None:
    rows = [(n, f"t{n}") for n in range(count)]
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    job = Job(lambda tx: tx.run_rows("INSERT INTO numbers (n, text) VALUES {rows}", rows))
    run_jobs(connection, clock, [job], WHERE)
    connection.set_trace_callback(None)
    assert job.outcome() == count
    assert stored(connection) == list(range(count))
    assert len([one for one in statements if one.startswith("INSERT")]) <= count // 256 + 8
    asked = "SELECT json_group_array(json_array(column1, column2)) FROM (VALUES {rows})"
    assert run_read(connection, clock, lambda tx: tx.json_rows(asked, rows), WHERE) == [list(row) for row in rows]


def test_a_read_leaves_no_transaction_whatever_its_step_does(connection: sqlite3.Connection, clock: StoreClock) -> None:
    with pytest.raises(MetadataError, match="no such table"):
        run_read(connection, clock, lambda tx: tx.rows("SELECT * FROM none_such"), WHERE)
    assert not connection.in_transaction
    assert run_read(connection, clock, lambda tx: tx.value("SELECT n FROM numbers"), WHERE) is None
