"""A producer as librdkafka is, with idempotence.

* One partition in each request; five requests of a partition are in flight, from the first batch on, and five on a
  connection.
* A batch that failed goes back to its place in the queue. While the first of the queue waits out its backoff, nothing
  of that partition is sent; then everything is sent again at once, in order.
* While batches of a partition are in flight to one agent, none is sent to another.
* 46 is success without an offset. So is the success of a later batch, for every batch before it that was sent and
  refused: a broker that takes the later one must have the earlier one.
* 45 on a batch that is not the next one to be acknowledged: send nothing more, wait until nothing is in flight, then go
  on with the next epoch, every partition from sequence 0. 45 on the next one means that the log and the client
  disagree, which is fatal. 59 on a batch that was sent once raises the epoch likewise; on one that was sent again it is
  fatal.
* A batch that is too old, and not in flight, is given up, and the epoch goes up.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterator

from simulator.agent import Appended, SimAgent
from simulator.clients import Client
from simulator.scenario import ProducerPlan
from simulator.sending import (
    DUPLICATE,
    MAX_IN_FLIGHT,
    OUT_OF_ORDER,
    RETRIABLE,
    UNKNOWN_PRODUCER,
    Session,
    SimBatch,
)
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey


class _LibrdkafkaPartition:
    def __init__(self, epoch: int) -> None:
        self.queue: list[SimBatch] = []
        """Not in flight, in order."""
        self.flying: dict[SimBatch, None] = {}
        self.epoch = epoch
        self.next_sequence = 0
        self.next_acked = 0
        """The sequence of the first batch that is not acknowledged."""
        self.agent: SimAgent | None = None
        """Where the batches in flight were sent."""

    def start_over(self, epoch: int) -> None:
        self.epoch, self.next_sequence, self.next_acked = epoch, 0, 0
        for batch in self.queue:
            self.number(batch)

    def number(self, batch: SimBatch) -> None:
        batch.epoch, batch.sequence = self.epoch, self.next_sequence
        self.next_sequence = batch.next_sequence


class LibrdkafkaSession(Session):
    def __init__(self, client: Client, plan: ProducerPlan, producer_id: int) -> None:
        super().__init__(client, plan, producer_id)
        self._epoch = 0
        self._partitions: dict[PartitionKey, _LibrdkafkaPartition] = {}
        self._draining = False
        self._excused = False

    def add(self, batch: SimBatch) -> None:
        partition = self._of(batch)
        partition.number(batch)
        partition.queue.append(batch)

    def next_requests(self) -> Iterator[tuple[SimAgent, list[SimBatch]]]:
        self._expire()
        if self._draining and not any(partition.flying for partition in self._partitions.values()):
            self._draining = False
            self._epoch += 1
            self.world.note(f"{self.client.name}: epoch {self._epoch}")
        if self._draining:
            return
        for key, partition in self._partitions.items():
            if partition.epoch != self._epoch:
                partition.start_over(self._epoch)
            while partition.queue and len(partition.flying) < MAX_IN_FLIGHT:
                first = partition.queue[0]
                if first.not_before_ms > self.world.now_ms():
                    break
                agent = self.leader(key)
                if agent is None or not self.has_room(agent) or (partition.flying and agent is not partition.agent):
                    break
                partition.agent = agent
                partition.flying[partition.queue.pop(0)] = None
                yield agent, [first]

    def answered(self, batch: SimBatch, outcome: Appended | StreamHouseError | None) -> None:
        assert outcome is not None, "acks=0 is not possible with idempotence"
        partition = self._of(batch)
        partition.flying.pop(batch, None)
        if isinstance(outcome, Appended):
            self._complete(partition, batch, outcome)
        elif outcome.kafka_code == DUPLICATE:
            self._complete(partition, batch, None)
        elif outcome.kafka_code == OUT_OF_ORDER:
            self._out_of_order(partition, batch, outcome)
        elif outcome.kafka_code == UNKNOWN_PRODUCER:
            self._unknown_producer(partition, batch, outcome)
        elif outcome.kafka_code in RETRIABLE:
            self._queue_again(partition, batch)
        else:
            self.finished(batch)
            self._drain()

    def unanswered(self, batch: SimBatch) -> None:
        partition = self._of(batch)
        partition.flying.pop(batch, None)
        self._queue_again(partition, batch)

    def forget(self, batch: SimBatch) -> None:
        self._partitions.pop(batch.key, None)

    # Inside.

    def _of(self, batch: SimBatch) -> _LibrdkafkaPartition:
        return self._partitions.setdefault(batch.key, _LibrdkafkaPartition(self._epoch))

    def _complete(self, partition: _LibrdkafkaPartition, batch: SimBatch, appended: Appended | None) -> None:
        partition.next_acked = max(partition.next_acked, batch.next_sequence)
        self.acknowledged(batch, appended)
        for earlier in [each for each in partition.queue if each.sent and each.number < batch.number]:
            partition.queue.remove(earlier)
            self.acknowledged(earlier, None)

    def _out_of_order(self, partition: _LibrdkafkaPartition, batch: SimBatch, error: StreamHouseError) -> None:
        if batch.sequence <= partition.next_acked:
            self._disagrees(batch, error)
        else:
            if not (self._excused or self.world.lost_commits):
                self.world.problem(
                    f"{batch.write.producer} raises its epoch for a follower of a refused batch: {error}"
                )
            self._queue_again(partition, batch)
            self._drain()

    def _unknown_producer(self, partition: _LibrdkafkaPartition, batch: SimBatch, error: StreamHouseError) -> None:
        if batch.sequence == partition.next_acked:
            self._complain(batch, error)
        if batch.sent == 1:
            self._queue_again(partition, batch)
            self._drain()
        else:
            self._disagrees(batch, error)

    def _disagrees(self, batch: SimBatch, error: StreamHouseError) -> None:
        self._complain(batch, error)
        self.finished(batch)
        self.broken = f"{error.kafka_code}: {error}"

    def _complain(self, batch: SimBatch, error: StreamHouseError) -> None:
        """Also of a log that forgets idle producers: it takes whatever comes first of them."""
        if not (self._excused or self.world.lost_commits):
            self.world.problem(f"{batch.write.producer}: the log has forgotten what it acknowledged: {error}")

    def _expire(self) -> None:
        """Give up what is too old and not in flight. What was sent may be in the log, so the epoch goes up."""
        limit_ms = self.plan.delivery_timeout_ms
        if limit_ms is None:
            return
        for partition in self._partitions.values():
            for batch in list(partition.queue):
                if self.world.now_ms() - batch.created_ms > limit_ms:
                    partition.queue.remove(batch)
                    self.finished(batch)
                    self._drain()

    def _drain(self) -> None:
        self._draining = self._excused = True

    def _queue_again(self, partition: _LibrdkafkaPartition, batch: SimBatch) -> None:
        self.back_off(batch)
        insort(partition.queue, batch, key=lambda each: each.number)
