"""Coordinators that die one after the other: the living keep what they have at once, the dead are out in bounded time.

Only what a coordinator has saved is there for the next one.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from consumer_driver import Consumers, RealMember, settle
from group_driver import SESSION_MS, Driver
from group_stage import GROUP, SLOT, Stage

from streamhouse.broker.groups import registry
from streamhouse.broker.groups.consumer import ConsumerGroup
from streamhouse.broker.groups.contract import Effects, GroupState, Save
from streamhouse.broker.groups.machine import STEP_MS, Silence
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.broker.groups.payload import decode, encode
from streamhouse.broker.groups.snapshot import ClassicSnapshot, ConsumerSnapshot
from streamhouse.metadata.contract import slot_of

BETWEEN_KILLS_MS = 10_000
WITHOUT_COORDINATOR_MS = 7_000
OPTIONS = GroupOptions()
CONSUMER_SESSION_MS = OPTIONS.consumer_session_timeout_ms
BEATS_MS = OPTIONS.consumer_heartbeat_interval_ms - 1_000


@dataclass
class ConsumerRow(Consumers):
    """A KIP-848 group and its row in the store."""

    stored: bytes = b""

    def take(self, effects: Effects) -> None:
        super().take(effects)
        if any(isinstance(effect, Save) for effect in effects):
            self.stored = encode(self.group.snapshot())

    def taken_over(self) -> ConsumerRow:
        saved = decode(self.stored)
        assert isinstance(saved, ConsumerSnapshot)
        successor = ConsumerRow(now_ms=self.now_ms + WITHOUT_COORDINATOR_MS, stored=self.stored)
        successor.group = ConsumerGroup("g", options=self.options, group_epoch=self.group.group_epoch)
        successor.take(successor.group.restore(saved, successor.now_ms))
        successor.take(successor.group.topics_changed(successor.topics))
        return successor


@dataclass
class ClassicRow(Driver):
    """A classic group and its row in the store."""

    stored: bytes = b""

    def take(self, effects: Effects) -> None:
        super().take(effects)
        if any(isinstance(effect, Save) for effect in effects):
            self.stored = encode(self.group.snapshot())

    def taken_over(self) -> ClassicRow:
        saved = decode(self.stored)
        assert isinstance(saved, ClassicSnapshot)
        successor = ClassicRow(now_ms=self.now_ms + WITHOUT_COORDINATOR_MS, stored=self.stored)
        successor.group.generation = self.group.generation
        successor.take(successor.group.restore(saved, successor.now_ms))
        return successor


def lives(row: ConsumerRow | ClassicRow, ms: int, speak: RealMember | str | None) -> None:
    """Time passes at one coordinator; one member speaks, at once and then every few seconds."""
    end_ms = row.now_ms + ms
    while True:
        if isinstance(speak, RealMember):
            speak.beat()
        elif speak is not None:
            assert isinstance(row, ClassicRow)
            assert row.heartbeat(speak) in (0, 27)
        if row.now_ms >= end_ms:
            return
        row.advance(min(BEATS_MS, end_ms - row.now_ms))


def two_consumers() -> tuple[ConsumerRow, RealMember, RealMember]:
    row = ConsumerRow()
    a, b = RealMember(row, "a"), RealMember(row, "b")
    settle(a, b)
    assert len(a.owned) == len(b.owned) == 2
    return row, a, b


# KIP-848.


def test_a_member_that_speaks_after_a_take_over_goes_on_at_once_while_another_is_silent() -> None:
    row, a, _ = two_consumers()
    epoch, owned = a.epoch, a.owned
    row = a.group = row.taken_over()
    answer = row.beat("a", epoch, rebalance_timeout_ms=60_000, topic_names=("orders",), owned=owned)
    assert (answer.member_epoch, answer.assignment) == (epoch, owned)


def test_a_dead_member_is_out_in_bounded_time_although_coordinators_die_faster_than_its_session_ends() -> None:
    row, a, _ = two_consumers()
    served_ms = 0
    for _ in range(20):
        row = a.group = row.taken_over()
        a.lost_an_answer = True
        lives(row, BETWEEN_KILLS_MS, a)
        served_ms += BETWEEN_KILLS_MS
        if len(row.group.roster) == 1:
            break
    assert len(row.group.roster) == 1
    assert served_ms <= CONSUMER_SESSION_MS + 2 * BETWEEN_KILLS_MS
    settle(a)
    assert len(a.owned) == 4


def test_a_member_that_speaks_at_every_coordinator_is_never_out() -> None:
    row, a, b = two_consumers()
    epoch = row.group.group_epoch
    for _ in range(20):
        row = a.group = b.group = row.taken_over()
        lives(row, BETWEEN_KILLS_MS, a)
        b.beat()
    assert row.group.group_epoch == epoch


def test_time_without_a_coordinator_does_not_count() -> None:
    row, _, b = two_consumers()
    for _ in range(2):
        row = row.taken_over()
        lives(row, STEP_MS, None)
    row.now_ms += 10 * CONSUMER_SESSION_MS  # and no agent coordinates
    row = b.group = row.taken_over()
    row.advance(CONSUMER_SESSION_MS - 2 * STEP_MS - 1)
    b.lost_an_answer = True
    b.beat()


def test_one_word_gives_the_whole_session_back() -> None:
    row, _, b = two_consumers()
    for _ in range(4):
        row = row.taken_over()
        lives(row, BETWEEN_KILLS_MS, None)
    b.group = row
    b.lost_an_answer = True
    b.beat()
    row = b.group = row.taken_over()
    row.advance(CONSUMER_SESSION_MS - 1)
    b.lost_an_answer = True
    b.beat()


def test_a_group_whose_members_all_speak_writes_nothing_after_a_take_over() -> None:
    row, a, b = two_consumers()
    row = a.group = b.group = row.taken_over()
    for _ in range(10):
        row.advance(BEATS_MS)
        a.beat()
        b.beat()
    assert row.saves == 0


# Classic.


def two_members() -> tuple[ClassicRow, str, str]:
    row = ClassicRow()
    first = row.member()
    return row, first, row.member()


def test_a_dead_classic_member_is_out_in_bounded_time_although_coordinators_die_faster() -> None:
    row, living, _ = two_members()
    served_ms, between_ms = 0, STEP_MS + 1_000
    assert between_ms < SESSION_MS
    for _ in range(20):
        row = row.taken_over()
        lives(row, between_ms, living)
        served_ms += between_ms
        if len(row.group.roster) == 1:
            break
    assert served_ms <= SESSION_MS + 2 * between_ms
    assert row.state is GroupState.PREPARING_REBALANCE
    row.join(living)
    row.settle()
    assert [member.member_id for member in row.group.roster] == [living]


def test_a_classic_member_that_speaks_goes_on_at_once_without_a_rebalance() -> None:
    row, living, _ = two_members()
    generation = row.group.generation
    for _ in range(3):
        row = row.taken_over()
        assert row.heartbeat(living) == 0
        assert row.answers[row.sync(living)].assignment == living.encode()
    assert row.group.generation == generation


def test_every_take_over_leaves_a_member_the_time_of_a_heartbeat() -> None:
    row = ClassicRow()
    member_id = row.member(session_ms=2 * STEP_MS + 2_000)
    for _ in range(2):
        row = row.taken_over()
        row.advance(STEP_MS)
    row = row.taken_over()
    row.advance(STEP_MS - 1)
    assert row.heartbeat(member_id) == 0


# On a store.


@pytest.mark.parametrize("kind", ["classic", "consumer"])
async def test_a_dead_member_does_not_outlive_repeated_take_overs_on_a_real_store(stage: Stage, kind: str) -> None:
    await stage.topic()
    agents = [stage.first, stage.second]
    lease = await stage.first.lead()
    session_ms = 10_000 if kind == "classic" else CONSUMER_SESSION_MS
    if kind == "classic":
        await stage.first.stable_member()
    else:
        await stage.first.consumer("dead", 0)
    take_overs = 0
    for take_overs in range(1, 30):  # noqa: B007 -- how many it took is told below
        agent, after = agents
        agent.groups.slots.lost(lease.key)  # type: ignore[arg-type]
        await agent.release(lease)
        lease = await after.lead()
        stage.pass_time(STEP_MS)
        loaded_group = after.groups.registry.find(GROUP)
        assert loaded_group is not None
        while loaded_group.saving is not None:
            await loaded_group.saving
        if not len(loaded_group.machine.roster):
            break
        agents.reverse()
    assert take_overs <= session_ms // STEP_MS + 1


async def test_a_take_over_of_many_groups_does_not_flood_the_store(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_SILENCES_PER_S", 2)
    groups = [name for name in map("g{}".format, range(10_000)) if slot_of(name) == SLOT][:5]
    lease = await stage.first.lead()
    for group in groups:
        await stage.first.stable_member(group=group)
    await stage.take_over(lease)
    written = []
    for _ in range(4):
        stage.pass_time(STEP_MS if not written else 1_000)
        loaded = [stage.second.groups.registry.find(group) for group in groups]
        for loaded_group in loaded:
            assert loaded_group is not None
            while loaded_group.saving is not None:
                await loaded_group.saving
        written.append(sum(bool(loaded_group and loaded_group.machine.silence.marks()) for loaded_group in loaded))
    assert written == [2, 4, 5, 5]


# By itself.


def test_what_is_written_is_only_about_the_silent() -> None:
    silence = Silence()
    assert silence.begin({"a": 45_000, "b": 45_000}, {"b": 44_000}, 0) == {"a": 45_000, "b": STEP_MS}
    assert silence.marks() == (("b", 44_000),)
    assert silence.step(STEP_MS)
    assert silence.marks() == (("a", STEP_MS), ("b", 44_000 + STEP_MS))
    assert silence.forget("b")
    assert not silence.forget("b"), "that is known already"
    assert silence.marks() == (("a", STEP_MS),)
    assert silence.forget("a")
    assert not silence.step(2 * STEP_MS)
    assert silence.marks() == ()


def test_a_session_shorter_than_a_step_is_not_made_longer() -> None:
    assert Silence().begin({"a": 100}, {"a": 90}, 0) == {"a": 100}
