"""Groups that change their protocol while their members run, without IO."""

from __future__ import annotations

from typing import Any

import pytest
from consumer_driver import RealMember, topics
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from mixed_driver import SESSION_MS, ClassicClient, Kind, Mixed, metadata

from streamhouse.broker.groups.consumer_protocol import NamedPartition, write_assignment
from streamhouse.broker.groups.contract import GroupState, MemberRef
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.core.errors import StreamHouseError

WITH_USER_DATA = write_assignment(1, [("orders", 0)])[:-4] + b"\0\0\0\1x"
KINDS: tuple[Kind, ...] = ("range", "cooperative-sticky")


def run(*clients: ClassicClient | RealMember, rounds: int = 20) -> None:
    for _ in range(rounds):
        for client in clients:
            client.step() if isinstance(client, ClassicClient) else client.beat()


def reads(m: Mixed, client: ClassicClient | RealMember) -> set[NamedPartition]:
    if isinstance(client, ClassicClient):
        return set(client.owned)
    names = {fact.topic_id: name for name, fact in m.topics.items()}
    return {(names[key.topic_id], key.partition) for key in client.owned if key.topic_id in names}


def classic_group(m: Mixed, count: int, kind: Kind = "range") -> list[ClassicClient]:
    clients = [ClassicClient(m, kind=kind) for _ in range(count)]
    run(*clients)
    assert m.group.state is GroupState.STABLE
    assert sum(len(client.owned) for client in clients) == 4
    return clients


@pytest.mark.parametrize("kind", KINDS)
def test_a_rolling_upgrade_and_downgrade(kind: Kind) -> None:
    m = Mixed()
    clients: list[ClassicClient | RealMember] = [*classic_group(m, 2, kind)]
    generation = m.group.generation
    for number in range(2):
        old = clients.pop(0)
        assert isinstance(old, ClassicClient)
        m.leave(MemberRef(member_id=old.member_id))
        clients.append(RealMember(m, f"new{number}"))
        run(*clients)
        assert not m.is_classic
        assert sum(len(reads(m, client)) for client in clients) == 4
    assert m.group.group_epoch > generation
    epoch = m.group.group_epoch
    for _ in range(2):
        old_one = clients.pop(0)
        assert isinstance(old_one, RealMember)
        m.beat(old_one.name, -1)
        clients.append(ClassicClient(m, kind=kind))
        run(*clients)
        assert sum(len(reads(m, client)) for client in clients) == 4
    assert m.is_classic
    assert m.group.state is GroupState.STABLE
    assert m.group.generation > epoch


def test_an_upgrade_tells_classic_members_to_join_and_keeps_their_generation_until_then() -> None:
    m = Mixed()
    first, second = classic_group(m, 2)
    generation = m.group.generation
    m.beat("new", 0)
    assert not m.is_classic
    for client in (first, second):
        m.group.check_commit(client.member_id, generation)  # it may still commit
        assert m.heartbeat(client.member_id, generation) == 27
    assert m.group.group_epoch == generation + 1


def test_the_new_member_waits_for_partitions_that_classic_members_read() -> None:
    m = Mixed()
    clients = classic_group(m, 2)
    assert m.beat("new", 0).assignment == frozenset()
    assert {key.partition for key in m.group.roster.get(clients[0].member_id).assigned} == {
        partition for _, partition in clients[0].owned
    }


@pytest.mark.parametrize("state", [GroupState.PREPARING_REBALANCE, GroupState.COMPLETING_REBALANCE])
@pytest.mark.parametrize("kind", KINDS)
def test_an_upgrade_in_the_middle_of_a_rebalance(kind: Kind, state: GroupState) -> None:
    m = Mixed()
    clients = classic_group(m, 2, kind)
    clients.append(ClassicClient(m, kind=kind))
    for _ in range(100):
        if m.group.state is state:
            break
        next(client for client in clients[::-1] if client.waits is None or client.waits in m.answers).step()
    assert m.group.state is state
    new = RealMember(m, "new")
    new.beat()
    assert not m.is_classic
    for _ in range(20):
        run(new, *clients, rounds=1)
        all_reads = [key for client in (new, *clients) for key in reads(m, client)]
        assert len(all_reads) == len(set(all_reads)), "two members read one partition"
    assert sorted(len(reads(m, client)) for client in (new, *clients)) == [1, 1, 1, 1]
    assert all(27 in client.errors for client in clients)


def test_an_upgrade_before_the_first_generation_loses_no_member() -> None:
    m = Mixed(options=GroupOptions(initial_rebalance_delay_ms=3_000))
    client, new = ClassicClient(m), RealMember(m, "new")
    client.step()
    new.beat()
    run(client, new)
    assert len(reads(m, client)) == len(reads(m, new)) == 2
    assert len(m.group.roster) == 2


