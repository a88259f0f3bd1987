"""The end of a run: each agent leads everything, and is judged by what it has brought out by then."""

from __future__ import annotations

from dataclasses import replace

from simulator.agent import SimAgent
from simulator.errands import Errands
from simulator.history import Write
from simulator.run import SeedOutcome, run_seed
from simulator.scenario import Scenario, draw_scenario
from simulator.world import World, key_of
from streamhouse.metadata.contract import Durability
from streamhouse.wire.records import Record, build_batch

SEED = 5


def calm_fleet() -> Scenario:
    scenario = draw_scenario(SEED)
    assert scenario.durability is Durability.OBJECT
    return replace(
        scenario, agents=2, late_agents=0, compacted=False, run_ms=1000, mischief_every_ms=10_000, errands=()
    )


def run_with(times: int) -> SeedOutcome:
    """The first agent gives a partition up in its last flush, so many times. Each time its WAL holds an uncommitted
    acks=1 record."""
    left = times

    def prepare(world: World, errands: Errands) -> None:
        agent = world.agents[0]
        flush = agent.bring_everything_out

        async def gives_up() -> int:
            nonlocal left
            if left:
                left -= 1
                await take_and_give_up(world, agent, f"late {left}")
            return await flush()

        agent.bring_everything_out = gives_up  # type: ignore[method-assign]

    return run_seed(SEED, scenario=calm_fleet(), prepare=prepare)


async def take_and_give_up(world: World, agent: SimAgent, value: str) -> None:
    assert agent.parts is not None
    log, key = agent.parts.log, world.keys()[0]
    partition = log.partition(key)
    assert partition is not None
    write = Write(producer="late", key=key_of(key), values=(value,), acks=1, invoked_ms=world.now_ms(), attempts=1)
    world.history.writes.append(write)
    append = log.append(key, build_batch([Record(value=value.encode(), timestamp_ms=1)]), acks=1)
    write.taken_ms, write.base_offset, write.epoch = world.now_ms(), append.base_offset, partition.epoch
    write.acked_by = agent.name
    await append.done
    write.acked_ms = world.now_ms()
    log.give_up(key, "the test says so")


def test_an_agent_that_gives_a_partition_up_in_its_last_flush_is_judged_when_it_leads_again() -> None:
    """What its WAL holds comes back then (R4); another agent must not take over before."""
    for times in (0, 1, 2):
        outcome = run_with(times)
        assert outcome.passed, "\n".join(map(str, outcome.anomalies))


def test_an_agent_that_never_keeps_its_leaderships_is_a_failure() -> None:
    outcome = run_with(1_000)
    assert any("flushes and still leads everything" in anomaly.detail for anomaly in outcome.anomalies)
