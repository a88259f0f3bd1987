"""Who may read while the memory for requests is short, who waits, and in which order those who wait go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

from serving import FETCH, MIB, PRODUCE, RawClient, client_of, connections_of, hot, serving, until

from streamhouse.gateway.kafka.api import Buffers, Call
from streamhouse.gateway.kafka.budget import MemoryBudget
from streamhouse.gateway.kafka.wire.headers import request_frame


class Socket:
    """A connection as the budget sees it."""

    def __init__(self, resumed: list[str], name: str) -> None:
        self._resumed = resumed
        self._name = name

    def resume_receiving(self) -> None:
        self._resumed.append(self._name)


class Stage:
    """A budget of 100 bytes, and the calls that its loop would make, made by hand."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []
        self.resumed: list[str] = []
        self.budget: MemoryBudget[Socket] = MemoryBudget(100, call_soon=self.calls.append)

    def socket(self, name: str, held: int = 0, *, receiving: bool = False) -> Socket:
        made = Socket(self.resumed, name)
        self.budget.hold(made, held, receiving=receiving)
        return made

    def turn(self) -> list[str]:
        """One turn of the loop; those that read again in it."""
        calls, self.calls[:] = list(self.calls), []
        for call in calls:
            call()
        resumed, self.resumed[:] = list(self.resumed), []
        return resumed


def test_held_bytes_are_counted_once_however_often_they_are_reported() -> None:
    stage = Stage()
    one = stage.socket("one", 40)
    stage.budget.hold(one, 60, receiving=True)
    assert stage.budget.used_bytes == 60
    stage.budget.charge(40)
    assert not stage.budget.is_spent, "all of it may be used"
    stage.budget.charge(1)
    assert stage.budget.is_spent


def test_over_the_limit_only_the_one_that_receives_for_longest_may_read() -> None:
    stage = Stage()
    first, second = stage.socket("first", 80, receiving=True), stage.socket("second", 80, receiving=True)
    assert stage.budget.may_read(first)
    assert not stage.budget.may_read(second)
    stage.budget.hold(first, 0, receiving=False)
    assert stage.budget.eldest is second
    stage.budget.charge(1_000)
    assert stage.budget.may_read(second)
    assert not stage.budget.may_read(first)


def test_one_that_goes_on_receiving_keeps_its_place_in_line() -> None:
    stage = Stage()
    first, second = stage.socket("first", 10, receiving=True), stage.socket("second", 10, receiving=True)
    stage.budget.hold(first, 90, receiving=True)
    assert stage.budget.receiving() == [first, second]


def test_those_that_wait_read_again_one_a_turn_in_the_order_they_came() -> None:
    stage = Stage()
    stage.budget.charge(101)
    for name in ("first", "second", "third"):
        stage.budget.wait(stage.socket(name))
    assert stage.turn() == []
    stage.budget.release(101)
    assert [stage.turn() for _ in range(4)] == [["first"], ["second"], ["third"], []]
    assert stage.budget.waiting == 0


def test_waking_stops_as_soon_as_the_budget_is_spent_again() -> None:
    stage = Stage()
    stage.budget.charge(101)
    for name in ("first", "second"):
        stage.budget.wait(stage.socket(name))
    stage.budget.release(101)
    assert stage.turn() == ["first"]
    stage.budget.charge(101)
    assert stage.turn() == []
    assert stage.budget.waiting == 1


def test_when_the_eldest_is_done_the_next_one_in_the_middle_of_a_request_goes_on_although_memory_is_short() -> None:
    stage = Stage()
    eldest = stage.socket("eldest", 90, receiving=True)
    waits_longer, half_way = stage.socket("waits longer"), stage.socket("half way", 90, receiving=True)
    stage.budget.wait(waits_longer)
    stage.budget.wait(half_way)
    stage.budget.charge(90)
    stage.budget.hold(eldest, 0, receiving=False)
    assert stage.budget.is_spent
    assert stage.turn() == ["half way"]
    assert stage.turn() == []


def test_one_that_has_gone_gives_its_bytes_back_and_is_never_called() -> None:
    stage = Stage()
    gone, next_one = stage.socket("gone", 101, receiving=True), stage.socket("next")
    stage.budget.wait(gone)
    stage.budget.wait(next_one)
    stage.budget.forget(gone)
    assert stage.budget.used_bytes == 0
    assert stage.turn() == ["next"]
    assert stage.budget.eldest is None


async def test_over_the_budget_sockets_are_not_read_and_all_are_served_in_the_end() -> None:
    """Twenty clients with 3 MiB each and room for 4: half-received requests must not wait for each other."""
    peak = 0

    def measure(call: Call, body: memoryview) -> Buffers:
        nonlocal peak
        peak = max(peak, connections.budget.used_bytes)
        return (len(body).to_bytes(4, "big"),)

    async with serving(hot(FETCH, measure), request_memory_bytes=4 * MIB) as server:
        connections = connections_of(server)
        clients = [await RawClient.connect(server) for _ in range(20)]
        frame = request_frame(FETCH, 0, 1, None, bytes(3 * MIB))
        for client in clients:
            client.send(frame[:MIB])
        await until(lambda: connections.budget.waiting >= 5)
        assert connections.budget.used_bytes < 12 * MIB
        for client in clients:
            client.send(frame[MIB:])
        for client in clients:
            assert await client.answer() == b"\0\0\0\1" + (3 * MIB).to_bytes(4, "big")
            await client.close()
        assert peak < 14 * MIB
        await until(lambda: connections.budget.used_bytes == 0 and connections.budget.waiting == 0)


async def test_requests_being_served_count_against_the_budget() -> None:
    futures: list[asyncio.Future[Buffers]] = []

    def wait(call: Call, body: memoryview) -> asyncio.Future[Buffers]:
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    async with (
        serving(hot(PRODUCE, wait, pipelined=True), request_memory_bytes=MIB) as server,
        client_of(server) as other,
        AsyncExitStack() as stack,
    ):
        clients = [await stack.enter_async_context(client_of(server)) for _ in range(30)]
        body = bytes(MIB // 4)
        for client in clients:
            client.ask(PRODUCE, 0, 1, body)
        await until(lambda: connections_of(server).budget.waiting >= 1)
        assert len(futures) < 20
        other.ask(18, 0, 1)
        while len(futures) < 30 or not all(future.done() for future in futures):
            for future in futures:
                if not future.done():
                    future.set_result(())
            await asyncio.sleep(0)
        for client in clients:
            await client.answer()
        await other.answer()
