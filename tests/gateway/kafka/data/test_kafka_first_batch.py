"""A new idempotent producer whose first batch finds no room, while smaller ones behind it would (R21)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from confluent_kafka import Message, Producer

from streamhouse import StreamHouse
from streamhouse.broker import produce

ROUNDS = 3
SMALL = 4
BIG_BYTES = 300_000


async def test_r21_an_acknowledged_first_batch_is_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five batches in flight from the start, as librdkafka sends them. It counts 46 as delivered: the old code answered
    the retry of the first batch with 46 after it had taken the second, and the record was nowhere."""
    monkeypatch.setattr(produce, "MAX_WAIT_S", 0.2)
    async with StreamHouse.open(
        data_dir=str(tmp_path), kafka_enabled=True, kafka_listen="127.0.0.1:0", memory_write_buffer_bytes="2MiB"
    ) as sh:
        await sh.create_topic("t", 1)
        budget = sh.agent.log._budget
        for turn in range(ROUNDS):
            acknowledged: dict[bytes, int] = {}
            failed: list[str] = []

            def told(
                error: object,
                message: Message,
                acknowledged: dict[bytes, int] = acknowledged,
                failed: list[str] = failed,
            ) -> None:
                if error is None:
                    acknowledged[(message.value() or b"")[:9]] = message.offset() or 0
                else:
                    failed.append(str(error))

            producer = Producer(
                {
                    "bootstrap.servers": sh.kafka_addresses[0],
                    "enable.idempotence": True,
                    "linger.ms": 0,
                    "batch.num.messages": 1,
                    "log_level": 0,
                }
            )
            await asyncio.to_thread(producer.list_topics, "t", 10)
            held = budget.max_bytes - BIG_BYTES // 2
            budget.held_bytes += held  # as if another partition's batches waited for the object store
            producer.produce("t", f"{turn}-big----".encode().ljust(BIG_BYTES, b"."), partition=0, on_delivery=told)
            for number in range(SMALL):
                producer.produce("t", f"{turn}-small{number}-".encode(), partition=0, on_delivery=told)
            await asyncio.to_thread(producer.poll, 1.0)
            assert not acknowledged, "a small batch has overtaken the big one"
            budget.held_bytes -= held
            assert await asyncio.to_thread(producer.flush, 60) == 0
            assert not failed
            expected = [f"{turn}-big----".encode(), *(f"{turn}-small{number}-".encode() for number in range(SMALL))]
            first = turn * (SMALL + 1)
            assert acknowledged == {value: first + place for place, value in enumerate(expected)}
            records = await sh.read("t", 0, first)
            assert [(record.offset, (record.value or b"")[:9]) for record in records] == [
                (first + place, value) for place, value in enumerate(expected)
            ]
