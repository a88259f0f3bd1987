"""Members of the classic protocol in a consumer group, one test for each rule, without IO."""

from __future__ import annotations

import pytest
from consumer_driver import RealMember, keys, settle
from mixed_driver import REBALANCE_MS, SESSION_MS, ClassicClient, Mixed, metadata

from streamhouse.broker.groups.contract import JoinResult, MemberRef, SyncResult, TimerKey, TimerKind
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.core.errors import StreamHouseError

ALL = frozenset(("orders", partition) for partition in range(4))


@pytest.fixture
def m() -> Mixed:
    """A consumer group with one member of the consumer protocol, which reads all four partitions."""
    mixed = Mixed()
    mixed.consumer = RealMember(mixed, "new")  # type: ignore[attr-defined]
    settle(mixed.consumer)  # type: ignore[attr-defined]
    assert not mixed.is_classic
    return mixed


def consumer(m: Mixed) -> RealMember:
    found: RealMember = m.consumer  # type: ignore[attr-defined]
    return found


def run(m: Mixed, *clients: ClassicClient | RealMember, rounds: int = 15) -> None:
    for _ in range(rounds):
        for client in clients:
            client.step() if isinstance(client, ClassicClient) else client.beat()


def test_a_join_is_answered_at_once_without_a_leader_and_a_sync_with_what_is_free(m: Mixed) -> None:
    joined = m.joined()
    assert joined == JoinResult(
        generation=m.group.group_epoch,
        protocol_type="consumer",
        protocol_name="range",
        leader="",
        member_id=joined.member_id,
    )
    assert m.synced(joined.member_id, joined.generation) == frozenset()  # the other member still reads everything
    assert m.heartbeat(joined.member_id, joined.generation) == 0


def test_a_member_is_told_to_join_when_its_partitions_are_free(m: Mixed) -> None:
    joined = m.joined()
    m.synced(joined.member_id, joined.generation)
    settle(consumer(m))
    assert len(consumer(m).owned) == 2
    assert m.heartbeat(joined.member_id, joined.generation) == 27
    again = m.joined(joined.member_id)
    assert len(m.synced(again.member_id, again.generation)) == 2
    assert m.heartbeat(again.member_id, again.generation) == 0


def test_a_member_that_must_choose_an_id_is_given_one(m: Mixed) -> None:
    ticket = m.join(known_id_required=True)
    assert m.error(ticket) == 79
    given: str = m.answers[ticket].member_id  # type: ignore[attr-defined]
    assert m.joined(given, known_id_required=True).member_id == given


@pytest.mark.parametrize("kind", ["range", "cooperative-sticky"])
def test_partitions_move_between_both_protocols(m: Mixed, kind: str) -> None:
    clients = [ClassicClient(m, kind=kind) for _ in range(3)]  # type: ignore[arg-type]
    run(m, consumer(m), *clients)
    assert [len(client.owned) for client in clients] == [1, 1, 1]
    assert len(consumer(m).owned) == 1
    assert m.leave(MemberRef(member_id=clients.pop().member_id)) == [0]
    run(m, consumer(m), *clients)
    assert sum(len(client.owned) for client in clients) + len(consumer(m).owned) == 4


def test_a_newer_epoch_makes_sync_and_heartbeat_ask_for_a_join(m: Mixed) -> None:
    joined = m.joined()
    m.beat("other", 0)
    assert m.error(m.sync(joined.member_id, joined.generation)) == 27
    assert m.heartbeat(joined.member_id, joined.generation) == 27


def test_a_cooperative_member_keeps_reading_what_it_keeps(m: Mixed) -> None:
    cooperative = ClassicClient(m, kind="cooperative-sticky")
    run(m, consumer(m), cooperative)
    had = cooperative.owned
    newcomers = [RealMember(m, "b"), RealMember(m, "c")]
    lost_any = False
    for _ in range(15):
        before = cooperative.owned
        run(m, consumer(m), *newcomers, cooperative, rounds=1)
        lost_any |= not cooperative.owned & had & before
    assert len(cooperative.owned) == 1
    assert not lost_any, "it was left with nothing in between"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"protocol_type": "connect"}, 23),
        ({"protocols": ()}, 23),
        ({"protocols": (("range", b"rubbish"),)}, 23),
        ({"protocols": (("sticky", metadata(("orders",))),)}, 23),
        ({"session_timeout_ms": 1}, 26),
        ({"member_id": "c", "instance_id": "unknown"}, 25),
    ],
)
def test_who_may_not_join(m: Mixed, changes: dict[str, object], code: int) -> None:
    m.joined()
    before = m.group.snapshot()
    member_id = str(changes.pop("member_id", ""))
    assert m.error(m.join(member_id, **changes)) == code
    assert m.group.snapshot() == before


def test_a_full_group_takes_no_more() -> None:
    m = Mixed(options=GroupOptions(max_size=1))
    settle(RealMember(m, "new"))
    assert m.error(m.join()) == 81


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"generation": 99}, 22),
        ({"member_id": "new"}, 25),
        ({"member_id": "x"}, 25),
        ({"protocol_type": "connect"}, 23),
        ({"protocol_name": "sticky"}, 23),
        ({"protocol_type": "consumer", "protocol_name": "range"}, 0),
    ],
)
def test_a_sync_must_fit_its_join(m: Mixed, changes: dict[str, object], code: int) -> None:
    joined = m.joined()
    member_id = str(changes.pop("member_id", joined.member_id))
    generation = int(str(changes.pop("generation", joined.generation)))
    assert m.error(m.sync(member_id, generation, **changes)) == code


