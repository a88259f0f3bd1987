"""Links: a call and its effect come apart in every way, and what was sent arrives though its sender is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from simulator.dice import Dice
from simulator.loop import SimLoop
from simulator.network import Link, Weather
from streamhouse.core.errors import MetadataUnavailable, TopicNotFound


class Far:
    """The far end: counts what took effect."""

    def __init__(self, weather: Weather, seed: int = 1) -> None:
        self.loop = SimLoop(Dice(seed))
        self.link = Link(self.loop, Dice(seed), weather, unavailable=MetadataUnavailable)
        self.done_at_ms: list[float] = []

    def act(self) -> str:
        self.done_at_ms.append(self.loop.now_ms())
        return "answer"

    def run(self, main: Callable[[], Awaitable[None]]) -> None:
        async def wrapped() -> None:
            await main()

        self.loop.simulate(wrapped())


def test_a_calm_link_answers_after_its_latency() -> None:
    far = Far(Weather(latency_ms=(10, 20)))

    async def main() -> None:
        assert await far.link.call("x", far.act) == "answer"
        assert 20 <= far.loop.now_ms() <= 40

    far.run(main)


def test_a_lost_request_is_not_done_and_a_lost_reply_is() -> None:
    for weather, effects in ((Weather(lost_request=1.0), 0), (Weather(lost_reply=1.0), 1)):
        far = Far(weather)

        async def main(far: Far = far) -> None:
            with pytest.raises(MetadataUnavailable, match="x: no answer"):
                await far.link.call("x", far.act)

        far.run(main)
        assert len(far.done_at_ms) == effects


def test_a_delayed_request_is_done_after_its_caller_gave_up() -> None:
    later = 0
    for seed in range(30):
        far = Far(Weather(delayed=1.0, timeout_ms=100, longest_delay_ms=1000), seed)

        async def main(far: Far = far) -> None:
            try:
                await far.link.call("x", far.act)
            except MetadataUnavailable:
                assert far.loop.now_ms() == pytest.approx(100)
                await asyncio.sleep(5)

        far.run(main)
        assert len(far.done_at_ms) == 1
        later += far.done_at_ms[0] > 100
    assert later > 10


def test_a_repeated_request_is_done_twice_where_that_is_allowed() -> None:
    for may_repeat, effects in ((False, 1), (True, 2)):
        far = Far(Weather(repeated=1.0))

        async def main(far: Far = far, may_repeat: bool = may_repeat) -> None:
            await far.link.call("x", far.act, may_repeat=may_repeat)
            await asyncio.sleep(10)

        far.run(main)
        assert len(far.done_at_ms) == effects


def test_a_cut_link_passes_nothing() -> None:
    far = Far(Weather(cut=True))

    async def main() -> None:
        with pytest.raises(MetadataUnavailable):
            await far.link.call("x", far.act)

    far.run(main)
    assert far.done_at_ms == []


def test_an_error_of_the_far_end_comes_back_as_it_is() -> None:
    far = Far(Weather())

    def act() -> None:
        raise TopicNotFound("there is no such topic")

    async def main() -> None:
        with pytest.raises(TopicNotFound):
            await far.link.call("x", act)

    far.run(main)


def test_what_a_killed_process_sent_arrives() -> None:
    far = Far(Weather(latency_ms=(10, 20)))

    async def process() -> None:
        await far.link.call("x", far.act)
        raise AssertionError("the dead do not hear the answer")

    async def main() -> None:
        lane = far.loop.lane("process")
        lane.spawn(process())
        await asyncio.sleep(0.001)
        lane.kill()
        await asyncio.sleep(1)
        assert len(far.done_at_ms) == 1

    far.run(main)
