"""The loops that delete rows past their time: batches, pauses, counts, errors (R5, R22)."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from streamhouse.app.log_parts import expiry_options
from streamhouse.app.platform import StreamHouse
from streamhouse.broker.broker_configs import describe_broker
from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import ConfigError, MetadataUnavailable
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.limits import RESUBMIT_MAX_AGE_MS
from streamhouse.core.randomness import SeededRandomness
from streamhouse.core.settings import resolve
from streamhouse.maintenance import background, expiry
from streamhouse.maintenance.expiry import ExpiryOptions, RowExpiry
from streamhouse.metadata.contract import HistoryPlace, HistorySweep
from streamhouse.wire.records import Record, build_batch

OPTIONS = ExpiryOptions(producer_idle_ms=86_400_000, commit_keep_ms=3_600_000)


class Rows:
    """A metadata store as far as the loops see it: how many rows are due, and how many rows the histories have."""

    def __init__(self, **due: int) -> None:
        self.due = due
        self.history_rows = due.pop("history_rows", 0)
        self.calls: list[tuple[str, int, int]] = []
        self.begun_after: list[HistoryPlace | None] = []
        self.failures: list[Exception] = []

    async def expire_producers(self, *, idle_ms: int, limit: int) -> int:
        return self._expire("producers", idle_ms, limit)

    async def expire_commits(self, *, keep_ms: int, limit: int) -> int:
        return self._expire("commits", keep_ms, limit)

    async def expire_agents(self, *, silent_ms: int, limit: int) -> list[str]:
        return [f"agent-{number}" for number in range(self._expire("agents", silent_ms, limit))]

    async def expire_flush_requests(self, *, keep_ms: int, limit: int) -> int:
        return self._expire("flush requests", keep_ms, limit)

    async def expire_epochs(self, *, keep_ms: int, limit: int, after: HistoryPlace | None) -> HistorySweep:
        self.begun_after.append(after)
        deleted = self._expire("epochs", keep_ms, 1)
        seen = (0 if after is None else after.epoch) + limit
        return HistorySweep(deleted=deleted, after=None if seen > self.history_rows else _place(seen))

    def _expire(self, what: str, age_ms: int, limit: int) -> int:
        if self.failures:
            raise self.failures.pop(0)
        self.calls.append((what, age_ms, limit))
        gone = min(self.due.get(what, 0), limit)
        self.due[what] = self.due.get(what, 0) - gone
        return gone


def _place(number: int) -> HistoryPlace:
    return HistoryPlace(key=PartitionKey(TopicId(UUID(int=1)), 0), epoch=number)


def collector(rows: Rows, report: Any = background.unheard) -> RowExpiry:
    return RowExpiry(metadata=rows, randomness=SeededRandomness(1), options=OPTIONS, report=report)  # type: ignore[arg-type]


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_PAUSE_S", "_FIRST_LOOK_S"):
        monkeypatch.setattr(expiry, name, 0.0)
    monkeypatch.setattr(expiry, "_RETRY", Backoff(first_ms=1, longest_ms=1))
    monkeypatch.setattr(background, "_PAUSE_S", 0.0)
    monkeypatch.setattr(expiry, "_ROWS_PER_BATCH", 10)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110 -- what it waits for is a step of a loop
            await asyncio.sleep(0)


@pytest.mark.usefixtures("at_once")
async def test_r22_all_that_is_due_goes_in_batches_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger=expiry.__name__)
    rows = Rows(producers=25, commits=10, agents=11, **{"flush requests": 3})
    loop = collector(rows)
    loop.start()
    await until(lambda: len(rows.calls) == 3 + 2 + 2 + 1 + 1)
    await loop.close()
    assert [call for call in rows.calls if call[0] == "producers"] == [("producers", 86_400_000, 10)] * 3
    assert [call for call in rows.calls if call[0] == "commits"] == [("commits", 3_600_000, 10)] * 2
    assert [call for call in rows.calls if call[0] == "agents"] == [("agents", 7 * 86_400_000, 10)] * 2
    assert [call for call in rows.calls if call[0] == "flush requests"] == [("flush requests", 3_600_000, 10)]
    stats = loop.stats
    assert (stats.producers, stats.commits, stats.agents, stats.flush_requests, stats.failures) == (25, 10, 11, 3, 0)
    told = sorted(record.getMessage() for record in caplog.records if record.name == expiry.__name__)
    assert told == [
        "deleted 10 append ids of commits older than 1h",
        "deleted 11 agents silent for more than 7d",
        "deleted 25 windows of producers idle for more than 1d",
        "deleted 3 flush requests that expired more than 1h ago",
    ]


@pytest.mark.usefixtures("at_once")
async def test_r22_a_sweep_over_the_histories_goes_on_where_the_last_batch_ended(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches that delete nothing do not end it, and a failure does not begin it anew."""
    caplog.set_level(logging.INFO, logger=expiry.__name__)
    monkeypatch.setattr(expiry, "_SLOW_INTERVAL_S", 0.0)
    rows = Rows(history_rows=35, epochs=2)
    loop = collector(rows)
    sweep = loop._sweeps()["epochs"]
    await loop._step(sweep)
    rows.failures = [MetadataUnavailable("away")]
    with pytest.raises(MetadataUnavailable):
        await loop._step(sweep)
    for _ in range(4):
        await loop._step(sweep)
    assert rows.begun_after == [None, _place(10), _place(10), _place(20), _place(30), None]
    assert rows.calls[0] == ("epochs", 7 * 86_400_000, 1)
    assert (loop.stats.epochs, loop.stats.failures) == (2, 1)
    assert [record.getMessage() for record in caplog.records if record.name == expiry.__name__] == [
        "deleted 2 leaderships that ended more than 7d ago"
    ]


