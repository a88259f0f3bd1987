"""The broker: everything that a front end may ask for, in one place. app/ puts it together.

    produce        batches into the log: order, checks, waiting, time-outs            produce.py, writers.py
    fetch          batches out of the log                                              fetch.py, reads.py
    offsets        the ends of a log, the record at a time, the end of an epoch        log_offsets.py
    topics         create, delete, grow                                                topics.py
    configs        describe and change                                                 configs.py
    groups         members and offsets of consumer groups                              groups/
    view           the agents, the topics, and which agent leads what                  cluster_view.py

Each rule is here once. A front end translates its protocol into these calls and their answers back; it checks nothing
that is checked here, and never waits for a leader, for room or for a hand-over itself.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse.broker.cluster_view import ClusterView
from streamhouse.broker.configs import Configs
from streamhouse.broker.fetch import Fetch
from streamhouse.broker.groups.coordinator import GroupCoordinator
from streamhouse.broker.leading import Leading
from streamhouse.broker.log_offsets import LogOffsets
from streamhouse.broker.produce import Produce
from streamhouse.broker.producer_ids import ProducerIds
from streamhouse.broker.reads import Reads
from streamhouse.broker.simple_offsets import SimpleOffsets
from streamhouse.broker.topics import TopicAdmin
from streamhouse.broker.writes import Writes
from streamhouse.core.clock import Clock
from streamhouse.core.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """The metadata store is behind these parts and never handed out: a front end that had it would decide."""

    view: ClusterView
    topics: TopicAdmin
    configs: Configs
    produce: Produce
    fetch: Fetch
    offsets: LogOffsets
    leading: Leading
    """The wait for a leader, for the calls of ``writes`` and ``reads``."""
    writes: Writes
    reads: Reads
    groups: GroupCoordinator
    simple_offsets: SimpleOffsets
    producer_ids: ProducerIds
    settings: Settings
    clock: Clock
