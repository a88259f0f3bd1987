"""The broker: everything a front door may ask for, in one place. Decides nothing itself; app/ puts it together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from streamhouse.broker.cluster_view import ClusterView
from streamhouse.broker.configs import Configs
from streamhouse.broker.producer_ids import ProducerIds
from streamhouse.broker.topics import TopicAdmin
from streamhouse.core.clock import Clock
from streamhouse.core.settings import Settings

if TYPE_CHECKING:
    from streamhouse.broker.groups.coordinator import GroupCoordinator
    from streamhouse.broker.produce import Produce
    from streamhouse.broker.reads import Reads
    from streamhouse.broker.writes import Writes


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """The metadata store is behind these parts and never handed out: a door that could reach it would decide."""

    view: ClusterView
    topics: TopicAdmin
    configs: Configs
    produce: Produce
    writes: Writes
    reads: Reads
    groups: GroupCoordinator
    producer_ids: ProducerIds
    settings: Settings
    clock: Clock
