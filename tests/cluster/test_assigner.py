"""The plan that the assigner makes of the ring and the real leases."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from streamhouse.cluster.assigner import (
    DRAINING,
    Assigner,
    LeasePlan,
    Wish,
    all_keys,
    members_of,
    plan,
    plan_single_node,
    soonest_death_ms,
)
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import (
    AgentInfo,
    HeldLease,
    Lease,
    LeaseKey,
    RegisteredAgent,
    SlotKey,
    Topic,
    WriteMode,
)

ME, MY_RUN, EARLIER_RUN = "a", UUID(int=1), UUID(int=2)
K0, K1, K2, K3, K4, K5 = (PartitionKey(TopicId(UUID(int=9)), number) for number in range(6))


def make_topic(name: str, partitions: int = 4, *, leaderless: bool = False, group: str | None = None) -> Topic:
    return Topic(
        topic_id=TopicId(UUID(int=abs(hash(name)) % 2**64)),
        name=name,
        partition_count=partitions,
        configs={} if group is None else {"agent.group": group},
        write_mode=WriteMode.LEADERLESS if leaderless else WriteMode.LEASED,
        created_at_ms=0,
        version=1,
    )


def make_agent(
    agent_id: str, *, group: str = "default", heartbeat_ms: int = 0, draining: bool = False
) -> RegisteredAgent:
    return RegisteredAgent(
        agent_id=agent_id,
        incarnation=UUID(int=5),
        node_id=1,
        listeners={"kafka": "x:1"},
        availability_zone="z",
        agent_group=group,
        last_heartbeat_ms=heartbeat_ms,
        started_at_ms=0,
        metadata={DRAINING: True} if draining else {},
    )


def make_lease(key: LeaseKey, agent_id: str, *, run: UUID = MY_RUN, expired: bool = False, epoch: int = 3) -> Lease:
    return Lease(
        key=key,
        topic=None,
        agent_id=agent_id,
        incarnation=run,
        epoch=epoch,
        acquired_at_ms=0,
        expires_at_ms=0,
        expired=expired,
        high_watermark=0,
    )


def make_plan(
    leader_of: Mapping[LeaseKey, str | None],
    *leases: Lease,
    held: Iterable[LeaseKey] = (),
    busy: Iterable[LeaseKey] = (),
) -> LeasePlan:
    return plan(
        Wish(leader_of=leader_of),
        {lease.key: lease for lease in leases},
        agent_id=ME,
        incarnation=MY_RUN,
        held=set(held),
        busy=set(busy),
    )


def test_s3_10_what_is_wanted_and_free_is_acquired() -> None:
    made = make_plan(
        {K0: ME, K1: ME, K2: ME, K3: ME, K4: ME, K5: "b"},
        make_lease(K1, "b", run=UUID(int=8), expired=True),
        make_lease(K2, "b", run=UUID(int=8)),
        make_lease(K3, ME, run=EARLIER_RUN),
        make_lease(K4, ME),
    )
    assert made.acquire == [K0, K1, K3, K4], "not what another agent still holds: that agent must hand it over"
    assert made == LeasePlan(acquire=made.acquire)


def test_s3_10_what_is_held_and_not_wanted_is_handed_over_or_released() -> None:
    made = make_plan({K0: "b", K1: None, K2: ME}, make_lease(K0, ME), held=[K0, K1, K2])
    assert made == LeasePlan(hand_over={K0: "b"}, release=[K1])


def test_what_is_left_under_my_name_and_not_wanted_is_given_back() -> None:
    made = make_plan(
        {K0: "b", K1: "b", K2: "b", K3: None},
        make_lease(K0, ME, epoch=7),
        make_lease(K1, ME, expired=True),
        make_lease(K2, ME, run=EARLIER_RUN),
        make_lease(K3, ME, epoch=2),
    )
    assert made == LeasePlan(give_back=[HeldLease(key=K0, epoch=7), HeldLease(key=K3, epoch=2)])


def test_what_is_under_way_is_left_alone() -> None:
    made = make_plan({K0: ME, K1: "b", K2: "b"}, make_lease(K2, ME), held=[K1], busy=[K0, K1, K2])
    assert made == LeasePlan()


def test_a_plan_that_was_followed_leaves_nothing_to_do() -> None:
    topics = [make_topic("orders", 20)]
    wish = Assigner().wish({("default", ME), ("default", "b")}, topics)
    made = plan(wish, {}, agent_id=ME, incarnation=MY_RUN, held=set(), busy=set())
    leases = {key: make_lease(key, ME) for key in made.acquire}
    assert plan(wish, leases, agent_id=ME, incarnation=MY_RUN, held=set(made.acquire), busy=set()) == LeasePlan()


@given(
    agents=st.sets(st.tuples(st.sampled_from(["default", "ingest"]), st.sampled_from("abcdef")), max_size=6),
    topics=st.lists(
        st.tuples(st.integers(1, 8), st.booleans(), st.sampled_from([None, "ingest", "empty"])), max_size=4
    ),
)
def test_s3_5_everything_is_on_exactly_one_ring(
    agents: set[tuple[str, str]], topics: list[tuple[int, bool, str | None]]
) -> None:
    made = [
        make_topic(f"t{number}", count, leaderless=leaderless, group=group)
        for number, (count, leaderless, group) in enumerate(topics)
    ]
    wish = Assigner().wish(agents, made)
    assert sorted(map(str, wish.leader_of)) == sorted(map(str, all_keys(made)))
    groups = {topic.topic_id: topic.configs.get("agent.group", "default") for topic in made}
    for key, leader in wish.leader_of.items():
        group = "default" if isinstance(key, SlotKey) else groups[key.topic_id]
        candidates = {agent_id for of_group, agent_id in agents if of_group == group}
        assert leader in candidates if candidates else leader is None


def test_leaderless_topics_are_not_led() -> None:
    wish = Assigner().wish({("default", ME)}, [make_topic("free", leaderless=True)])
    assert set(wish.leader_of) == {SlotKey(slot) for slot in range(50)}


def test_slots_are_spread_whatever_the_partitions_do() -> None:
    wish = Assigner().wish({("default", "a"), ("default", "b")}, [make_topic("big", 1000)])
    slots = [leader for key, leader in wish.leader_of.items() if isinstance(key, SlotKey)]
    assert max(slots.count("a"), slots.count("b")) <= 32, "ceil(1.25 × 25)"


def test_the_ring_is_computed_again_only_when_something_changed() -> None:
    assigner, members, topics = Assigner(), {("default", "a")}, [make_topic("orders")]
    first = assigner.wish(members, topics)
    assert assigner.wish(set(members), list(topics)) is first
    assert assigner.wish(members | {("default", "b")}, topics) is not first
    assert assigner.wish(members, topics) is not first
    regrouped = assigner.wish(members, [make_topic("orders", group="ingest")])
    assert regrouped.without_leader() == 4


def test_who_counts_as_a_member() -> None:
    me = AgentInfo(agent_id=ME, incarnation=MY_RUN, listeners={"kafka": "x:1"})
    agents = [make_agent("b"), make_agent("c", draining=True), make_agent("d", group="ingest")]
    others = {("default", "b"), ("ingest", "d")}
    assert members_of(agents, me, leaving=False) == others | {("default", ME)}, "though the store does not list it"
    assert members_of([*agents, make_agent(ME)], me, leaving=True) == others


def test_single_node_takes_everything_that_it_does_not_hold() -> None:
    topics = [make_topic("orders", 3), make_topic("free", 3, leaderless=True)]
    keys = topics[0].partition_keys()
    made = plan_single_node(topics, held={keys[0]}, busy={keys[1], SlotKey(0)})
    assert made == LeasePlan(acquire=[*(SlotKey(slot) for slot in range(1, 50)), keys[2]])


def test_s3_16_the_next_possible_death_is_known_in_advance() -> None:
    agents = [make_agent(ME, heartbeat_ms=0), make_agent("b", heartbeat_ms=5_000), make_agent("c", heartbeat_ms=9_000)]

    def soonest(now_ms: int) -> int | None:
        return soonest_death_ms(agents, except_agent=ME, now_ms=now_ms, liveness_timeout_ms=6_000)

    assert soonest(10_000) == 1_000
    assert soonest(20_000) == 0
    assert soonest_death_ms(agents[:1], except_agent=ME, now_ms=0, liveness_timeout_ms=6_000) is None
