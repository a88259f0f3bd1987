"""Decides whether an entry is due. Pure.

Kafka deletes whole segments, from the oldest on, and stops at the first segment that is not due. Here an entry takes
the place of a segment. An entry is due in two cases:

    by time   its largest timestamp is more than ``retention.ms`` ago. An entry without timestamps counts from
              its creation, as Kafka then takes the time of the file.
    by size   what remains after its deletion is still at least ``retention.bytes``. So the log keeps at least
              that many bytes, if it had them, and at most one entry more.

A record that is dated in the future therefore keeps all that come after it, unless the log is too large. Negative
limits mean "no limit". Both rules need ``delete`` in ``cleanup.policy``; with ``compact`` alone, or with an empty
policy, nothing is due.

Each rule looks only at the entry and at what comes after it. So it does not matter which rule is applied first, nor how
often: the log start comes to rest at the first entry that neither rule takes.

A reader may hold entries that are due (a streaming query that has not read them yet). A hold ends for each entry
``hold_at_most_ms`` after ``retention.ms`` would have ended, so that a reader that never comes back cannot fill the
store.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamhouse.core.topic_config import TopicConfig
from streamhouse.metadata.contract import Entry


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRule:
    retention_ms: int
    """Negative: records do not become too old."""
    retention_bytes: int
    """Negative: a log may have any size."""
    hold_at_most_ms: int = 0

    @property
    def waits_for_readers(self) -> bool:
        return self.hold_at_most_ms > 0

    @property
    def limits_size(self) -> bool:
        return self.retention_bytes >= 0

    def is_old(self, entry: Entry, now_ms: int) -> bool:
        return 0 <= self.retention_ms < now_ms - _largest_time_ms(entry)

    def may_be_held(self, entry: Entry, now_ms: int) -> bool:
        """True while the entry is young enough for a hold.

        It counts from the entry's creation if its records are dated later: a date in the future must not make a hold
        endless. Where time sets no limit, ``hold_at_most_ms`` is the whole age.
        """
        since_ms = min(_largest_time_ms(entry), entry.created_at_ms)
        return now_ms - since_ms <= max(self.retention_ms, 0) + self.hold_at_most_ms


def retention_rule(config: TopicConfig) -> RetentionRule | None:
    """The rule of a topic; None if retention deletes nothing of it, however old or large."""
    if not config.deletes or (config.retention_ms < 0 and config.retention_bytes < 0):
        return None
    return RetentionRule(
        retention_ms=config.retention_ms,
        retention_bytes=config.retention_bytes,
        hold_at_most_ms=config.retention_hold_ms,
    )


def _largest_time_ms(entry: Entry) -> int:
    return entry.max_timestamp_ms if entry.max_timestamp_ms >= 0 else entry.created_at_ms