@pytest.mark.usefixtures("at_once")
async def test_r22_a_store_that_is_away_is_told_and_tried_again() -> None:
    rows, told = Rows(producers=3), []
    errors = [MetadataUnavailable("away"), MetadataUnavailable("still away")]
    rows.failures = list(errors)
    loop = collector(rows, report=lambda where, error: told.append(error))
    loop.start()
    await until(lambda: loop.stats.producers == 3 and len(rows.calls) == 5 and len(told) == 7)
    await loop.close()
    assert loop.stats.failures == 2
    assert [error for error in told if error is not None] == errors


async def test_r22_it_pauses_between_batches_rests_after_a_sweep_and_backs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(expiry.asyncio, "sleep", sleep)
    rows = Rows(producers=2_500)
    loop = collector(rows)
    sweep = loop._sweeps()["producers"]
    sweep.pause_s = 30.0
    for _ in range(4):
        await loop._step(sweep)
    assert slept[:3] == [30.0, 0.1, 0.1]
    assert 300 <= slept[3] <= 600
    slept.clear()
    for _ in range(13):
        rows.failures = [MetadataUnavailable("away")]
        with pytest.raises(MetadataUnavailable):
            await loop._step(sweep)
    for tries, pause_s in enumerate(slept[1:]):
        longest_s = min(2.0**tries, 600.0)
        assert longest_s / 2 <= pause_s <= longest_s
    await loop._step(sweep)
    await loop._step(sweep)
    assert 300 <= slept[-1] <= 600, "it works again, and nothing is due"
    slow = loop._sweeps()["agents"]
    assert 30 <= slow.pause_s <= 60
    await loop._step(slow)
    assert 1_800 <= slow.pause_s <= 3_600


def test_r5_append_ids_must_outlive_what_may_be_submitted_again() -> None:
    with pytest.raises(ConfigError, match=r"kept for 10m .* come twice") as refused:
        ExpiryOptions(producer_idle_ms=1000, commit_keep_ms=RESUBMIT_MAX_AGE_MS)
    assert refused.value.hint == "set metadata.commit_retention to more than 10m"
    with pytest.raises(ConfigError, match="20m"):
        resolve(flags={"metadata.commit_retention": "10m"}).require()
    shortest = resolve(flags={"metadata.commit_retention": "20m"}).require().settings
    assert expiry_options(shortest).commit_keep_ms == 1_200_000
    assert expiry_options(resolve().require().settings).producer_idle_ms == 86_400_000


