"""The watermark and log start of each partition, as last read from the metadata store, and how old they are.

Everything here may be out of date. Before an answer that would be wrong with old data (out of range, the end of a log),
the partition is read fresh (R16). Reads are shared: the questions of many readers at one time are one call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from streamhouse.core.clock import Clock
from streamhouse.core.errors import MetadataError, MetadataUnavailable, PartitionNotFound, StreamHouseError
from streamhouse.core.ids import PartitionKey
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.sharing import Batched
from streamhouse.metadata.contract import MetadataStore, PartitionState

_KEYS_PER_CALL: Final = 5_000  # tens of milliseconds in the slowest backend

Waiter = asyncio.Future[bool]


class Question(NamedTuple):
    """Says when a call was sent: its answer does not include later changes."""

    sent_ms: int
    notices: int


class PartitionView:
    """One partition; the same object as long as it is known. Compared by identity, which is fast."""

    __slots__ = ("asked", "key", "noticed", "state", "waiters", "watch")

    def __init__(self, state: PartitionState, asked: Question, noticed: int) -> None:
        self.key = state.key
        self.state = state
        self.asked = asked
        self.noticed = noticed
        """The number of the last notice about this partition."""
        self.waiters: dict[Waiter, int] = {}
        """The offset that each waiter waits for; waiting.py maintains it."""
        self.watch: asyncio.Task[None] | None = None
        """The task that watches its leader, if it is led here; waiting.py maintains it."""


class Views:
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        clock: Clock,
        options: ReaderOptions,
        on_moved: Callable[[PartitionView], None],
        on_new_epoch: Callable[[PartitionKey], None],
    ) -> None:
        """``on_moved`` is called when a partition has grown, was trimmed, or is gone; ``on_new_epoch`` when another
        leadership has begun, and the entries of the log may be others (R23)."""
        self._metadata = metadata
        self._clock = clock
        self._options = options
        self._on_moved = on_moved
        self._on_new_epoch = on_new_epoch
        self._views: dict[PartitionKey, PartitionView] = {}
        """The one that was not refreshed for the longest time comes first."""
        self._notices = 0
        self._noticed_all = 0
        self._looks: Batched[PartitionKey, PartitionView | None] = Batched(self._look, max_keys=_KEYS_PER_CALL)

    def get(self, key: PartitionKey) -> PartitionView | None:
        return self._views.get(key)

    def question(self) -> Question:
        """Call this before the call whose answer goes to ``learn`` is sent."""
        return Question(self._clock.boot_ms(), self._notices)

    def learn(self, state: PartitionState, asked: Question) -> PartitionView:
        """Take the answer of a call. Answers may come out of order; watermark and log start never go back, except when
        another leadership begins: the metadata store may have lost commits before it (R23)."""
        view = self._views.pop(state.key, None)
        if view is None:
            # Notices about an unknown partition are not recorded: any notice since the question may be about it.
            view = self._views[state.key] = PartitionView(state, asked, self._notices)
            self._forget_some()
            return view
        self._views[state.key] = view
        known, view.state = view.state, _newer(view.state, view.asked, state, asked)
        view.asked = max(view.asked, asked)
        if known.leader_epoch != view.state.leader_epoch:
            self._on_new_epoch(state.key)
        if _ends(known) != _ends(view.state):
            self._on_moved(view)
        return view

    async def fresh(self, key: PartitionKey) -> PartitionView:
        """The partition, read by a call that starts now. Raises PartitionNotFound, or a retriable error."""
        found = (await self.fresh_many([key]))[key]
        if isinstance(found, StreamHouseError):
            raise found
        return found

    async def fresh_many(self, keys: Iterable[PartitionKey]) -> Mapping[PartitionKey, PartitionView | StreamHouseError]:
        """The same for many partitions, each with its own answer or error."""
        looks = {key: self._looks.ask(key) for key in keys}
        await asyncio.wait(looks.values())
        return {key: _answer(key, look) for key, look in looks.items()}

    def refresh_soon(self, key: PartitionKey) -> None:
        """Read it again in the background."""
        self._looks.ask(key)

    def refresh_if_old(self, view: PartitionView) -> None:
        if self.age_ms(view) > self._options.state_max_age_ms or self.is_outdated(view):
            self.refresh_soon(view.key)

    def notice(self, keys: Iterable[PartitionKey]) -> list[PartitionView]:
        """Mark earlier answers for these partitions as out of date, and return the partitions that are known."""
        self._notices += 1
        known = [view for view in map(self._views.get, keys) if view is not None]
        for view in known:
            view.noticed = self._notices
        return known

    def notice_all(self) -> None:
        self._notices += 1
        self._noticed_all = self._notices

    def is_outdated(self, view: PartitionView) -> bool:
        asked = view.asked.notices
        return asked < view.noticed or asked < self._noticed_all

    def is_recent(self, view: PartitionView) -> bool:
        """Whether it is young enough to be trusted, given that notices or rechecks report every change."""
        return not self.is_outdated(view) and self.age_ms(view) <= self._options.recheck_interval_ms

    def age_ms(self, view: PartitionView) -> int:
        return self._clock.boot_ms() - view.asked.sent_ms

    async def close(self) -> None:
        await self._looks.close()

    async def _look(self, keys: Sequence[PartitionKey]) -> Mapping[PartitionKey, PartitionView | None]:
        asked = self.question()
        states = await self._metadata.get_partitions(keys)
        found: dict[PartitionKey, PartitionView | None] = dict.fromkeys(keys)
        for state in states:
            found[state.key] = self.learn(state, asked)
        for key, view in found.items():
            if view is None and (gone := self._views.pop(key, None)) is not None:
                self._on_moved(gone)
        return found

    def _forget_some(self) -> None:
        while len(self._views) > self._options.max_known_partitions:
            oldest = next(iter(self._views.values()))
            if oldest.waiters or oldest.watch is not None:
                return  # it has waiters, so it is refreshed soon and is then not the oldest
            del self._views[oldest.key]


def _answer(key: PartitionKey, look: asyncio.Future[PartitionView | None]) -> PartitionView | StreamHouseError:
    error = look.exception()
    if error is None:
        return look.result() or PartitionNotFound(
            f"there is no partition {key}", hint="its topic was deleted, or never existed"
        )
    if not isinstance(error, StreamHouseError):
        raise error
    if isinstance(error, MetadataError) and not error.retriable:
        return MetadataUnavailable(f"{key} could not be looked up: {error.message}")  # R16
    return error


def _newer(known: PartitionState, known_asked: Question, read: PartitionState, asked: Question) -> PartitionState:
    """If both are of one leadership: the later value of each end of the log. If not: the one that was asked for later.
    Its epoch may be the lower one, because a store that has lost commits may have lost the latest epoch too (R23)."""
    if read.leader_epoch != known.leader_epoch:
        return read if (asked, read.leader_epoch) > (known_asked, known.leader_epoch) else known
    if read.high_watermark >= known.high_watermark and read.log_start_offset >= known.log_start_offset:
        return read
    return replace(
        read,
        high_watermark=max(known.high_watermark, read.high_watermark),
        log_start_offset=max(known.log_start_offset, read.log_start_offset),
        last_stable_offset=max(known.last_stable_offset, read.last_stable_offset),
    )


def _ends(state: PartitionState) -> tuple[int, int]:
    return state.log_start_offset, state.high_watermark
