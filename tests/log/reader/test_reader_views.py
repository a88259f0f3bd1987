"""What is known of partitions: how old it is, which notice has overtaken it, and how much of it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
from reading import at_once, settle

from streamhouse.core.clock import ManualClock
from streamhouse.core.errors import MetadataError, MetadataUnavailable, PartitionNotFound
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.core.randomness import SeededRandomness
from streamhouse.log.reader.options import ReaderOptions
from streamhouse.log.reader.views import PartitionView, Views
from streamhouse.metadata.contract import LogState, PartitionState, WriteMode

TOPIC = TopicId(SeededRandomness(1).uuid())


def key(number: int = 0) -> PartitionKey:
    return PartitionKey(TOPIC, number)


def state(number: int = 0, *, end: int = 0, start: int = 0, epoch: int = 1) -> PartitionState:
    return PartitionState(
        key=key(number),
        log_state=LogState.OPEN,
        high_watermark=end,
        log_start_offset=start,
        last_stable_offset=end,
        leader_epoch=epoch,
        write_mode=WriteMode.LEASED,
        gc_horizon_ms=0,
        compaction_cursor=0,
    )


class Partitions:
    """The metadata's partitions. Answers are held back while ``may_answer`` is not set."""

    def __init__(self) -> None:
        self.states: dict[PartitionKey, PartitionState] = {}
        self.calls: list[list[int]] = []
        self.error: Exception | None = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def get_partitions(self, keys: Sequence[PartitionKey]) -> list[PartitionState]:
        self.calls.append([each.partition for each in keys])
        found = [self.states[each] for each in keys if each in self.states]
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return found


class Shown:
    """Views of some partitions, and what they report."""

    def __init__(self, **options: int) -> None:
        self.clock = ManualClock()
        self.metadata = Partitions()
        self.moved: list[tuple[int, int]] = []
        self.new_epochs: list[int] = []
        self.views = Views(
            metadata=self.metadata,  # type: ignore[arg-type]
            clock=self.clock,
            options=ReaderOptions(**options),  # type: ignore[arg-type]
            on_moved=lambda view: self.moved.append((view.key.partition, view.state.high_watermark)),
            on_new_epoch=lambda key: self.new_epochs.append(key.partition),
        )

    def learn(self, known: PartitionState) -> PartitionView:
        return self.views.learn(known, self.views.question())


def test_answers_that_come_out_of_order_never_move_a_log_back() -> None:
    shown = Shown()
    early, late = shown.views.question(), shown.views.question()
    view = shown.views.learn(state(end=10, start=4), late)
    assert shown.views.learn(state(end=7, start=2), early) is view
    assert (view.state.high_watermark, view.state.log_start_offset, view.state.last_stable_offset) == (10, 4, 10)
    shown.views.learn(state(end=8, start=6), late)
    assert (view.state.high_watermark, view.state.log_start_offset) == (10, 6), "the later of each end"
    assert shown.moved == [(0, 10)], "only the new log start was news"


def test_r23_another_leadership_may_begin_before_the_known_end() -> None:
    """The metadata store had lost commits. A late answer from before that says nothing any more."""
    shown = Shown()
    early = shown.views.question()
    view = shown.learn(state(end=11, epoch=3))
    shown.clock.advance(1)
    shown.learn(state(end=3, epoch=4))
    assert (view.state.high_watermark, view.state.leader_epoch) == (3, 4)
    assert (shown.moved, shown.new_epochs) == ([(0, 3)], [0])
    shown.views.learn(state(end=11, epoch=3), early)
    assert (view.state.high_watermark, shown.new_epochs) == (3, [0])
    shown.learn(state(end=5, epoch=4))
    assert (view.state.high_watermark, shown.new_epochs) == (5, [0])
    shown.clock.advance(1)
    shown.learn(state(end=2, epoch=2))
    assert (view.state.high_watermark, shown.new_epochs) == (2, [0, 0]), "it has lost the epochs, too"


def test_an_old_answer_does_not_make_a_view_older() -> None:
    shown = Shown()
    early = shown.views.question()
    shown.clock.advance(400)
    view = shown.learn(state(end=1))
    shown.views.learn(state(end=1), early)
    assert shown.views.age_ms(view) == 0


def test_growth_and_trimming_are_news_and_an_equal_answer_is_not() -> None:
    shown = Shown()
    for known in (state(), state(), state(end=3), state(end=3), state(end=3, start=2), state(end=5, start=2)):
        shown.learn(known)
    shown.learn(replace(state(end=5, start=2), leader_epoch=9))
    assert shown.moved == [(0, 3), (0, 3), (0, 5)]


