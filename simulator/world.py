"""One simulated world: the agents, what they share, and the records of the run."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from simulator.agent import SimAgent
from simulator.checker import records_in
from simulator.dice import Dice
from simulator.evidence import dump, raw_partition, renew_everything, restore, store_ms, stored_objects
from simulator.history import Committed, Key, Led, SimHistory, Undone
from simulator.loop import SimClock, SimLoop
from simulator.maintenance_plan import MaintenancePlan
from simulator.metadata import SharedMetadata
from simulator.removals import Removals, WatchedObjects
from simulator.scenario import Scenario
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import (
    AcquireVerdict,
    Durability,
    IntentKey,
    Lease,
    LeasedSlice,
    NewTopic,
    SliceOutcome,
    Topic,
    Verdict,
)
from streamhouse.metadata.sqlite.store import SqliteMetadata
from streamhouse.objectstore.memory import MemoryStore

_RETRY_LIMIT_MS: Final = 40_000.0
"""How long clients try after everything has healed. A client that still cannot write by then has met a bug."""
_NEVER_UNDONE: Final = frozenset(
    {
        "acquire_leases",
        "acquire_partition_lease",
        "complete_transfer",
        "register_agent",
        "allocate_producer_ids",
        "raise_gc_horizon",
        "forget_objects",
        "purge_deleted_topics",
    }
)
"""What a simulated standby has always received: the loss of a leadership, of producer ids that are in use, or of a
horizon has no answer yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Snapshot:
    data: bytes
    led: int
    committed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Noted:
    at_ms: float
    text: str


