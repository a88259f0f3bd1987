"""The lines that travel by NOTIFY, read. They are written by sh_notify_keys and sh_notify_name in the database. Pure.

commit <topic id, 32 hex digits>:<partition>,<partition>;<topic id>:…
groups <name>
any
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import Change, ChangeKind

CHANNEL: Final = "streamhouse"

_WITH_NAME: Final = frozenset({ChangeKind.TOPICS, ChangeKind.TRANSFERS, ChangeKind.GROUPS, ChangeKind.DEFINITIONS})
ANYTHING: Final = Change(kind=ChangeKind.ANY)


def parse_notice(payload: str) -> Change:
    """Whatever cannot be read, such as a kind that a newer StreamHouse knows, may be anything."""
    word, _, rest = payload.partition(" ")
    try:
        kind = ChangeKind(word)
        if kind is ChangeKind.ANY:
            return ANYTHING
        if kind in _WITH_NAME:
            return Change(kind=kind, name=rest)
        return Change(kind=kind, keys=_parse_keys(rest))
    except ValueError:
        return ANYTHING


def _parse_keys(text: str) -> tuple[PartitionKey, ...]:
    keys: list[PartitionKey] = []
    for group in text.split(";") if text else ():
        topic_id, _, partitions = group.partition(":")
        topic = TopicId(UUID(topic_id))
        keys.extend(PartitionKey(topic, int(partition)) for partition in partitions.split(","))
    return tuple(keys)
