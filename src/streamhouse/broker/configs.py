"""Configs of topics, agents and groups: described for all three, changed for topics only.

Kafka's four ways to change a config are here once: set, delete (back to the default), append to and subtract from a
list. A change is checked as a whole before any of it is stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from streamhouse.broker.broker_configs import describe_broker, describe_group
from streamhouse.broker.caller import Caller
from streamhouse.broker.cluster_view import ClusterView
from streamhouse.core import topic_config
from streamhouse.core.errors import Conflict, InvalidRequest, InvalidTopicConfig
from streamhouse.core.settings import Settings
from streamhouse.core.topic_config import TOPIC_CONFIGS, ConfigType, Description
from streamhouse.metadata.contract import MetadataStore, Topic

_MAX_TRIES: Final = 5  # another process changes the same topic at the same moment; more often is no accident


class ConfigOperation(IntEnum):
    """Kafka's codes."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    name: str
    change: ConfigOperation
    value: str | None
    """None only to delete."""


class Configs:
    def __init__(self, *, metadata: MetadataStore, view: ClusterView, settings: Settings) -> None:
        self._metadata = metadata
        self._view = view
        self._settings = settings

    async def describe_topic(self, name: str, *, caller: Caller) -> list[Description]:
        """Raises TopicNotFound, InvalidTopicName."""
        return topic_config.describe((await self._fresh(name)).configs)

    def describe_broker(self, name: str, *, listener: str, caller: Caller) -> list[Description]:
        """``name``: this agent's node id; empty for what holds for all agents, of which nothing can be set here.

        Raises InvalidRequest.
        """
        if not name:
            return []
        self._check_own_id(name)
        me = next((node for node in self._view.nodes() if node.node_id == self._view.node_id), None)
        assert me is not None, "an agent that serves requests is in its own view"
        endpoint = self._view.endpoint(me, listener)
        return describe_broker(
            self._settings, node_id=self._view.node_id, listeners=f"PLAINTEXT://{endpoint.host}:{endpoint.port}"
        )

    def describe_group(self, *, caller: Caller) -> list[Description]:
        """The same for every group, whether it exists or not."""
        return describe_group(self._settings)

    async def alter_topic(
        self, name: str, changes: Sequence[ConfigChange], *, caller: Caller, validate_only: bool = False
    ) -> None:
        """Raises TopicNotFound, InvalidTopicConfig, InvalidRequest (the same config twice)."""
        names = [change.name for change in changes]
        if len(set(names)) != len(names):
            raise InvalidRequest(f"topic {name}: a config is changed twice in one request", hint="send one change each")
        for left in reversed(range(_MAX_TRIES)):
            topic = await self._fresh(name)
            set_configs = {
                change.name: _new_value(topic, change)
                for change in changes
                if change.change is not ConfigOperation.DELETE
            }
            deleted = [change.name for change in changes if change.change is ConfigOperation.DELETE]
            try:
                await self._store(topic, set_configs, deleted, validate_only=validate_only)
                return
            except Conflict:
                if not left:
                    raise

    async def replace_topic(
        self, name: str, configs: Mapping[str, str], *, caller: Caller, validate_only: bool = False
    ) -> None:
        """All of them at once: what is not named goes back to its default."""
        for left in reversed(range(_MAX_TRIES)):
            topic = await self._fresh(name)
            try:
                await self._store(
                    topic, configs, [each for each in topic.configs if each not in configs], validate_only=validate_only
                )
                return
            except Conflict:
                if not left:
                    raise

    def refuse_broker_change(self, name: str, *, caller: Caller) -> None:
        """Always raises: a setting is given when a process starts."""
        if name:
            self._check_own_id(name)
        raise InvalidRequest(
            "settings of an agent cannot be changed while it runs",
            hint="give them as flags, STREAMHOUSE_… variables or in streamhouse.toml, and start it anew",
        )

    def refuse_group_change(self, *, caller: Caller) -> None:
        """Always raises."""
        raise InvalidRequest(
            "configs of a single group cannot be changed", hint="the settings group.* hold for all groups"
        )

    async def _fresh(self, name: str) -> Topic:
        topic = await self._metadata.get_topic(name)
        self._view.learned(topic)
        return topic

    async def _store(
        self, topic: Topic, set_configs: Mapping[str, str], deleted: Sequence[str], *, validate_only: bool
    ) -> None:
        after = topic_config.validate_change(topic.configs, set_configs, deleted)
        if validate_only:
            return
        changed = await self._metadata.alter_topic_configs(
            topic.topic_id,
            set_configs={name: after[name] for name in set_configs},
            delete_configs=list(deleted),
            expected_version=topic.version,
        )
        self._view.learned(changed)

    def _check_own_id(self, name: str) -> None:
        if name != str(self._view.node_id):
            raise InvalidRequest(
                f"this is broker {self._view.node_id}, not {name[:100]!r}", hint="send the request to that broker"
            )


def _new_value(topic: Topic, change: ConfigChange) -> str:
    if change.value is None:
        raise InvalidRequest(f"topic {topic.name}: {change.name[:100]!r} is set to nothing", hint="delete it instead")
    if change.change is ConfigOperation.SET:
        return change.value
    key = TOPIC_CONFIGS.get(change.name)
    if key is None or key.type is not ConfigType.LIST:
        raise InvalidTopicConfig(
            f"topic {topic.name}: {change.name[:100]!r} is no list, nothing can be added to or taken from it",
            hint="set it instead",
        )
    present = [item for item in topic.configs.get(key.name, key.default).split(",") if item]
    items = [item.strip() for item in change.value.split(",") if item.strip()]
    if change.change is ConfigOperation.APPEND:
        return ",".join([*present, *(item for item in items if item not in present)])
    return ",".join(item for item in present if item not in items)