def test_heartbeats_must_be_of_a_classic_member_at_its_generation(m: Mixed) -> None:
    joined = m.joined()
    assert m.heartbeat(joined.member_id, joined.generation + 1) == 22
    assert m.heartbeat("new", joined.generation) == 25
    with pytest.raises(StreamHouseError) as refused:
        m.beat(joined.member_id, joined.generation)
    assert refused.value.kafka_code == 25


def test_a_member_that_is_silent_for_its_own_session_is_removed(m: Mixed) -> None:
    joined = m.joined()
    m.synced(joined.member_id, joined.generation)
    settle(consumer(m))
    m.advance(SESSION_MS - 1)
    assert len(m.group.roster) == 2
    m.advance(1)
    assert [member.member_id for member in m.group.roster] == ["new"]


def alive(m: Mixed, member_id: str, generation: int, ms: int) -> None:
    """Time passes, and both members send heartbeats."""
    for _ in range(ms // 1_000):
        m.advance(1_000)
        consumer(m).beat()
        m.heartbeat(member_id, generation)


def test_a_member_that_does_not_join_when_told_to_is_removed(m: Mixed) -> None:
    joined = m.joined()
    m.synced(joined.member_id, joined.generation)
    alive(m, joined.member_id, joined.generation, REBALANCE_MS - 2_000)
    assert m.group.roster.get(joined.member_id) is not None
    alive(m, joined.member_id, joined.generation, 4_000)
    assert m.group.roster.get(joined.member_id) is None


def test_a_member_that_does_not_sync_after_its_join_is_removed(m: Mixed) -> None:
    client = ClassicClient(m)
    run(m, consumer(m), client)
    again = m.joined(client.member_id)
    alive(m, again.member_id, again.generation, REBALANCE_MS - 1_000)
    assert m.group.roster.get(client.member_id) is not None
    alive(m, again.member_id, again.generation, 2_000)
    assert m.group.roster.get(client.member_id) is None


def test_a_classic_member_commits_with_its_generation(m: Mixed) -> None:
    joined = m.joined()
    m.group.check_commit(joined.member_id, joined.generation)
    with pytest.raises(StreamHouseError) as refused:
        m.group.check_commit(joined.member_id, joined.generation - 1)
    assert refused.value.kafka_code == 22


def test_a_static_member_of_the_classic_protocol_is_replaced_at_once(m: Mixed) -> None:
    first = m.joined(instance_id="s")
    again = m.joined(instance_id="s")
    assert again.member_id != first.member_id
    assert len(m.group.roster) == 2
    assert m.heartbeat(first.member_id, first.generation, "s") == 82
    assert m.error(m.join(first.member_id, instance_id="s")) == 82
    newer = m.beat("newer", 0, instance_id="s")  # the consumer protocol needs no leave before
    assert newer.member_epoch > 0
    assert m.group.roster.static("s").classic is None


def test_a_static_member_of_the_consumer_protocol_is_replaced_by_a_classic_one(m: Mixed) -> None:
    m.beat("s1", 0, instance_id="s")
    joined = m.joined(instance_id="s")
    assert m.group.roster.static("s").member_id == joined.member_id
    assert m.group.roster.static("s").classic is not None
    assert len(m.group.roster) == 2


def test_a_member_may_change_its_subscription(m: Mixed) -> None:
    m.change_topics(orders=4, bills=2)
    client = ClassicClient(m)
    run(m, consumer(m), client)
    client.topics, client.must_join = ("bills",), True
    run(m, consumer(m), client)
    assert client.owned == {("bills", 0), ("bills", 1)}
    assert consumer(m).owned == keys("orders", 0, 1, 2, 3)


def test_a_deleted_topic_is_not_named_in_an_assignment(m: Mixed) -> None:
    client = ClassicClient(m)
    run(m, consumer(m), client)
    del m.topics["orders"]
    result = m.answers[m.sync(client.member_id, client.generation)]
    assert isinstance(result, SyncResult)
    assert result.assignment == b"\0\1\0\0\0\0\0\0\0\0"


def test_what_is_described_tells_the_protocol_of_each_member(m: Mixed) -> None:
    joined = m.joined()
    assert {member.member_id: member.is_classic for member in m.group.describe().members} == {
        "new": False,
        joined.member_id: True,
    }


def test_members_of_both_protocols_continue_after_a_take_over(m: Mixed) -> None:
    client = ClassicClient(m)
    run(m, consumer(m), client)
    had = (client.owned, consumer(m).owned)
    m.take_over()
    run(m, consumer(m), client)
    assert (client.owned, consumer(m).owned) == had
    assert client.errors[-1:] != [22]


def test_a_member_that_switches_to_the_consumer_protocol_under_its_id_leaves_no_timer(m: Mixed) -> None:
    joined = m.joined()
    m.beat("other", 0)
    assert m.heartbeat(joined.member_id, joined.generation) == 27
    m.beat(joined.member_id, 0)
    kinds = {key.kind for key in m.timers if key.member_id == joined.member_id}
    assert kinds == {TimerKind.SESSION}
    again = m.joined(joined.member_id)  # and back
    m.synced(again.member_id, again.generation)
    m.beat("third", 0)
    assert m.heartbeat(again.member_id, again.generation) == 27
    assert TimerKey(TimerKind.JOIN, again.member_id) in m.timers


def test_a_member_that_switches_to_the_classic_protocol_under_its_id_leaves_no_timer(m: Mixed) -> None:
    m.beat("other", 0)
    consumer(m).beat()
    assert TimerKey(TimerKind.REVOKE, "new") in m.timers
    joined = m.joined("new")
    m.synced(joined.member_id, joined.generation)
    assert {key.kind for key in m.timers if key.member_id == "new"} == {TimerKind.SESSION}
