"""One seed from its beginning to its verdict."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from simulator.agent import ReadAnswer, SimAgent
from simulator.anomalies import Kind, SimAnomaly
from simulator.checker import check
from simulator.curators import Curator
from simulator.dice import Dice
from simulator.errands import Errands
from simulator.evidence import collect, leave_slots, raw_partition
from simulator.history import Read
from simulator.hours import Hours
from simulator.loop import SimLoop, SimulationStuck
from simulator.nemesis import SimNemesis
from simulator.pinned import PinnedReader
from simulator.producers import SimProducer
from simulator.readers import SimReader
from simulator.scenario import Scenario, draw_scenario
from simulator.sinks import Sink
from simulator.tidying import tidy
from simulator.world import Noted, World, key_of
from streamhouse.cluster import assigner, ring
from streamhouse.core.errors import OffsetOutOfRange, StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.compaction.claims import PartitionClaim
from streamhouse.metadata.contract import Durability

T = TypeVar("T")

_SETTLE_MS: Final = 40_000
"""How long each step may take after the faults have ended. Far longer than any backoff of the code under test."""
_LOOK_S: Final = 0.05
_SLOTS: Final = 2
_VIRTUAL_NODES: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedOutcome:
    seed: int
    scenario: Scenario
    anomalies: tuple[SimAnomaly, ...]
    trace: str
    """Equal for two runs of a seed, whatever the machine."""
    steps: int
    virtual_ms: float
    writes: int
    acknowledged: int
    reads: int
    leaderships: int
    compactions: int
    trims: int
    """How often the start of a log moved, where maintenance runs."""
    objects_deleted: int
    notes: tuple[Noted, ...]

    @property
    def passed(self) -> bool:
        return not self.anomalies


def run_seed(
    seed: int,
    *,
    keep_notes: bool = False,
    prepare: Callable[[World, Errands], None] = lambda world, errands: None,
    scenario: Scenario | None = None,
) -> SeedOutcome:
    """``prepare`` may change the world before anything runs."""
    scenario = scenario or draw_scenario(seed)
    dice = Dice(seed)
    loop = SimLoop(dice.child("loop"))
    world = World(loop, dice.child("world"), scenario, keep_notes=keep_notes)
    errands = Errands(world)
    prepare(world, errands)
    anomalies: list[SimAnomaly] = []

    async def main() -> None:
        async with world.sqlite:
            leave_slots(world.sqlite, _SLOTS)
            await _live(world, errands)
            if world.broken is not None:
                raise AssertionError("an agent broke") from world.broken
            world.history.problems += loop.uncaught
            anomalies.extend(check(world.history, collect(world.sqlite, world.objects)))

    with _small_cluster(), _claims(scenario):
        try:
            loop.simulate(main())
        except SimulationStuck as error:
            anomalies.append(SimAnomaly(kind=Kind.PROBLEM, key=None, detail=str(error)))
    history = world.history
    return SeedOutcome(
        seed=seed,
        scenario=scenario,
        anomalies=tuple(anomalies),
        trace=f"{loop.trace:08x}",
        steps=loop.steps,
        virtual_ms=loop.now_ms(),
        writes=len(history.writes),
        acknowledged=sum(write.acked_ms is not None for write in history.writes),
        reads=len(history.reads),
        leaderships=len(history.led),
        compactions=len(history.replaced),
        trims=len(history.cut),
        objects_deleted=len(history.deleted),
        notes=tuple(world.notes or ()),
    )


async def _live(world: World, errands: Errands) -> None:
    changes = world.loop.world.spawn(world.metadata.pass_on_changes())
    for number, partitions in enumerate(world.scenario.topics):
        await world.create_topic(f"topic-{number}", partitions)
    nemesis = SimNemesis(world)
    clients = [errands.lane.spawn(errands.run())]
    for number, plan in enumerate(world.scenario.producers):
        producer = SimProducer(world, f"p{number}", plan)
        clients.append(producer.client.lane.spawn(producer.run()))
    for number in range(world.scenario.sinks):
        sink = Sink(world, f"s{number}")
        clients.append(sink.client.lane.spawn(sink.run()))
    for number in range(world.scenario.readers):
        reader = SimReader(world, f"r{number}")
        clients.append(reader.client.lane.spawn(reader.run()))
    curators = _begin_maintenance(world, clients)
    await nemesis.run()
    if world.broken is not None:
        return
    nemesis.heal()
    world.over = True
    for curator in curators:
        curator.kill()  # what they have begun is for the others
    for agent in world.agents:
        if not agent.is_running:
            agent.start()
        agent.wanted = True
    done, late = await asyncio.wait(clients, timeout=2 * _SETTLE_MS / 1000)
    if late:
        world.problem(f"{len(late)} clients do not come to an end")
    for client in done:
        client.result()
    try:
        last = await (_end_single(world) if world.scenario.durability is Durability.WAL else _end_fleet(world))
        if world.scenario.maintenance is not None:
            await tidy(world, world.scenario.maintenance)
            await _reads_everything(world, last)
    except SimulationStuck as error:
        world.problem(str(error))
    changes.cancel()


def _begin_maintenance(world: World, clients: list[asyncio.Task[None]]) -> list[Curator]:
    plan = world.scenario.maintenance
    if plan is None:
        return []
    curators = [Curator(world, f"curator-{number}", plan, killed=plan.killed) for number in range(plan.curators)]
    for curator in curators:
        curator.start()
    for number in range(plan.pinned_readers):
        reader = PinnedReader(world, f"pinned-{number}")
        clients.append(reader.lane.spawn(reader.run()))
    clients.append(world.loop.world.spawn(Hours(world, plan, curators).run()))
    return curators


async def _end_single(world: World) -> SimAgent:
    """One more power cut; after it everything that was acknowledged must still be there."""
    (agent,) = world.agents
    agent.kill(power=True)
    agent.start()
    await _brings_everything_out(world, agent)
    await _reads_everything(world, agent)
    return agent


async def _end_fleet(world: World) -> SimAgent:
    """Every agent leads everything once, alone, so that everything in its WAL is handled (R4)."""
    first, *others = world.agents
    for agent in others[1:]:
        agent.stop()
    others[0].kill(power=True)  # and is not started again: its leases must run out in time
    others[0].wanted = False
    last = first
    await _brings_everything_out(world, first)
    for agent in others:
        await _until(world, lambda agent=agent: not agent.is_running, f"{agent.name} stops")  # type: ignore[misc]
        agent.start()
        await _until(world, lambda agent=agent: agent.parts is not None, f"{agent.name} starts")  # type: ignore[misc]
        last.stop()
        await _brings_everything_out(world, agent)
        last = agent
    world.history.every_agent_led_last = True
    await _reads_everything(world, last)
    return last


async def _brings_everything_out(world: World, agent: SimAgent) -> None:
    """The agent leads everything, flushes, and must be left with an empty WAL.

    A leadership may end during the flush: the agent finds that the metadata has lost commits and gives the partition up
    (R23), or hands it over. What its WAL holds then comes back when the agent leads the partition again (R4). So a
    flush counts only if the agent had the same leaderships before and after it.
    """
    keys = world.keys()
    give_up_ms = world.now_ms() + _SETTLE_MS
    while True:
        await _until(world, lambda: all(agent.leads(key) for key in keys), f"{agent.name} leads everything")
        led = agent.leaderships(keys)
        left_bytes = await _on(world, agent, agent.bring_everything_out, f"{agent.name} flushes")
        if agent.leaderships(keys) == led:
            break
        if world.now_ms() > give_up_ms:
            raise SimulationStuck(f"not within {_SETTLE_MS} ms: {agent.name} flushes and still leads everything")
    if left_bytes:
        world.problem(f"{agent.name} has committed everything, but {left_bytes} bytes pin its WAL")


async def _reads_everything(world: World, agent: SimAgent) -> None:
    """Nothing changes any more: read every record from the start of each log to its end, for the checker."""
    for key in world.keys():  # noqa: SIM118 - not a dictionary's
        partition = raw_partition(world.sqlite, key_of(key))
        assert partition is not None
        offset = partition.log_start
        while offset < partition.high_watermark:
            read = partial(_read_or_start, world, agent, key, offset)
            records, next_offset = await _on(world, agent, read, f"offset {offset} of {key} can be read")
            if next_offset <= offset:
                raise SimulationStuck(f"offset {offset} of {key} is below the watermark, and a read gets nothing")
            if records:
                world.history.reads.append(
                    Read(
                        reader=f"last reader on {agent.name}",
                        key=key_of(key),
                        from_offset=offset,
                        records=tuple(records),
                        at_ms=world.now_ms(),
                    )
                )
            offset = next_offset


async def _read_or_start(world: World, agent: SimAgent, key: PartitionKey, offset: int) -> ReadAnswer:
    """The records from the offset on; none if retention has moved the start of the log beyond the offset."""
    try:
        return await agent.read(key, offset, 0)
    except OffsetOutOfRange:
        partition = raw_partition(world.sqlite, key_of(key))
        if partition is None or partition.log_start <= offset:
            raise
        return ReadAnswer([], partition.log_start)


async def _on(world: World, agent: SimAgent, call: Callable[[], Coroutine[Any, Any, T]], what: str) -> T:
    """Call it in the agent's process; again in its next one if it ends meanwhile, or does not lead yet.

    A request that was sent long ago may still arrive and end a process: its own old registration, for instance.
    """
    give_up_ms = world.now_ms() + _SETTLE_MS
    why = "it does not run"
    while world.now_ms() < give_up_ms:
        lane = agent.lane
        if lane is not None and agent.parts is not None:
            task = lane.spawn(call())
            while not task.done() and agent.lane is lane and world.now_ms() < give_up_ms:
                await asyncio.wait([task], timeout=_LOOK_S)
            if task.done():
                try:
                    return task.result()
                except StreamHouseError as error:
                    why = repr(error)
        await asyncio.sleep(_LOOK_S)
    raise SimulationStuck(f"not within {_SETTLE_MS} ms: {what}; {why}")


async def _until(world: World, condition: Callable[[], bool], what: str) -> None:
    give_up_ms = world.now_ms() + _SETTLE_MS
    while not condition():
        if world.now_ms() > give_up_ms:
            raise SimulationStuck(f"not within {_SETTLE_MS} ms: {what}; {_state_of(world)}")
        await asyncio.sleep(_LOOK_S)


def _state_of(world: World) -> str:
    parts, keys = [], world.keys()
    for agent in world.agents:
        if agent.parts is None:
            parts.append(f"{agent.name} is {'starting' if agent.is_running else 'down'}")
        else:
            led = [key.partition for key in keys if agent.leads(key)]
            parts.append(f"{agent.name} leads {led}: {agent.parts.member.health}")
    return "; ".join(parts)


@contextmanager
def _small_cluster() -> Iterator[None]:
    """Two coordinator slots and a coarse ring: the code is the same, the seeds are many."""
    with (
        replaced(assigner, "COORDINATOR_SLOTS", lambda original: _SLOTS),
        replaced(ring, "VIRTUAL_NODES", lambda original: _VIRTUAL_NODES),
    ):
        yield


@contextmanager
def _claims(scenario: Scenario) -> Iterator[None]:
    """In some scenarios every process believes that it has the claim on whatever it compacts."""
    if scenario.maintenance is None or scenario.maintenance.claims_hold:
        yield
        return

    async def hold(self: PartitionClaim) -> bool:
        return True

    with replaced(PartitionClaim, "hold", lambda original: hold):
        yield


@contextmanager
def replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replace ``owner.name`` by ``make(original)`` until the end of the context. Fails if there is no such name."""
    original = owner.__dict__[name] if isinstance(owner, type) else getattr(owner, name)
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
