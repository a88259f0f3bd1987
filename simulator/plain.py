"""A producer without idempotence: pipelines like the others, and sends a failed batch again behind newer ones.

Several partitions share a request, as with the Java client. A batch is given up after some tries.
"""

from __future__ import annotations

from collections.abc import Iterator

from simulator.agent import Appended, SimAgent
from simulator.clients import Client
from simulator.scenario import ProducerPlan
from simulator.sending import RETRIABLE, Session, SimBatch
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey


class PlainSession(Session):
    def __init__(self, client: Client, plan: ProducerPlan, producer_id: int = -1) -> None:
        super().__init__(client, plan, producer_id)
        self._queues: dict[PartitionKey, list[SimBatch]] = {}

    def add(self, batch: SimBatch) -> None:
        self._queues.setdefault(batch.key, []).append(batch)

    def next_requests(self) -> Iterator[tuple[SimAgent, list[SimBatch]]]:
        while True:
            requests: dict[SimAgent, list[SimBatch]] = {}
            for key, queue in self._queues.items():
                ready = [batch for batch in queue if batch.not_before_ms <= self.world.now_ms()]
                if ready and (agent := self.leader(key)) is not None and self.has_room(agent, self.plan.in_flight):
                    queue.remove(ready[0])
                    requests.setdefault(agent, []).append(ready[0])
            if not requests:
                return
            yield from requests.items()

    def answered(self, batch: SimBatch, outcome: Appended | StreamHouseError | None) -> None:
        if outcome is None:
            self.finished(batch)  # acks=0
        elif isinstance(outcome, Appended):
            self.acknowledged(batch, outcome)
        elif outcome.kafka_code in RETRIABLE:
            self._try_again(batch)
        else:
            self.finished(batch)

    def unanswered(self, batch: SimBatch) -> None:
        self._try_again(batch)

    def forget(self, batch: SimBatch) -> None:
        queue = self._queues.get(batch.key, [])
        if batch in queue:
            queue.remove(batch)

    def _try_again(self, batch: SimBatch) -> None:
        if batch.sent >= self.plan.attempts or self.dice.chance(0.02):
            self.finished(batch)
            return
        self.back_off(batch)
        self._queues[batch.key].append(batch)