def test_r3_leaderships_must_outlive_what_may_be_submitted_again() -> None:
    with pytest.raises(ConfigError, match=r"kept for 10m after .* submitted again") as refused:
        ExpiryOptions(producer_idle_ms=1000, commit_keep_ms=3_600_000, epoch_keep_ms=RESUBMIT_MAX_AGE_MS)
    assert refused.value.hint == "keep them for more than 10m"


@pytest.mark.usefixtures("at_once")
async def test_r22_an_agent_deletes_leaderships_agents_and_requests_of_long_ago(tmp_path: Path) -> None:
    weeks_ago = "(SELECT clock_ms FROM store_info) - 15 * 86400000"
    for _ in range(3):
        async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
            metadata = sh.stores.metadata
            if not await metadata.list_topics():
                await sh.create_topic("t", 1)
            key = (await metadata.get_topic("t")).partition_keys()[0]
            async with asyncio.timeout(30):
                while sh.agent.log.partition(key) is None:  # noqa: ASYNC110 -- the agent opens it
                    await asyncio.sleep(0.01)
            await metadata.request_flush(UUID(int=7), [key], ttl_ms=1_000)
    with closing(sqlite3.connect(tmp_path / "metadata.db")) as database:
        (led,) = database.execute("SELECT count(*) FROM epoch_history").fetchone()
        assert led == 3
        database.execute(f"UPDATE epoch_history SET started_at = {weeks_ago}")
        database.execute(f"UPDATE flush_requests SET expires_at = {weeks_ago}")
        database.execute(
            f"INSERT INTO agents (agent_id, address, last_heartbeat, started_at) VALUES ('x', 'x:1', {weeks_ago}, 0)"
        )
        database.commit()
    async with StreamHouse.open(data_dir=str(tmp_path)) as sh:
        expired = sh.agent.expiry.stats
        await until(lambda: (expired.agents, expired.flush_requests, expired.epochs) == (1, 1, 2))
        assert [start.epoch for start in await sh.stores.metadata.epoch_history(key)] == [3, 4]
        assert [agent.agent_id for agent in await sh.stores.metadata.list_agents()] == [sh.agent.member.agent.agent_id]


@pytest.mark.usefixtures("at_once")
async def test_r22_an_agent_forgets_producers_by_its_setting_and_shows_it(tmp_path: Path) -> None:
    async with StreamHouse.open(data_dir=str(tmp_path), kafka_producer_id_expiration="3h") as sh:
        rows = {row.name: row.value for row in describe_broker(sh.settings, node_id=1, listeners="")}
        assert rows["producer.id.expiration.ms"] == str(3 * 3_600_000)
        key = (await sh.create_topic("t", 1)).partition_keys()[0]
        record = build_batch([Record(value=b"v", timestamp_ms=1)], producer_id=7, producer_epoch=0, base_sequence=0)
        await sh.agent.log.append(key, record, acks=-1).done
    with closing(sqlite3.connect(tmp_path / "metadata.db")) as database:
        database.execute("UPDATE producer_windows SET updated_at = updated_at - ?", (3 * 3_600_000,))
        database.commit()
    async with StreamHouse.open(data_dir=str(tmp_path), kafka_producer_id_expiration="3h") as sh:
        led = sh.agent.log.partition(key)
        assert led is not None
        assert (len(led.producers.windows), led.producers.forgotten_up_to >= 0) == (0, True)
        async with asyncio.timeout(30):
            while (await sh.stores.metadata.load_producers([key]))[key].states:  # noqa: ASYNC110 -- a loop deletes them
                await asyncio.sleep(0.01)
