"""KIP-848 groups under random events: never two readers of one partition, and all members settle in the end."""

from __future__ import annotations

from consumer_driver import REBALANCE_MS, Consumers, RealMember, topics
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from streamhouse.broker.groups.contract import GroupState
from streamhouse.broker.groups.options import GroupOptions
from streamhouse.broker.groups.payload import decode, encode
from streamhouse.broker.groups.snapshot import ConsumerSnapshot
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import PartitionKey

_SUBSCRIPTIONS = ({"topic_names": ("a",)}, {"topic_names": ("a", "b")}, {"topic_names": (), "topic_pattern": "^[bc].*"})


class RandomConsumers(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.c = Consumers(GroupOptions(max_size=4), topics=topics(a=3, b=2))
        self.members: list[RealMember] = []
        self.named = 0
        self.epoch = 0

    @rule(
        subscription=st.sampled_from(_SUBSCRIPTIONS),
        assignor=st.sampled_from([None, "uniform", "range"]),
        instance=st.sampled_from([None, None, "s"]),
    )
    def a_member_comes(self, subscription: dict[str, object], assignor: str | None, instance: str | None) -> None:
        self.named += 1
        joins = {**subscription, "assignor": assignor, "instance_id": instance}
        member = RealMember(self.c, f"m{self.named}", joins)
        if self._beat(member):
            self.members.append(member)

    @rule(pick=st.integers(0, 50))
    def heartbeat(self, pick: int) -> None:
        if self.members:
            member = self.members[pick % len(self.members)]
            if not self._beat(member):
                self.members.remove(member)

    def _beat(self, member: RealMember) -> bool:
        """Whether it is still in. A real one that is fenced abandons its partitions."""
        try:
            member.beat()
        except StreamHouseError:
            return False
        return True

    @rule(pick=st.integers(0, 50))
    def an_answer_is_lost(self, pick: int) -> None:
        if not self.members:
            return
        member = self.members[pick % len(self.members)]
        if not member.epoch:
            return
        try:
            self.c.beat(member.name, member.epoch, owned=member.owned)
            member.lost_an_answer = True
        except StreamHouseError:
            self.members.remove(member)

    @rule(pick=st.integers(0, 50), away=st.booleans())
    def leave(self, pick: int, away: bool) -> None:
        if not self.members:
            return
        member = self.members.pop(pick % len(self.members))
        static = member.joins_with["instance_id"]
        self.c.code(member.name, -2 if away and static else -1, instance_id=static)

    @rule(a=st.integers(0, 4), b=st.integers(0, 3), c=st.integers(0, 2))
    def topics_change(self, a: int, b: int, c: int) -> None:
        self.c.change_topics(**{name: count for name, count in (("a", a), ("b", b), ("c", c)) if count})

    @rule(ms=st.sampled_from([1, 10_000, 44_999, REBALANCE_MS]))
    def time_passes(self, ms: int) -> None:
        """Members that are cut off notice by their own clock and stop reading (as real ones do)."""
        self.c.advance(ms)
        self.members = [member for member in self.members if self.c.group.roster.get(member.name) is not None]

    @rule()
    def another_coordinator_takes_over(self) -> None:
        saved = decode(encode(self.c.group.snapshot()))
        assert isinstance(saved, ConsumerSnapshot)
        successor = Consumers(self.c.options, topics=self.c.topics, now_ms=self.c.now_ms)
        successor.group.group_epoch = self.c.group.group_epoch
        successor.take(successor.group.restore(saved, successor.now_ms))
        successor.take(successor.group.topics_changed(successor.topics))
        for member in self.members:
            member.group = successor
        self.c = successor

    @invariant()
    def never_two_readers(self) -> None:
        if not hasattr(self, "c"):
            return
        readers: dict[PartitionKey, str] = {}
        for member in self.members:
            for key in member.owned:
                assert readers.setdefault(key, member.name) == member.name
        held: set[PartitionKey] = set()
        for each in self.c.group.roster:
            mine = each.assigned | each.revoking
            assert not held & mine
            held |= mine

    @invariant()
    def targets_cover_each_partition_once(self) -> None:
        if not hasattr(self, "c"):
            return
        targets = [key for member in self.c.group.roster for key in member.target]
        assert len(targets) == len(set(targets))
        wanted = {topic_id for member in self.c.group.roster for topic_id in member.topics}
        counts = {fact.topic_id: fact.partition_count for fact in self.c.topics.values()}
        assert len(targets) == sum(counts[topic_id] for topic_id in wanted)

    @invariant()
    def epochs_only_grow(self) -> None:
        if hasattr(self, "c"):
            assert self.c.group.group_epoch >= self.epoch
            self.epoch = self.c.group.group_epoch

    def teardown(self) -> None:
        """Left alone, the group settles: every member reads its target."""
        if not hasattr(self, "c"):
            return
        for _ in range(20):
            self.c.advance(3_000)
            self.members = [member for member in self.members if self._beat(member)]
            self.never_two_readers()
        for member in self.members:
            known = self.c.group.roster.get(member.name)
            assert known is not None
            assert member.owned == known.target == known.assigned
        assert self.c.group.state in (GroupState.STABLE, GroupState.EMPTY)


TestRandomConsumers = RandomConsumers.TestCase
TestRandomConsumers.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