def test_when_the_last_consumer_member_expires_the_group_is_classic_again() -> None:
    m = Mixed()
    (client,) = classic_group(m, 1)
    m.beat("new", 0)
    run(client)
    for _ in range(60):
        m.advance(1_000)
        client.step()
    assert m.is_classic
    assert len(client.owned) == 4
    with pytest.raises(StreamHouseError) as refused:
        m.beat("new", 2)
    assert refused.value.kafka_code == 25  # not 69, which is fatal to clients


def test_a_downgrade_keeps_the_generation_so_that_members_can_still_commit() -> None:
    m = Mixed()
    clients, new = classic_group(m, 2), RealMember(m, "new")
    run(new, *clients)
    epoch = m.group.group_epoch
    m.beat("new", -1)
    assert m.is_classic
    assert m.group.generation == epoch
    assert m.group.state is GroupState.PREPARING_REBALANCE
    for client in clients:
        assert client.generation == epoch
        m.group.check_commit(client.member_id, None, epoch, m.now_ms)
        assert m.heartbeat(client.member_id, epoch) == 27


def test_a_downgrade_by_a_static_member_that_comes_back_moves_nothing() -> None:
    m = Mixed()
    (client,), static = classic_group(m, 1), RealMember(m, "s1", {"instance_id": "s"})
    run(static, client)
    had = reads(m, static)
    m.beat("s1", -2, instance_id="s")
    back = ClassicClient(m, instance="s")
    run(back, client)
    assert m.is_classic
    assert m.group.state is GroupState.STABLE
    assert reads(m, back) == had


def test_an_upgrade_by_a_static_member_that_comes_back() -> None:
    m = Mixed()
    clients = [ClassicClient(m, instance="s"), ClassicClient(m)]
    run(*clients)
    back = RealMember(m, "s2", {"instance_id": "s"})
    run(back, clients[1])
    assert not m.is_classic
    assert len(m.group.roster) == 2
    assert len(reads(m, back)) == len(reads(m, clients[1])) == 2


def test_operators_that_remove_the_last_consumer_member_convert_the_group() -> None:
    m = Mixed()
    (client,) = classic_group(m, 1)
    m.beat("a", 0)
    m.beat("b", 0)
    assert m.leave(MemberRef(member_id="a"), MemberRef(member_id="b"), MemberRef(member_id="x")) == [0, 0, 25]
    assert m.is_classic
    run(client)
    assert len(client.owned) == 4


def test_requests_that_wait_for_a_rebalance_are_answered_when_the_group_is_converted() -> None:
    m = Mixed()
    clients = classic_group(m, 2)
    waiting = m.join(clients[0].member_id, protocols=(("range", metadata(("orders", "bills"))),))
    assert waiting not in m.answers
    m.beat("new", 0)
    assert m.error(waiting) == 27


@pytest.mark.parametrize("refusal", ["assignor", "full"])
def test_a_member_that_is_refused_does_not_convert_the_group(refusal: str) -> None:
    m = Mixed(options=GroupOptions(max_size=1))
    (client,) = classic_group(m, 1)
    before, changes = m.group, {"assignor": "x"} if refusal == "assignor" else {}
    assert m.code("new", 0, **changes) == (112 if refusal == "assignor" else 81)
    assert m.group is before
    assert m.heartbeat(client.member_id, client.generation) == 0


@pytest.mark.parametrize(
    ("changes", "assignment"),
    [
        ({"protocol_type": "connect"}, b""),
        ({"protocols": (("range", b"rubbish"),)}, b""),
        ({}, b"rubbish"),
        ({"protocols": (("streams", metadata(("orders",))),)}, WITH_USER_DATA),
    ],
    ids=["not consumers", "a subscription", "an assignment", "an assignment with user data"],
)
def test_a_group_that_cannot_be_understood_stays_classic(changes: dict[str, Any], assignment: bytes) -> None:
    m = Mixed()
    joined = m.joined(**changes)
    m.sync(joined.member_id, joined.generation, (joined.member_id, assignment))
    assert m.code("new", 0) == 69
    assert m.is_classic
    assert m.heartbeat(joined.member_id, joined.generation) == 0


def test_a_subscription_that_no_member_uses_must_be_readable_too() -> None:
    m = Mixed()
    readable = metadata(("orders",))
    first = m.joined(protocols=(("own", b"rubbish"), ("range", readable)))
    m.join(protocols=(("range", readable),))
    m.join(first.member_id, protocols=(("own", b"rubbish"), ("range", readable)))
    assert m.group.protocol_name == "range"
    assert m.code("new", 0) == 69
    assert m.is_classic


