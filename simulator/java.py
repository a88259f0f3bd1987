"""A producer as the Java client is, with idempotence.

* One request for each agent at a time it looks, with at most one batch of every partition it leads; five requests are
  in flight on a connection, from the first batch on.
* A batch gets its sequence when it is first sent, and keeps it. One that failed goes back to the head of its queue and
  is sent again only when it is the oldest of its partition, so that retries go one by one.
* 46 is success without an offset. 45 on the batch behind the last acknowledged one, and 59, mean that the log and the
  client disagree: the epoch goes up by one, and what is not acknowledged in that partition is numbered from 0 again,
  also what is still on its way. 45 on a later batch means only that an earlier one failed.
* A batch that is too old is given up. Nothing new is sent to its partition until what is in flight is known; if the
  gap remains, the epoch goes up.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from simulator.agent import Appended, SimAgent
from simulator.clients import Client
from simulator.scenario import ProducerPlan
from simulator.sending import (
    DUPLICATE,
    OUT_OF_ORDER,
    RETRIABLE,
    UNKNOWN_PRODUCER,
    Session,
    SimBatch,
)
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey


class _JavaPartition:
    def __init__(self, epoch: int) -> None:
        self.queue: list[SimBatch] = []
        """Not in flight, in order."""
        self.tracked: list[SimBatch] = []
        """Batches that have a sequence and no outcome, in order: they are in flight, or will be sent again."""
        self.epoch = epoch
        self.next_sequence = 0
        self.last_acked = -1
        self.unresolved = False
        """A batch was given up that may have been written."""

    def start_over(self, epoch: int) -> None:
        self.epoch, self.next_sequence, self.last_acked, self.unresolved = epoch, 0, -1, False
        for batch in self.tracked:
            batch.epoch, batch.sequence, batch.reset = epoch, self.next_sequence, True
            self.next_sequence = batch.next_sequence


class JavaSession(Session):
    def __init__(self, client: Client, plan: ProducerPlan, producer_id: int) -> None:
        super().__init__(client, plan, producer_id)
        self._epoch = 0
        self._partitions: dict[PartitionKey, _JavaPartition] = {}
        self._rewind: dict[PartitionKey, None] = {}
        """Partitions whose sequences must start again, with the next epoch."""
        self._excused = False
        """It has given batches up, or raised its epoch before: a further disagreement may be its own doing."""

    def add(self, batch: SimBatch) -> None:
        self._of(batch).queue.append(batch)

    def next_requests(self) -> Iterator[tuple[SimAgent, list[SimBatch]]]:
        self._expire()
        self._raise_epoch()
        while True:
            requests: dict[SimAgent, list[SimBatch]] = {}
            for key, partition in self._partitions.items():
                batch = self._sendable(partition)
                if batch is None or (agent := self.leader(key)) is None or not self.has_room(agent):
                    continue
                self._number(partition, batch)
                requests.setdefault(agent, []).append(batch)
            if not requests:
                return
            yield from requests.items()

    def answered(self, batch: SimBatch, outcome: Appended | StreamHouseError | None) -> None:
        assert outcome is not None, "acks=0 is not possible with idempotence"
        if isinstance(outcome, Appended):
            self._complete(batch, outcome)
        elif self._may_retry(batch, outcome):
            self._queue_again(batch)
        elif outcome.kafka_code == DUPLICATE:
            self._complete(batch, None)
        else:
            self._give_up(batch)
            self._rewind[batch.key] = None

    def unanswered(self, batch: SimBatch) -> None:
        self._queue_again(batch)

    def forget(self, batch: SimBatch) -> None:
        self._partitions.pop(batch.key, None)
        self._rewind.pop(batch.key, None)

    # Inside.

    def _of(self, batch: SimBatch) -> _JavaPartition:
        return self._partitions.setdefault(batch.key, _JavaPartition(self._epoch))

    def _sendable(self, partition: _JavaPartition) -> SimBatch | None:
        if not partition.queue or (first := partition.queue[0]).not_before_ms > self.world.now_ms():
            return None
        if first.sequence < 0:
            stale = bool(partition.tracked) and partition.epoch != self._epoch
            return None if stale or partition.unresolved else first
        return first if first is partition.tracked[0] else None

    def _number(self, partition: _JavaPartition, batch: SimBatch) -> None:
        partition.queue.pop(0)
        if batch.sequence >= 0:
            return
        if partition.epoch != self._epoch:
            partition.start_over(self._epoch)
        batch.epoch, batch.sequence = partition.epoch, partition.next_sequence
        partition.next_sequence = batch.next_sequence
        partition.tracked.append(batch)

    def _may_retry(self, batch: SimBatch, error: StreamHouseError) -> bool:
        code, partition = error.kafka_code, self._of(batch)
        if code == UNKNOWN_PRODUCER:
            if not batch.reset:
                self._disagrees(batch, error, forgotten=batch.sequence == partition.last_acked + 1)
            return True
        if code == OUT_OF_ORDER:
            is_next = batch.sequence == partition.last_acked + 1
            if partition.tracked[:1] == [batch] if partition.unresolved else is_next and not batch.reset:
                self._disagrees(batch, error, forgotten=True)
            return True
        return code in RETRIABLE

    def _disagrees(self, batch: SimBatch, error: StreamHouseError, *, forgotten: bool) -> None:
        """``forgotten``: what was acknowledged last comes right before this batch, and the log does not know it.

        A log that has forgotten a producer takes whatever comes first. That is a later batch if the first one is on its
        way to an agent that does not lead any more; Apache Kafka does the same.
        """
        overtaken = self.world.forgets_producers and any(
            each.sent for each in self._of(batch).tracked if each.number > batch.number
        )
        if forgotten and not (self._excused or overtaken or self.world.lost_commits):
            self.world.problem(f"{batch.write.producer}: the log has forgotten what it acknowledged: {error}")
        self._rewind[batch.key] = None

    def _complete(self, batch: SimBatch, appended: Appended | None) -> None:
        partition = self._of(batch)
        if batch in partition.tracked:
            partition.tracked.remove(batch)
            partition.last_acked = max(partition.last_acked, batch.next_sequence - 1)
        self.acknowledged(batch, appended)

    def _queue_again(self, batch: SimBatch) -> None:
        self.back_off(batch)
        insort(self._of(batch).queue, batch, key=lambda each: each.number)

    def _give_up(self, batch: SimBatch) -> None:
        partition = self._of(batch)
        for among in (partition.tracked, partition.queue):
            if batch in among:
                among.remove(batch)
        self.finished(batch)
        self._excused = True

    def _expire(self) -> None:
        limit_ms = self.plan.delivery_timeout_ms
        if limit_ms is None:
            return
        for partition in self._partitions.values():
            for batch in [*partition.tracked, *partition.queue]:
                if self.world.now_ms() - batch.created_ms > limit_ms and batch in self.unfinished:
                    batch.expired = True
                    partition.unresolved = partition.unresolved or batch.sent > 0
                    self._give_up(batch)

    def _raise_epoch(self) -> None:
        for key, partition in self._partitions.items():
            if partition.unresolved and not partition.tracked:
                if partition.next_sequence == partition.last_acked + 1:
                    partition.unresolved = False
                else:
                    self._rewind[key] = None
        if not self._rewind:
            return
        self._epoch += 1
        self._excused = True
        self.world.note(f"{self.client.name}: epoch {self._epoch}")
        for key in self._rewind:
            if key in self._partitions:
                self._partitions[key].start_over(self._epoch)
        self._rewind.clear()
