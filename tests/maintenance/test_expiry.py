"""The loop that deletes idle producers and old append ids: batches, pauses, counts, errors (R5, R22)."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from streamhouse.app.log_parts import expiry_options
from streamhouse.app.platform import StreamHouse
from streamhouse.broker.broker_configs import describe_broker
from streamhouse.core.backoff import Backoff
from streamhouse.core.errors import ConfigError, MetadataUnavailable
from streamhouse.core.limits import RESUBMIT_MAX_AGE_MS
from streamhouse.core.randomness import SeededRandomness
from streamhouse.core.settings import resolve
from streamhouse.maintenance import background, expiry
from streamhouse.maintenance.expiry import ExpiryOptions, RowExpiry
from streamhouse.wire.records import Record, build_batch

OPTIONS = ExpiryOptions(producer_idle_ms=86_400_000, commit_keep_ms=3_600_000)


class Rows:
    """A metadata store as far as the loop sees it: how many rows are due."""

    def __init__(self, *, producers: int = 0, commits: int = 0) -> None:
        self.due = {"producers": producers, "commits": commits}
        self.calls: list[tuple[str, int, int]] = []
        self.failures: list[Exception] = []

    async def expire_producers(self, *, idle_ms: int, limit: int) -> int:
        return self._expire("producers", idle_ms, limit)

    async def expire_commits(self, *, keep_ms: int, limit: int) -> int:
        return self._expire("commits", keep_ms, limit)

    def _expire(self, what: str, age_ms: int, limit: int) -> int:
        if self.failures:
            raise self.failures.pop(0)
        self.calls.append((what, age_ms, limit))
        gone = min(self.due[what], limit)
        self.due[what] -= gone
        return gone


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
    rows = Rows(producers=25, commits=10)
    loop = collector(rows)
    loop.start()
    await until(lambda: len(rows.calls) == 5)
    await loop.close()
    assert [call for call in rows.calls if call[0] == "producers"] == [("producers", 86_400_000, 10)] * 3
    assert [call for call in rows.calls if call[0] == "commits"] == [("commits", 3_600_000, 10)] * 2
    assert (loop.stats.producers, loop.stats.commits, loop.stats.failures) == (25, 10, 0)
    told = sorted(record.getMessage() for record in caplog.records if record.name == expiry.__name__)
    assert told == [
        "deleted 10 append ids of commits older than 1h",
        "deleted 25 windows of producers idle for more than 1d",
    ]


@pytest.mark.usefixtures("at_once")
async def test_r22_a_store_that_is_away_is_told_and_tried_again() -> None:
    rows, told = Rows(producers=3), []
    errors = [MetadataUnavailable("away"), MetadataUnavailable("still away")]
    rows.failures = list(errors)
    loop = collector(rows, report=lambda where, error: told.append(error))
    loop.start()
    await until(lambda: loop.stats.producers == 3 and len(rows.calls) == 2 and len(told) == 4)
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
    sweep = expiry._Sweep(what="rows", delete=loop._delete_producers, pause_s=30.0)
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


def test_r5_append_ids_must_outlive_what_may_be_submitted_again() -> None:
    with pytest.raises(ConfigError, match=r"kept for 10m .* come twice") as refused:
        ExpiryOptions(producer_idle_ms=1000, commit_keep_ms=RESUBMIT_MAX_AGE_MS)
    assert refused.value.hint == "set metadata.commit_retention to more than 10m"
    with pytest.raises(ConfigError, match="20m"):
        resolve(flags={"metadata.commit_retention": "10m"}).require()
    shortest = resolve(flags={"metadata.commit_retention": "20m"}).require().settings
    assert expiry_options(shortest).commit_keep_ms == 1_200_000
    assert expiry_options(resolve().require().settings).producer_idle_ms == 86_400_000


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
