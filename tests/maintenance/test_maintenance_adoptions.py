"""Uploads of Spark sinks: when an agent looks for them, in which order it adopts them, what a failure holds up (R13).

In virtual time, with an adoption whose outcome the test decides. tests/log/leased/ adopts real uploads.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from streamhouse.core.errors import BackPressureRejected, CorruptBlob, NotLeader
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.log.leased.adoption import Share
from streamhouse.maintenance.adoptions import Adoptions
from streamhouse.metadata.contract import (
    KAFKA_BATCHES,
    Change,
    ChangeKind,
    Intent,
    IntentKey,
    IntentSlice,
    ObjectRef,
)
from virtual_time import LoopClock, run_virtually

TOPIC = TopicId(UUID(int=1))
OBJECT = ObjectRef(key="shared/blob", size_bytes=100, created_at_ms=0)
AWAY = BackPressureRejected("the object store is away")
TORN = CorruptBlob("the blob is torn")


class Uploads:
    """The intents in the metadata, and this agent's log, as far as the loop sees them."""

    def __init__(self) -> None:
        self.open: dict[tuple[IntentKey, int], Intent] = {}
        self.led: set[PartitionKey] = set()
        self.changes: asyncio.Queue[Change] = asyncio.Queue()
        self.opened = asyncio.Event()
        self.looks_s: list[float] = []

    def add(self, query: str, batch_id: int, *partitions: int) -> IntentKey:
        key = IntentKey(query_id=query, topic_id=TOPIC, batch_id=batch_id)
        slices = tuple(
            IntentSlice(
                partition=partition,
                object=OBJECT,
                byte_offset=0,
                byte_length=10,
                record_count=1,
                encoding=KAFKA_BATCHES,
                min_timestamp_ms=0,
                max_timestamp_ms=0,
            )
            for partition in partitions
        )
        for partition in partitions:
            self.open[key, partition] = Intent(key=key, slices=slices)
        return key

    def tell(self) -> None:
        self.changes.put_nowait(Change(kind=ChangeKind.INTENTS))

    def lead(self, *partitions: int) -> None:
        self.led = {PartitionKey(TOPIC, partition) for partition in partitions}

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[AsyncIterator[Change]]:
        async def heard() -> AsyncIterator[Change]:
            while True:
                yield await self.changes.get()

        yield heard()

    async def list_unadopted(self, keys: list[PartitionKey]) -> list[tuple[IntentKey, int]]:
        self.looks_s.append(asyncio.get_running_loop().time())
        return [todo for todo in self.open if PartitionKey(TOPIC, todo[1]) in keys]

    async def get_intent(self, key: IntentKey) -> Intent | None:
        return next((intent for intent in self.open.values() if intent.key == key), None)

    def led_keys(self) -> set[PartitionKey]:
        return self.led

    async def wait_any_opened(self) -> None:
        await self.opened.wait()
        self.opened.clear()


class Scripted:
    """An adoption that fails as the test says, and takes a while."""

    def __init__(self, uploads: Uploads) -> None:
        self._uploads = uploads
        self.verify_errors: dict[str, list[Exception]] = {}
        self.adopt_errors: dict[str, list[Exception]] = {}
        self.takes_s = 0.1
        self.at_a_time = self.most_at_a_time = 0
        self.verified: list[tuple[str, int]] = []
        self.adopted: list[tuple[str, int, int]] = []
        self.tried_s: list[float] = []

    async def verify(self, share: Share) -> None:
        self.verified.append((share.intent.query_id, share.partition))
        self._fail(self.verify_errors, share)

    async def adopt(self, share: Share) -> None:
        self.tried_s.append(asyncio.get_running_loop().time())
        self.at_a_time += 1
        self.most_at_a_time = max(self.most_at_a_time, self.at_a_time)
        try:
            await asyncio.sleep(self.takes_s)
            self._fail(self.adopt_errors, share)
        finally:
            self.at_a_time -= 1
        del self._uploads.open[share.intent, share.partition]
        self.adopted.append((share.intent.query_id, share.intent.batch_id, share.partition))

    @staticmethod
    def _fail(errors: dict[str, list[Exception]], share: Share) -> None:
        waiting = errors.get(share.intent.query_id)
        if waiting:
            raise waiting.pop(0)


Story = Callable[[Uploads, Scripted, list[Exception | None]], Awaitable[None]]


def play(story: Story) -> None:
    """``health``: what the loop reported of adoptions, in order."""

    async def run() -> None:
        uploads, health = Uploads(), []
        adoption = Scripted(uploads)
        either: Any = uploads
        adoptions = Adoptions(
            adoption=adoption,  # type: ignore[arg-type]
            metadata=either,
            log=either,
            clock=LoopClock(),
            report=lambda where, error: health.append(error) if where == "adoption" else None,
        )
        adoptions.start()
        await asyncio.sleep(1)
        try:
            await story(uploads, adoption, health)
        finally:
            await adoptions.close()

    run_virtually(run())


def test_a_partition_adopts_in_the_order_of_registration_and_partitions_do_not_wait_for_each_other() -> None:
    async def story(uploads: Uploads, adoption: Scripted, health: list[Exception | None]) -> None:
        uploads.lead(0, 1)
        for batch_id in range(3):
            uploads.add("q", batch_id, 0, 1)
        uploads.tell()
        await asyncio.sleep(0.5)
        for partition in (0, 1):
            assert [each for each in adoption.adopted if each[2] == partition] == [
                ("q", batch_id, partition) for batch_id in range(3)
            ]
        assert adoption.most_at_a_time == 2

    play(story)


