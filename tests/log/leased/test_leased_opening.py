"""What a new leader loads before it serves, and the epochs that it does not lead a second time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from node import Stage, settle

from streamhouse.core.errors import (
    NotLeader,
)
from streamhouse.core.ids import PartitionKey
from streamhouse.log.leased import opening
from streamhouse.metadata.contract import (
    MetadataStore,
)


async def test_an_epoch_is_led_once(tmp_path: Path) -> None:
    """A commit of the ended leadership may still be under way; only a higher epoch settles what it did."""
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(), await stage.node()
        (key,) = topic.partition_keys()
        lease = await node.lead(topic)
        node.log.drop_partition(key, "test")
        with pytest.raises(NotLeader, match="led here already"):
            await node.log.open_partition(lease, topic, guard=node.guards[key])


async def test_the_memory_of_led_epochs_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening, "_MAX_REMEMBERED_EPOCHS", 2)
    async with Stage(tmp_path) as stage:
        topic, node = await stage.cluster.topic(partitions=3), await stage.node()
        leases = [await node.lead(topic, key.partition) for key in topic.partition_keys()]
        assert len(node.log._openings._led_epochs) == 2
        last = topic.partition_keys()[2]
        node.log.drop_partition(last, "test")
        with pytest.raises(NotLeader, match="led here already"):
            await node.log.open_partition(leases[2], topic, guard=node.guards[last])


class SlowProducers:
    """Metadata that takes its time for the producers' windows."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner = inner
        self.answers = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def load_producers(self, keys: Sequence[PartitionKey], **how: Any) -> Any:
        await self.answers.wait()
        return await self._inner.load_producers(keys, **how)


async def test_a_config_that_changes_while_a_partition_is_opened_holds_afterwards(tmp_path: Path) -> None:
    async with Stage(tmp_path) as stage:
        topic = await stage.cluster.topic()
        metadata = SlowProducers(stage.cluster.metadata)
        node = await stage.node(metadata=metadata)
        (key,) = topic.partition_keys()
        opening = asyncio.create_task(node.lead(topic))
        await settle()
        changed = await stage.cluster.metadata.alter_topic_configs(
            topic.topic_id, set_configs={"max.message.bytes": "500"}
        )
        node.log.configure(changed)
        metadata.answers.set()
        await opening
        led = node.log.partition(key)
        assert led is not None
        assert led.config.max_message_bytes == 500, "by which the broker judges the next batch"