class World:
    def __init__(self, loop: SimLoop, dice: Dice, scenario: Scenario, *, keep_notes: bool = False) -> None:
        self.loop = loop
        self.dice = dice
        self.scenario = scenario
        self.history = SimHistory(
            wal_is_durable=scenario.durability is Durability.WAL, overtaken_come_back=not scenario.compacted
        )
        self.notes: list[Noted] | None = [] if keep_notes else None
        self.store_clock = SimClock(loop)
        self.objects: MemoryStore = WatchedObjects(clock=self.store_clock)
        self.sqlite = SqliteMetadata(":memory:", clock=self.store_clock, randomness=dice.child("sqlite"), threads=False)
        self.removals: Removals | None = None
        """What maintenance takes away is recorded here, if it runs."""
        if scenario.maintenance is not None:
            self._watch_maintenance(scenario.maintenance)
        self.metadata = SharedMetadata(self.sqlite, self._observe, self._before_call)
        self.topics: dict[str, Topic] = {}
        self.agents = [SimAgent(self, f"agent-{number}") for number in range(1, scenario.agents + 1)]
        self.broken: BaseException | None = None
        """An exception that no fault explains: the run cannot be judged."""
        self.log_starts: dict[PartitionKey, int] = {}
        self.adopted: dict[tuple[str, int, Key], Committed] = {}
        """What a sink's batch became, by query, batch and partition."""
        self._stir = asyncio.Event()
        self._snapshot: _Snapshot | None = None
        self.forgets_producers = False
        """Idle producers have been expired: the log may not know them any more."""
        self.lost_commits = False
        """Commits were undone, so that the log knows less than it acknowledged, through no fault of the code."""
        self.over = False
        """Producers begin nothing new."""

    def now_ms(self) -> float:
        return self.loop.now_ms()

    def note(self, text: str) -> None:
        """Part of the trace: two runs of a seed must note the same."""
        self.loop.note(text)
        if self.notes is not None:
            self.notes.append(Noted(at_ms=self.now_ms(), text=text))

    def problem(self, text: str) -> None:
        self.note(f"PROBLEM: {text}")
        self.history.problems.append(text)

    def stir(self) -> None:
        """Something happened that writes should meet: resting producers go on now."""
        self._stir.set()
        self._stir = asyncio.Event()

    async def rest(self, most_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(most_s):
                await self._stir.wait()

    def take_snapshot(self) -> None:
        """Copy the metadata to the simulated asynchronous standby."""
        self._snapshot = _Snapshot(
            data=dump(self.sqlite), led=len(self.history.led), committed=len(self.history.committed)
        )

    def operator_was_here(self) -> None:
        """The standby always has what operators did, because clients and the checker rely on it."""
        if self._snapshot is not None:
            self.take_snapshot()

    def lose_last_commits(self) -> None:
        """The primary dies and the standby replaces it: what the standby had not received is lost."""
        snapshot, self._snapshot = self._snapshot, None
        if snapshot is None:
            return
        assert len(self.history.led) == snapshot.led
        before = {key_of(key): self._records(key_of(key)) for key in self.keys()}
        restore(self.sqlite, snapshot.data)
        undone = self.history.committed[snapshot.committed :]
        del self.history.committed[snapshot.committed :]
        self.note(f"the metadata has lost {len(undone)} commits")
        for commit in undone:
            records = before.get(commit.key, {})
            offsets = range(commit.base_offset, commit.end_offset + 1)
            values = frozenset(records[offset] for offset in offsets if offset in records)
            self.history.undone.append(Undone(commit=commit, at_ms=self.now_ms(), values=values))
        self.history.store_clock_set_ms.append(self.now_ms())  # renewals are undone too
        self.lost_commits = True

    def keys(self) -> list[PartitionKey]:
        return [key for topic in self.topics.values() for key in topic.partition_keys()]

    async def create_topic(self, name: str, partitions: int) -> Topic:
        configs = {"cleanup.policy": "compact"} if self.scenario.compacted else {}
        if self.scenario.maintenance is not None:
            configs = dict(self.scenario.maintenance.topic_configs())
        new = NewTopic(topic_id=TopicId(self.dice.uuid()), name=name, partition_count=partitions, configs=configs)
        topic = self.topics[name] = await self.sqlite.create_topic(new)
        self.operator_was_here()
        return topic

    def hours_pass(self, by_ms: int, *, pins: bool) -> None:
        """The metadata's clock goes on by so much in an instant. All leases were renewed meanwhile; pins perhaps.

        The agents' wall clocks go on too. Their boot clocks do not: by them, clients and retries would time out.
        """
        before_ms = store_ms(self.sqlite)
        self.store_clock.set_wall(by_ms)
        for agent in self.agents:
            agent.hours_pass(by_ms)
        passed_ms = store_ms(self.sqlite) - before_ms
        renew_everything(self.sqlite, passed_ms, now_ms=before_ms, pins=pins)
        self.note(f"{passed_ms / 60_000:.0f} minutes pass" + ("" if pins else ", and short pins expire"))

    def _watch_maintenance(self, plan: MaintenancePlan) -> None:
        assert isinstance(self.objects, WatchedObjects)
        self.removals = Removals(self.sqlite, self.objects, self.history, now_ms=self.now_ms, note=self.note)
        self.history.rules = plan.rules
        self.history.writer_grace_ms = plan.upkeep.vacuum.writer_grace_ms
        frees_at_once = plan.upkeep.dereferenced_keep_bytes is not None
        self.history.reader_grace_ms = 0 if frees_at_once else plan.upkeep.vacuum.reader_grace_ms

    def _before_call(self, name: str, args: tuple[Any, ...]) -> None:
        if self.removals is not None:
            self.removals.before_call(name, args)

    # The observer at the metadata: at the instant a call takes effect.

    def _observe(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> None:
        self._record(name, args, kwargs, answer)
        if self.removals is not None:
            self.removals.after_call(name, args, answer)
            if name == "advance_log_start":
                self.log_starts[args[0]] = answer.log_start_offset
        if self._snapshot is not None and name in _NEVER_UNDONE:
            self.take_snapshot()

    def _record(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], answer: Any) -> None:
        if name == "acquire_leases":
            self._led(each.lease for each in answer if each.verdict is AcquireVerdict.ACQUIRED)
        elif name == "acquire_partition_lease":  # only lost_commits.py does so (R23)
            self._led([answer], agent=f"{answer.agent_id} without its WAL")
        elif name == "complete_transfer" and not self._is_known(answer):  # else it was repeated
            self._led([answer])
        elif name == "commit_leased":
            for piece, outcome in zip(args[1], answer, strict=True):
                self._committed(piece, outcome)
        elif name == "adopt_intent":
            self._adopted(args[0], kwargs["epoch"], answer)

    def _led(self, leases: Iterable[Lease], *, agent: str | None = None) -> None:
        for lease in leases:
            if not isinstance(lease.key, PartitionKey):
                continue
            name = agent or lease.agent_id
            self.note(f"{name} leads {_short(lease.key)} at epoch {lease.epoch} from {lease.high_watermark}")
            self.history.led.append(
                Led(
                    key=key_of(lease.key),
                    epoch=lease.epoch,
                    agent=name,
                    start_offset=lease.high_watermark,
                    at_ms=self.now_ms(),
                )
            )
            self.stir()

    def _committed(self, piece: LeasedSlice, outcome: SliceOutcome) -> None:
        again = " (repeated)" if outcome.repeated else ""
        self.note(
            f"commit of {_short(piece.key)} at {piece.base_offset} to {piece.end_offset}, epoch {piece.epoch}:"
            f" {outcome.verdict}{again}"
        )
        if outcome.verdict is Verdict.COMMITTED and not outcome.repeated:
            self.history.committed.append(
                Committed(
                    key=key_of(piece.key),
                    epoch=piece.epoch,
                    base_offset=piece.base_offset,
                    end_offset=piece.end_offset,
                    at_ms=self.now_ms(),
                )
            )

    def _adopted(self, intent: IntentKey, epoch: int, outcome: SliceOutcome) -> None:
        again = " (repeated)" if outcome.repeated else ""
        self.note(
            f"adoption of batch {intent.batch_id} of {intent.query_id} by {_short(outcome.key)} at"
            f" {outcome.base_offset}, epoch {epoch}: {outcome.verdict}{again}"
        )
        if outcome.verdict is Verdict.COMMITTED and not outcome.repeated:
            key = key_of(outcome.key)
            committed = Committed(
                key=key,
                epoch=epoch,
                base_offset=outcome.base_offset,
                end_offset=outcome.end_offset,
                at_ms=self.now_ms(),
            )
            self.history.committed.append(committed)
            self.adopted[(intent.query_id, intent.batch_id, key)] = committed

    def _is_known(self, lease: Lease) -> bool:
        return isinstance(lease.key, PartitionKey) and any(
            led.key == key_of(lease.key) and led.epoch == lease.epoch for led in self.history.led
        )

    def remember_trimmed(self, key: PartitionKey, offset: int) -> None:
        """Record what lies below the new log start, before it is raised."""
        below = {at: value for at, value in self._records(key_of(key)).items() if at < offset}
        self.history.trimmed.setdefault(key_of(key), {}).update(below)

    def _records(self, key: Key) -> dict[int, str]:
        """What the log holds now."""
        partition = raw_partition(self.sqlite, key)
        return {} if partition is None else records_in(partition, stored_objects(self.objects))


def key_of(key: PartitionKey) -> Key:
    return (key.topic_id.hex, key.partition)


def _short(key: PartitionKey) -> str:
    return f"{key.topic_id.hex[:4]}/{key.partition}"


class RetryLimit:
    """How long one client goes on after the faults have ended. The time counts from its first question then."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._until_ms: float | None = None

    def too_long(self) -> bool:
        if not self._world.over:
            return False
        if self._until_ms is None:
            self._until_ms = self._world.now_ms() + _RETRY_LIMIT_MS
        return self._world.now_ms() > self._until_ms
