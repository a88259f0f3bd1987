"""The settings of consumer groups. Declared like those in declared.py, which has all sections."""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse.core.settings.schema import duration, number


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Consumer groups: how long the coordinator waits for their members, and keeps what they committed."""

    initial_rebalance_delay_ms: int = duration(
        "3s",
        at_least="0ms",
        at_most="5m",
        fast="0ms",
        single_node="0ms",
        doc="How long the first rebalance of an empty classic group waits for more members.",
        why="Kafka's default: members that start together would otherwise rebalance once each; on a single node 0, as "
        "Kafka's own quickstart has it",
    )
    min_session_timeout_ms: int = duration(
        "6s",
        at_least="1ms",
        at_most="1h",
        doc="The shortest session time-out a classic member may ask for.",
        why="Kafka's default",
    )
    max_session_timeout_ms: int = duration(
        "30m",
        at_least="1s",
        at_most="24h",
        doc="The longest session time-out a classic member may ask for.",
        why="Kafka's default",
    )
    max_size: int = number(
        10_000,
        at_least=1,
        at_most=100_000,
        doc="Members of one group; further ones are refused.",
        why="a group is one row in the metadata store and one answer to its leader",
    )
    consumer_session_timeout_ms: int = duration(
        "45s",
        at_least="1s",
        at_most="1h",
        doc="A member of the newer protocol (KIP-848) that is silent for longer is removed.",
        why="Kafka's default",
    )
    consumer_heartbeat_ms: int = duration(
        "5s",
        at_least="100ms",
        at_most="10m",
        doc="How often members of the newer protocol (KIP-848) are told to heartbeat.",
        why="Kafka's default",
    )
    offsets_retention_ms: int = duration(
        "7d",
        at_least="1m",
        at_most="365d",
        doc="A group that has had no members for this long is deleted with its offsets.",
        why="Kafka's default (offsets.retention.minutes)",
    )
    offsets_retention_check_ms: int = duration(
        "10m",
        at_least="1s",
        at_most="24h",
        doc="How often such groups are looked for.",
        why="Kafka's default (offsets.retention.check.interval.ms)",
    )
