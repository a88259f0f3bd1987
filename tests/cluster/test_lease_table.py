"""The lease machine by itself, and against a store with its own clock, latency and lost replies (R20)."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from streamhouse.cluster.lease_table import Leadership, LeaseTable, Stage
from streamhouse.core.clock import ManualClock
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import Lease, LeaseKey, SlotKey

KEY = PartitionKey(TopicId(UUID(int=1)), 0)
TTL_MS, MARGIN_MS = 30_000, 3_000


def make_lease(key: LeaseKey = KEY, *, epoch: int = 1, expired: bool = False) -> Lease:
    return Lease(
        key=key,
        topic=None if isinstance(key, SlotKey) else "orders",
        agent_id="a",
        incarnation=UUID(int=7),
        epoch=epoch,
        acquired_at_ms=0,
        expires_at_ms=0,
        expired=expired,
        high_watermark=0,
    )


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(boot_ms=1_000_000)


@pytest.fixture
def table(clock: ManualClock) -> LeaseTable:
    return LeaseTable(clock=clock, ttl_ms=TTL_MS, margin_ms=MARGIN_MS)


def held(table: LeaseTable, clock: ManualClock, key: LeaseKey = KEY, *, epoch: int = 1) -> Leadership:
    leadership = table.hold(make_lease(key, epoch=epoch), sent_ms=clock.boot_ms())
    assert leadership is not None
    return leadership


@pytest.mark.parametrize("key", [KEY, SlotKey(3)])
def test_s1_14_the_deadline_counts_from_when_the_request_was_sent(
    table: LeaseTable, clock: ManualClock, key: LeaseKey
) -> None:
    sent_ms = clock.boot_ms()
    clock.advance(10_000)  # the answer took that long
    table.hold(make_lease(key), sent_ms=sent_ms)
    guard = table.guard(key)
    clock.advance(TTL_MS - MARGIN_MS - 10_000 - 1)
    assert guard.valid()
    clock.advance(1)
    assert not guard.valid()


def test_s1_14_a_renewal_extends_from_when_it_was_sent(table: LeaseTable, clock: ManualClock) -> None:
    leadership = held(table, clock)
    clock.advance(20_000)
    sent_ms = clock.boot_ms()
    clock.advance(5_000)
    assert table.renewed(leadership, sent_ms=sent_ms)
    assert leadership.deadline_ms == sent_ms + TTL_MS - MARGIN_MS


def test_answers_out_of_order_never_shorten_a_lease(table: LeaseTable, clock: ManualClock) -> None:
    leadership = held(table, clock)
    first_ms = clock.boot_ms()
    clock.advance(1_000)
    assert table.renewed(leadership, sent_ms=clock.boot_ms())
    assert table.renewed(leadership, sent_ms=first_ms)
    assert leadership.deadline_ms == clock.boot_ms() + TTL_MS - MARGIN_MS


def test_past_its_deadline_a_lease_is_lost_whatever_answer_still_comes(table: LeaseTable, clock: ManualClock) -> None:
    leadership = held(table, clock)
    clock.advance(20_000)
    sent_ms = clock.boot_ms()
    clock.advance(10_000)
    assert not table.renewed(leadership, sent_ms=sent_ms)
    assert not leadership.valid()
    assert table.overdue() == [leadership]
    assert table.renewable() == []


def test_r2_a_lease_for_ever_has_no_deadline(clock: ManualClock) -> None:
    table = LeaseTable(clock=clock, ttl_ms=None, margin_ms=MARGIN_MS)
    leadership = held(table, clock)
    clock.advance(10**12)
    assert leadership.valid()
    assert leadership.deadline_ms is None
    assert table.overdue() == []
    table.end(leadership)
    assert not leadership.valid()


def test_r20_in_doubt_the_guard_is_invalid_and_nothing_is_renewed(table: LeaseTable, clock: ManualClock) -> None:
    leadership = held(table, clock)
    table.doubt(leadership)
    assert not leadership.valid()
    assert leadership.in_doubt
    assert table.renewable() == []
    assert table.renewed(leadership, sent_ms=clock.boot_ms())
    assert not leadership.valid(), "an answer that was on its way does not end the doubt"
    assert table.hold(make_lease(), sent_ms=clock.boot_ms()) is leadership
    assert not leadership.valid()


def test_an_epoch_that_ended_here_never_begins_again(table: LeaseTable, clock: ManualClock) -> None:
    leadership = held(table, clock, epoch=5)
    assert table.end(leadership)
    assert not table.end(leadership)
    assert table.hold(make_lease(epoch=5), sent_ms=clock.boot_ms()) is None
    assert table.hold(make_lease(epoch=4), sent_ms=clock.boot_ms()) is None
    again = held(table, clock, epoch=6)
    assert again.valid()
    assert not leadership.valid(), "the old guard stays invalid beside the new one"
    assert table.guard(KEY) is again


def test_a_later_epoch_does_not_slip_into_a_leadership(table: LeaseTable, clock: ManualClock) -> None:
    held(table, clock, epoch=1)
    with pytest.raises(ValueError, match="epoch 1"):
        table.hold(make_lease(epoch=2), sent_ms=clock.boot_ms())


def test_a_key_that_is_not_held_has_a_guard_that_says_so(table: LeaseTable) -> None:
    assert not table.guard(KEY).valid()


def test_the_memory_of_ended_epochs_goes_with_the_topic(table: LeaseTable, clock: ManualClock) -> None:
    table.end(held(table, clock, epoch=5))
    table.forget_except([KEY])
    assert table.hold(make_lease(epoch=5), sent_ms=clock.boot_ms()) is None
    table.forget_except([])
    assert table.hold(make_lease(epoch=5), sent_ms=clock.boot_ms()) is not None


def test_only_an_owner_that_was_told_of_the_beginning_is_told_of_the_end(table: LeaseTable, clock: ManualClock) -> None:
    leadership = held(table, clock)
    told = {}
    for stage in Stage:
        leadership.stage = stage
        told[stage] = leadership.owned
    assert told == {
        Stage.WAITING: False,
        Stage.OPENING: True,
        Stage.SERVING: True,
        Stage.CLOSING: True,
        Stage.CLOSED: False,
    }


class AgainstAStore(RuleBasedStateMachine):
    """One key, one store, this agent and a rival. Every call takes time to get there and back, or its reply is lost.

    The store's clock and the agent's run at different speeds, within what the margin allows. Whenever the guard is
    valid, the store must say: this agent, this epoch, not expired.
    """

    def __init__(self) -> None:
        super().__init__()
        self.clock = ManualClock()
        self.table = LeaseTable(clock=self.clock, ttl_ms=TTL_MS, margin_ms=MARGIN_MS)
        self.store_ms = 10**9
        self.holder, self.epoch, self.expires_ms = "", 0, 0
        self.pending: list[tuple[int, Leadership | None, Lease | None]] = []

    def pass_time(self, ms: int, drift: float = 0.0) -> None:
        self.clock.advance(ms)
        self.store_ms += int(ms * (1 + drift))

    @rule(ms=st.integers(0, 20_000), drift=st.floats(-0.02, 0.02))
    def wait(self, ms: int, drift: float) -> None:
        self.pass_time(ms, drift)

    @rule(there_ms=st.integers(0, 12_000), back_ms=st.integers(0, 12_000), lost=st.booleans())
    def acquire(self, there_ms: int, back_ms: int, lost: bool) -> None:
        if self.table.get(KEY) is not None:
            return
        sent_ms = self.clock.boot_ms()
        self.pass_time(there_ms)
        if self.store_ms >= self.expires_ms:
            self.holder, self.epoch, self.expires_ms = "me", self.epoch + 1, self.store_ms + TTL_MS
        elif self.holder == "me":
            self.expires_ms = max(self.expires_ms, self.store_ms + TTL_MS)
        else:
            return
        answered = make_lease(epoch=self.epoch)
        self.pass_time(back_ms)
        if not lost and self.table.hold(answered, sent_ms=sent_ms) is None:
            assert answered.epoch == self.epoch
            self.expires_ms = min(self.expires_ms, self.store_ms)  # released, as the shell does

    @rule(there_ms=st.integers(0, 12_000), back_ms=st.integers(0, 12_000), lost=st.booleans())
    def renew(self, there_ms: int, back_ms: int, lost: bool) -> None:
        for leadership in self.table.renewable():
            sent_ms = self.clock.boot_ms()
            self.pass_time(there_ms)
            mine = self.holder == "me" and self.epoch == leadership.lease.epoch and self.store_ms < self.expires_ms
            if mine:
                self.expires_ms = self.store_ms + TTL_MS
            self.pass_time(back_ms)
            if lost:
                continue
            if mine:
                self.table.renewed(leadership, sent_ms=sent_ms)
            else:
                self.table.end(leadership)

    @rule()
    def rival_takes_what_has_expired(self) -> None:
        if self.store_ms >= self.expires_ms:
            self.holder, self.epoch, self.expires_ms = "rival", self.epoch + 1, self.store_ms + TTL_MS

    @rule(completed=st.booleans(), answered=st.booleans())
    def complete_a_transfer(self, completed: bool, answered: bool) -> None:
        leadership = self.table.get(KEY)
        if leadership is None:
            return
        self.table.doubt(leadership)
        if completed and self.holder == "me" and self.epoch == leadership.lease.epoch:
            self.holder, self.epoch, self.expires_ms = "rival", self.epoch + 1, self.store_ms + TTL_MS
        if answered:
            self.table.end(leadership)

    @rule()
    def give_up_what_is_overdue(self) -> None:
        for leadership in self.table.overdue():
            self.table.end(leadership)

    @invariant()
    def a_valid_guard_never_lies(self) -> None:
        leadership = self.table.get(KEY)
        if leadership is not None and leadership.valid():
            assert (self.holder, self.epoch) == ("me", leadership.lease.epoch)
            assert self.store_ms < self.expires_ms


AgainstAStore.TestCase.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)
TestLeaseTableAgainstAStore = AgainstAStore.TestCase
