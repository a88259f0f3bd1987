"""The metadata store as one simulated process reaches it: the real SQLite backend behind a link that fails.

The store itself is one, shared, inline: each call happens at one instant of virtual time. Every process has a
``RemoteMetadata`` of its own. An observer is called for each call that took effect, with its answer, at that instant.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar, cast

from simulator.dice import Dice
from simulator.loop import SimLoop
from simulator.network import Link, Weather
from streamhouse.core.errors import MetadataUnavailable
from streamhouse.metadata.contract import Change, ChangeKind, MetadataStore
from streamhouse.metadata.sqlite.store import SqliteMetadata

T = TypeVar("T")
Telltale = Callable[[str, str], None]
Observer = Callable[[str, tuple[Any, ...], dict[str, Any], Any], None]
BeforeCall = Callable[[str, tuple[Any, ...]], None]

# Calls that a network may do twice, however much later: their contract says that a repeat is harmless.
_REPEATABLE: Final = frozenset(
    {
        "acquire_leases",
        "renew_leases",
        "release_leases",
        "commit_leased",
        "initiate_transfer",
        "accept_transfer",
        "reject_transfer",
        "complete_transfer",
        "register_agent",
        "heartbeat",
        "complete_flushes",
        "register_intent",
        "adopt_intent",
        "begin_compaction",
        "apply_compaction",
        "abort_compaction",
        "advance_log_start",
        "raise_gc_horizon",
        "forget_objects",
        "acquire_claim",
        "create_pin",
        "renew_pins",
    }
)
_LOST_NOTICES: Final = 0.1


class SharedMetadata:
    """The store, and the subscribers to its changes."""

    def __init__(
        self, store: SqliteMetadata, observer: Observer, before_call: BeforeCall = lambda name, args: None
    ) -> None:
        """``before_call`` is called at the same instant, just before the call takes effect."""
        self.store = store
        self._before_call = before_call
        self._observer = observer
        self._listeners: list[Callable[[Change], None]] = []

    def run(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        before = asyncio.get_running_loop().time()
        self._before_call(name, args)
        answer = _at_once(getattr(self.store, name)(*args, **kwargs))
        assert asyncio.get_running_loop().time() == before
        self._observer(name, args, kwargs, answer)
        return answer

    def listen(self, listener: Callable[[Change], None]) -> None:
        self._listeners.append(listener)

    async def pass_on_changes(self) -> None:
        async with self.store.subscribe() as changes:
            async for change in changes:
                for listener in self._listeners:
                    listener(change)


class RemoteMetadata:
    """Has every method of a MetadataStore; use ``remote_metadata`` to get one with that type."""

    def __init__(self, shared: SharedMetadata, link: Link, loop: SimLoop, dice: Dice, tell: Telltale) -> None:
        self._shared = shared
        self._tell = tell
        self._link = link
        self._notices = _Notices(loop, link.weather, dice)
        shared.listen(self._notices.offer)

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Any]]:
        shared, link, tell = self._shared, self._link, self._tell
        may_repeat = name in _REPEATABLE

        async def call(*args: Any, **kwargs: Any) -> Any:
            def act() -> Any:
                answer = shared.run(name, args, kwargs)
                tell(name, "done")
                return answer

            tell(name, "sent")
            return await link.call(name, act, may_repeat=may_repeat)

        setattr(self, name, call)
        return call

    @asynccontextmanager
    async def subscribe(self) -> AsyncIterator[AsyncIterator[Change]]:
        subscriber = _SimSubscriber()
        self._notices.subscribers[subscriber] = None
        try:
            yield subscriber
        finally:
            self._notices.subscribers.pop(subscriber, None)


def process_died(metadata: MetadataStore) -> None:
    """The process has ended; its next one subscribes again."""
    assert isinstance(metadata, RemoteMetadata)
    metadata._notices.subscribers.clear()


def remote_metadata(
    shared: SharedMetadata,
    loop: SimLoop,
    dice: Dice,
    weather: Weather,
    *,
    name: str,
    tell: Telltale = lambda call, stage: None,
) -> MetadataStore:
    """``tell`` is called for every call, when it is sent and when it is done."""
    link = Link(loop, dice, weather, unavailable=lambda what: MetadataUnavailable(f"{name}: {what}"))
    return cast(MetadataStore, RemoteMetadata(shared, link, loop, dice, tell))


class _Notices:
    """One process's: they come late, are lost, and stop while the link is cut; one ANY follows then."""

    def __init__(self, loop: SimLoop, weather: Weather, dice: Dice) -> None:
        self.subscribers: dict[_SimSubscriber, None] = {}
        self._loop = loop
        self._weather = weather
        self._dice = dice
        self._missed = False

    def offer(self, change: Change) -> None:
        if not self.subscribers:
            return
        if self._weather.cut:
            self._missed = True
            return
        if self._missed:
            self._missed = False
            change = Change(kind=ChangeKind.ANY)
        elif self._dice.chance(_LOST_NOTICES):
            return
        delay_s = self._dice.uniform(*self._weather.latency_ms) / 1000
        self._loop.world.call_later(delay_s, self._arrive, change)

    def _arrive(self, change: Change) -> None:
        for subscriber in self.subscribers:
            subscriber.arrive(change)


class _SimSubscriber:
    def __init__(self) -> None:
        self._queue: deque[Change] = deque()
        self._wake = asyncio.Event()

    def arrive(self, change: Change) -> None:
        self._queue.append(change)
        self._wake.set()

    def __aiter__(self) -> _SimSubscriber:
        return self

    async def __anext__(self) -> Change:
        while not self._queue:
            self._wake.clear()
            await self._wake.wait()
        return self._queue.popleft()


def _at_once(call: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never waits."""
    try:
        call.send(None)
    except StopIteration as done:
        return cast(T, done.value)
    call.close()
    raise AssertionError("the inline metadata store waits for something")
