"""Connections between clients and agents keep the order that TCP keeps."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from simulator.agent import Parts, SimAgent
from simulator.connections import SimConnection, Unanswered, Unreachable
from simulator.dice import Dice
from simulator.loop import SimLoop
from simulator.scenario import draw_scenario
from simulator.world import World


def answered(seed: int) -> list[bool]:
    """Which of five requests, sent at once on one connection that loses answers, were answered."""
    loop = SimLoop(Dice(seed))
    world = World(loop, Dice(seed), replace(draw_scenario(seed), lost_answers=0.3, stalls=0.0))
    agent = world.agents[0]
    agent.lane = loop.lane(agent.name)
    agent.parts = object.__new__(Parts)  # the agent runs; these requests do not look at it
    connection = SimConnection(world, Dice(seed), agent)
    found: list[bool] = []

    async def serve(server: SimAgent, connection: SimConnection) -> None:
        return None

    async def main() -> None:
        requests = [connection.ask(serve, timeout_ms=100) for _ in range(5)]
        outcomes = await asyncio.gather(*requests, return_exceptions=True)
        assert all(outcome is None or isinstance(outcome, Unanswered | Unreachable) for outcome in outcomes)
        found.extend(outcome is None for outcome in outcomes)

    loop.simulate(main())
    return found


def served_behind_a_refusal(seed: int) -> list[int]:
    """Which of five requests are served on one connection, if the process listens from the first refusal on."""
    loop = SimLoop(Dice(seed))
    world = World(loop, Dice(seed), replace(draw_scenario(seed), lost_answers=0.0, stalls=0.0))
    agent = world.agents[0]
    agent.lane = loop.lane(agent.name)
    connection = SimConnection(world, Dice(seed), agent)
    served: list[int] = []

    async def ask(number: int) -> None:
        async def serve(server: SimAgent, connection: SimConnection) -> None:
            served.append(number)

        try:
            await connection.ask(serve, timeout_ms=100)
        except Unreachable:
            agent.parts = object.__new__(Parts)

    async def main() -> None:
        await asyncio.gather(*map(ask, range(5)), return_exceptions=True)

    loop.simulate(main())
    assert agent.parts is not None
    return served


def test_nothing_is_served_behind_a_request_that_was_refused() -> None:
    """A process that starts meanwhile has its own connections. It must not see the second batch without the first."""
    assert [served_behind_a_refusal(seed) for seed in range(100)] == [[]] * 100


def test_no_answer_arrives_behind_a_lost_one() -> None:
    """A client that missed the answer of one batch must not hear what became of its followers."""
    runs = [answered(seed) for seed in range(100)]
    assert sum(any(run) and not all(run) for run in runs) > 10, "answers were lost behind others that arrived"
    for run in runs:
        assert run == sorted(run, reverse=True)