def test_user_data_that_no_member_reads_does_not_prevent_a_conversion() -> None:
    """librdkafka's cooperative-sticky assignor repeats a member's own user data in its assignment."""
    m = Mixed()
    joined = m.joined(protocols=(("cooperative-sticky", metadata(("orders",), user_data=b"what it had")),))
    m.sync(joined.member_id, joined.generation, (joined.member_id, WITH_USER_DATA))
    assert m.code("new", 0) == 0
    assert not m.is_classic


def test_a_partition_that_a_leader_gave_to_two_members_gets_one_owner() -> None:
    m = Mixed()
    first, second = classic_group(m, 2)
    for member in m.group.roster:
        member.assignment = write_assignment(1, [("orders", 0), ("orders", 9), ("deleted", 0)])
    new = RealMember(m, "new")
    run(new, first, second)
    assert sum(len(reads(m, client)) for client in (new, first, second)) == 4


def test_conversions_do_not_prolong_the_session_of_a_dead_member() -> None:
    m = Mixed()
    dead, alive = classic_group(m, 2)
    for turn in range(6):
        new = RealMember(m, f"new{turn}")
        for _ in range(6):
            m.advance(1_000)
            run(new, alive, rounds=1)
        m.beat(new.name, -1)
        run(alive)
    assert dead.member_id not in {member.member_id for member in m.group.roster}
    assert 4 * SESSION_MS > 6 * 6_000


class RandomMembers(RuleBasedStateMachine):
    """Members of both protocols come, go, die and switch, and coordinators change. No partition has two readers, and in
    the end every partition has one."""

    @initialize(kind=st.sampled_from(KINDS))
    def begin(self, kind: Kind) -> None:
        self.kind: Kind = kind
        self.m = Mixed(topics=topics(a=3, b=2))
        self.members: list[ClassicClient | RealMember] = []
        self.named = 0

    @rule(subscription=st.sampled_from([("a",), ("a", "b")]))
    def a_classic_member_comes(self, subscription: tuple[str, ...]) -> None:
        if len(self.members) < 4:
            self.members.append(ClassicClient(self.m, kind=self.kind, topics=subscription))

    @rule(subscription=st.sampled_from([("a",), ("a", "b")]))
    def a_consumer_member_comes(self, subscription: tuple[str, ...]) -> None:
        if len(self.members) < 4:
            self.named += 1
            self.members.append(RealMember(self.m, f"m{self.named}", {"topic_names": subscription}))

    @rule(pick=st.integers(0, 50), steps=st.integers(1, 4))
    def a_member_speaks(self, pick: int, steps: int) -> None:
        if self.members:
            for _ in range(steps):
                self._speak(self.members[pick % len(self.members)])

    def _speak(self, member: ClassicClient | RealMember) -> None:
        if isinstance(member, ClassicClient):
            member.step()
            return
        try:
            member.beat()
        except StreamHouseError:
            member.epoch, member.owned, member.reported = 0, frozenset(), None

    @rule(pick=st.integers(0, 50))
    def a_member_leaves(self, pick: int) -> None:
        if not self.members:
            return
        member = self.members.pop(pick % len(self.members))
        if isinstance(member, ClassicClient):
            if member.member_id:
                self.m.leave(MemberRef(member_id=member.member_id))
        elif member.epoch and not self.m.is_classic:
            self.m.code(member.name, -1)

    @rule(pick=st.integers(0, 50))
    def a_member_dies(self, pick: int) -> None:
        if self.members:
            self.members.pop(pick % len(self.members))

    @rule()
    def the_coordinator_changes(self) -> None:
        self.m.take_over()

    @rule(ms=st.sampled_from([1_000, 3_000]))
    def time_passes_and_all_speak(self, ms: int) -> None:
        self.m.advance(ms)
        for member in self.members:
            self._speak(member)

    @invariant()
    def no_partition_has_two_readers(self) -> None:
        if hasattr(self, "m"):
            everything = [key for member in self.members for key in reads(self.m, member)]
            assert len(everything) == len(set(everything)), everything

    def teardown(self) -> None:
        if not hasattr(self, "m") or not self.members:
            return
        for _ in range(150):
            self.m.advance(1_000)
            for member in self.members:
                self._speak(member)
        wanted = set()
        for member in self.members:
            names = member.topics if isinstance(member, ClassicClient) else member.joins_with["topic_names"]
            wanted |= {(name, number) for name in names for number in range(self.m.topics[name].partition_count)}
        assert {key for member in self.members for key in reads(self.m, member)} == wanted
        kinds = {isinstance(member, ClassicClient) for member in self.members}
        assert self.m.is_classic == (kinds == {True})


TestRandomMembers = RandomMembers.TestCase
TestRandomMembers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
