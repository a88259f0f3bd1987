"""Configs of topics through the broker, without any protocol."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from streamhouse import StreamHouse
from streamhouse.broker.broker import Broker
from streamhouse.broker.caller import Caller
from streamhouse.broker.configs import ConfigChange, ConfigOperation
from streamhouse.broker.topics import WantedTopic
from streamhouse.core.errors import (
    InvalidRequest,
    InvalidTopicConfig,
    TopicNotFound,
)

CALLER = Caller(protocol="test")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with StreamHouse.open(data_dir=str(tmp_path), wal_file_bytes="1MiB") as sh:
        await sh.broker.topics.create(WantedTopic(name="t", partition_count=1, configs={}), caller=CALLER)
        yield sh.broker


async def value_of(broker: Broker, name: str) -> str | None:
    return {row.name: row.value for row in await broker.configs.describe_topic("t", caller=CALLER)}[name]


async def test_a_config_is_set_and_goes_back_to_its_default(broker: Broker) -> None:
    default = await value_of(broker, "max.message.bytes")
    change = ConfigChange(name="max.message.bytes", change=ConfigOperation.SET, value="500")
    await broker.configs.alter_topic("t", [change], caller=CALLER, validate_only=True)
    assert await value_of(broker, "max.message.bytes") == default
    await broker.configs.alter_topic("t", [change], caller=CALLER)
    assert await value_of(broker, "max.message.bytes") == "500"
    back = ConfigChange(name="max.message.bytes", change=ConfigOperation.DELETE, value=None)
    await broker.configs.alter_topic("t", [back], caller=CALLER)
    assert await value_of(broker, "max.message.bytes") == default


async def test_a_wrong_change_changes_nothing(broker: Broker) -> None:
    good = ConfigChange(name="max.message.bytes", change=ConfigOperation.SET, value="500")
    for bad in (
        ConfigChange(name="max.message.bites", change=ConfigOperation.SET, value="1"),
        ConfigChange(name="retention.ms", change=ConfigOperation.SET, value="soon"),
    ):
        with pytest.raises(InvalidTopicConfig):
            await broker.configs.alter_topic("t", [good, bad], caller=CALLER)
    assert await value_of(broker, "max.message.bytes") != "500"
    with pytest.raises(TopicNotFound):
        await broker.configs.alter_topic("other", [good], caller=CALLER)


async def test_settings_of_agents_and_groups_cannot_be_changed(broker: Broker) -> None:
    with pytest.raises(InvalidRequest, match="while it runs"):
        broker.configs.refuse_broker_change("", caller=CALLER)
    with pytest.raises(InvalidRequest, match="single group"):
        broker.configs.refuse_group_change(caller=CALLER)