def test_what_another_agent_leads_is_left_to_it() -> None:
    async def story(uploads: Uploads, adoption: Scripted, health: list[Exception | None]) -> None:
        uploads.lead(1)
        uploads.add("q", 0, 0, 1)
        uploads.tell()
        await asyncio.sleep(30)
        assert adoption.adopted == [("q", 0, 1)]

    play(story)


def test_a_partition_that_is_opened_here_is_looked_at_without_a_notification() -> None:
    async def story(uploads: Uploads, adoption: Scripted, health: list[Exception | None]) -> None:
        uploads.add("q", 0, 0)
        uploads.lead(0)
        uploads.opened.set()
        await asyncio.sleep(0.5)
        assert adoption.adopted == [("q", 0, 0)]

    play(story)


def test_an_upload_is_found_within_ten_seconds_when_its_notification_was_lost() -> None:
    async def story(uploads: Uploads, adoption: Scripted, health: list[Exception | None]) -> None:
        uploads.lead(0)
        await asyncio.sleep(15)
        uploads.add("q", 0, 0)
        await asyncio.sleep(10.5)
        assert adoption.adopted == [("q", 0, 0)]
        assert len(uploads.looks_s) < 10, "and it does not look all the time"

    play(story)


def test_a_failure_holds_up_its_own_query_only_and_shows_in_the_health_until_it_is_over() -> None:
    async def story(uploads: Uploads, adoption: Scripted, health: list[Exception | None]) -> None:
        uploads.lead(0)
        adoption.verify_errors["bad"] = [TORN] * 3
        uploads.add("bad", 7, 0)
        uploads.add("good", 1, 0)
        uploads.tell()
        await asyncio.sleep(0.3)
        assert adoption.adopted == [("good", 1, 0)]
        assert "batch 7 of query bad cannot be adopted for partition 0" in str(health[-1])
        assert "torn" in str(health[-1])
        await asyncio.sleep(30)
        assert adoption.adopted == [("good", 1, 0), ("bad", 7, 0)]
        assert health[-1] is None

    play(story)


def test_a_failed_adoption_is_tried_again_with_a_backoff_and_not_verified_again() -> None:
    async def story(uploads: Uploads, adoption: Scripted, health: list[Exception | None]) -> None:
        uploads.lead(0)
        adoption.takes_s = 0.0
        adoption.adopt_errors["q"] = [AWAY] * 4
        uploads.add("q", 0, 0)
        uploads.tell()
        await asyncio.sleep(30)
        assert adoption.adopted == [("q", 0, 0)]
        assert adoption.verified == [("q", 0)]
        pauses_s = [after - before for before, after in zip(adoption.tried_s, adoption.tried_s[1:], strict=False)]
        assert pauses_s == pytest.approx([0.5, 1.0, 2.0, 4.0], abs=0.1)

    play(story)


def test_a_partition_that_is_led_elsewhere_by_now_is_no_failure_and_ends_its_work() -> None:
    async def story(uploads: Uploads, adoption: Scripted, health: list[Exception | None]) -> None:
        uploads.lead(0)
        uploads.add("first", 0, 0)
        uploads.add("second", 0, 0)
        adoption.adopt_errors["first"] = [NotLeader("t/0", current_leader="b")]
        uploads.tell()
        await asyncio.sleep(0.05)
        uploads.lead()  # while the first is being adopted
        await asyncio.sleep(20)
        assert adoption.adopted == []
        assert len(adoption.tried_s) == 1, "the second share was not tried"
        assert health == []

    play(story)


def test_a_failure_is_forgotten_when_another_agent_has_adopted_the_upload() -> None:
    async def story(uploads: Uploads, adoption: Scripted, health: list[Exception | None]) -> None:
        uploads.lead(0, 1)
        adoption.verify_errors["q"] = [TORN] * 1_000
        uploads.add("q", 0, 0, 1)
        uploads.tell()
        await asyncio.sleep(1)
        assert "(and 1 more)" in str(health[-1])
        uploads.open.clear()
        await asyncio.sleep(20)
        assert health[-1] is None

    play(story)


@pytest.mark.parametrize(("error", "tries"), [(AWAY, 3), (TORN, 1)], ids=["passes", "stays"])
def test_an_error_that_passes_by_itself_is_logged_from_the_third_try_on(
    error: Exception, tries: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, logger="streamhouse.maintenance.adoptions")

    async def story(uploads: Uploads, adoption: Scripted, health: list[Exception | None]) -> None:
        uploads.lead(0)
        adoption.verify_errors["q"] = [error] * tries
        uploads.add("q", 4, 0)
        uploads.tell()
        await asyncio.sleep(30)
        assert adoption.adopted == [("q", 4, 0)]

    play(story)
    (line,) = caplog.messages
    assert line.startswith("batch 4 of query q cannot be adopted for ")


def test_at_most_16_uploads_are_adopted_at_a_time() -> None:
    async def story(uploads: Uploads, adoption: Scripted, health: list[Exception | None]) -> None:
        uploads.lead(*range(40))
        uploads.add("q", 0, *range(40))
        uploads.tell()
        await asyncio.sleep(2)
        assert len(adoption.adopted) == 40
        assert adoption.most_at_a_time == 16

    play(story)