def test_a_notice_outdates_what_was_asked_before_it() -> None:
    shown = Shown()
    view, other = shown.learn(state(0)), shown.learn(state(1))
    asked = shown.views.question()
    assert shown.views.notice([key(0), key(7)]) == [view], "of those that are known"
    assert (shown.views.is_outdated(view), shown.views.is_outdated(other)) == (True, False)
    shown.views.learn(state(0), asked)
    assert shown.views.is_outdated(view), "the call had been sent before"
    shown.learn(state(0))
    assert not shown.views.is_outdated(view)
    shown.views.notice_all()
    assert (shown.views.is_outdated(view), shown.views.is_outdated(other)) == (True, True)


def test_a_notice_during_the_first_question_about_a_partition_may_be_about_it() -> None:
    shown = Shown()
    asked = shown.views.question()
    shown.views.notice([key(5)])
    assert shown.views.is_outdated(shown.views.learn(state(0), asked))


def test_a_view_is_recent_for_as_long_as_a_recheck_may_take() -> None:
    shown = Shown(recheck_interval_ms=500)
    view = shown.learn(state())
    shown.clock.advance(500)
    assert shown.views.is_recent(view)
    shown.clock.advance(1)
    assert not shown.views.is_recent(view)
    view = shown.learn(state())
    shown.views.notice([key()])
    assert not shown.views.is_recent(view), "however young it is"


def test_the_least_refreshed_are_forgotten_beyond_the_bound_but_none_that_is_waited_for() -> None:
    shown = Shown(max_known_partitions=2)
    for number in (0, 1, 0, 2):
        shown.learn(state(number))
    assert [number for number in range(4) if shown.views.get(key(number))] == [0, 2]
    oldest = shown.views.get(key(0))
    assert oldest is not None
    oldest.waiters[None] = 0  # type: ignore[index]
    shown.learn(state(3))
    assert [number for number in range(4) if shown.views.get(key(number))] == [0, 2, 3]


@at_once
async def test_r16_a_fresh_look_begins_after_it_was_asked_for_and_is_shared() -> None:
    shown = Shown()
    shown.metadata.states = {key(0): state(0, end=1), key(1): state(1)}
    shown.metadata.may_answer.clear()
    early = [asyncio.create_task(shown.views.fresh(key(0))) for _ in range(3)]
    await settle()
    shown.metadata.states[key(0)] = state(0, end=2)
    late = asyncio.create_task(shown.views.fresh(key(0)))
    await settle()
    shown.metadata.may_answer.set()
    first, *others, last = await asyncio.gather(*early, late)
    assert first.state.high_watermark == 2
    assert all(each is first for each in (*others, last))
    assert shown.metadata.calls == [[0], [0]]


@at_once
async def test_r16_a_partition_that_is_gone_is_forgotten_and_its_waiters_hear_of_it() -> None:
    shown = Shown()
    shown.learn(state(0, end=4))
    with pytest.raises(PartitionNotFound, match="deleted, or never existed"):
        await shown.views.fresh(key(0))
    assert shown.views.get(key(0)) is None
    assert shown.moved == [(0, 4)]


@at_once
async def test_r16_a_look_that_fails_is_retriable_and_fails_no_other() -> None:
    shown = Shown()
    shown.metadata.states = {key(0): state(0)}
    for error in (MetadataUnavailable("no answer"), MetadataError("not open")):
        shown.metadata.error = error
        with pytest.raises(MetadataUnavailable) as caught:
            await shown.views.fresh(key(0))
        assert caught.value.retriable
    shown.metadata.error = None
    found = await shown.views.fresh_many([key(0), key(9)])
    assert isinstance(found[key(0)], PartitionView)
    assert isinstance(found[key(9)], PartitionNotFound)


@at_once
async def test_an_old_or_outdated_view_is_read_again_in_the_background() -> None:
    shown = Shown(state_max_age_ms=5_000)
    shown.metadata.states = {key(0): state(0, end=3)}
    view = shown.learn(state(0))
    shown.views.refresh_if_old(view)
    shown.clock.advance(5_000)
    shown.views.refresh_if_old(view)
    await settle()
    assert shown.metadata.calls == []
    shown.clock.advance(1)
    shown.views.refresh_if_old(view)
    await settle()
    assert (shown.metadata.calls, view.state.high_watermark, shown.views.age_ms(view)) == ([[0]], 3, 0)
    shown.views.notice([key(0)])
    shown.views.refresh_if_old(view)
    await settle()
    assert shown.metadata.calls == [[0], [0]]
