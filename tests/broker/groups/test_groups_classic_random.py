"""The classic protocol under random events: no member waits for ever, generations only grow, a part has one reader."""

from __future__ import annotations

from collections import Counter

from group_driver import REBALANCE_MS, Driver
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from streamhouse.broker.groups.contract import GroupState, JoinResult, SyncRequest, SyncResult, Ticket, TimerKind
from streamhouse.broker.groups.options import NEW_MEMBER_JOIN_TIMEOUT_MS, GroupOptions
from streamhouse.broker.groups.payload import decode, encode
from streamhouse.core.errors import MemberIdRequired, NotCoordinator

PARTS = 6
_PROTOCOLS = ((("range", b"1"),), (("range", b"2"), ("sticky", b"2")), (("sticky", b"3"), ("range", b"3")))


class RandomGroup(RuleBasedStateMachine):
    tickets = Bundle("tickets")

    @initialize(delay_ms=st.sampled_from([0, 3_000]))
    def begin(self, delay_ms: int) -> None:
        self.d = Driver(GroupOptions(initial_rebalance_delay_ms=delay_ms, max_size=5))
        self.seen = 0
        self.waiting: dict[Ticket, int] = {}
        """When each ticket was asked."""
        self.syncs: dict[Ticket, tuple[int, str]] = {}
        self.read_by: dict[tuple[int, int], str] = {}

    def _held(self, ticket: Ticket) -> Ticket:
        self.waiting[ticket] = self.d.now_ms
        return ticket

    def _members(self) -> list[str]:
        return [member.member_id for member in self.d.group.roster] + list(self.d.group.pending) + ["stranger"]

    def _instance(self, member_id: str) -> str | None:
        member = self.d.group.roster.get(member_id)
        return None if member is None else member.instance_id

    @rule(
        instance=st.sampled_from([None, None, "s", "t"]),
        protocols=st.sampled_from(_PROTOCOLS),
        known=st.booleans(),
        skip=st.booleans(),
    )
    def join_anew(
        self, instance: str | None, protocols: tuple[tuple[str, bytes], ...], known: bool, skip: bool
    ) -> None:
        self._held(self.d.join(instance=instance, protocols=protocols, known_id_required=known, can_skip=skip))

    @rule(pick=st.integers(0, 100), protocols=st.sampled_from(_PROTOCOLS))
    def join_again(self, pick: int, protocols: tuple[tuple[str, bytes], ...]) -> None:
        names = self._members()
        name = names[pick % len(names)]
        self._held(self.d.join(name, instance=self._instance(name), protocols=protocols))

    @rule()
    def all_members_join(self) -> None:
        for member in list(self.d.group.roster):
            if member.joining is None and member.member_id in self.d.group.roster:
                self._held(self.d.join(member.member_id, instance=member.instance_id, protocols=member.protocols))

    @rule(pick=st.integers(0, 100), behind=st.sampled_from([0, 0, 0, 1]))
    def sync(self, pick: int, behind: int) -> None:
        names = self._members()
        name = names[pick % len(names)]
        generation = self.d.group.generation - behind
        members = [member.member_id for member in self.d.group.roster]
        shares: dict[str, bytearray] = {member: bytearray() for member in members}
        for part in range(PARTS if members else 0):
            shares[members[part % len(members)]].append(part)
        request = SyncRequest(
            group_id="g",
            generation=generation,
            member_id=name,
            instance_id=self._instance(name),
            assignments=tuple((member, bytes(share)) for member, share in shares.items()),
        )
        ticket = self._held(self.d.ticket())
        self.syncs[ticket] = (generation, self._instance(name) or name)
        self.d.take(self.d.group.sync(request, ticket, self.d.now_ms))

    @rule(pick=st.integers(0, 100))
    def heartbeat(self, pick: int) -> None:
        names = self._members()
        self.d.heartbeat(names[pick % len(names)])

    @rule(pick=st.integers(0, 100))
    def leave(self, pick: int) -> None:
        names = self._members()
        self.d.leave(names[pick % len(names)])

    @rule(pick=st.integers(0, 100), generation=st.integers(-1, 10))
    def commit(self, pick: int, generation: int) -> None:
        names = self._members()
        code = self.d.commit(names[pick % len(names)], generation)
        if self.d.state is GroupState.COMPLETING_REBALANCE:
            assert code != 0

    @rule(ms=st.sampled_from([0, 1, 2_999, 3_000, 9_999, 10_000, 59_999, REBALANCE_MS, NEW_MEMBER_JOIN_TIMEOUT_MS]))
    def time_passes(self, ms: int) -> None:
        self.d.advance(ms)

    @rule()
    def another_coordinator_takes_over(self) -> None:
        """Begin from the last state that was saved; here, the present one."""
        saved = decode(encode(self.d.group.snapshot()))
        before = self.d.group
        self.d.take(before.end(NotCoordinator("moved")))
        successor = Driver(self.d.options).group
        successor.generation = before.generation
        self.d.group = successor
        self.d.timers.clear()
        self.d.take(successor.restore(saved, self.d.now_ms))  # type: ignore[arg-type]

    # What always holds.

    @invariant()
    def generations_only_grow(self) -> None:
        if hasattr(self, "d"):
            assert self.d.group.generation >= self.seen
            self.seen = self.d.group.generation

    @invariant()
    def no_member_waits_for_ever(self) -> None:
        if not hasattr(self, "d"):
            return
        for ticket in [ticket for ticket in self.waiting if ticket in self.d.answers]:
            del self.waiting[ticket]
        held = {ticket for member in self.d.group.roster for ticket in (member.joining, member.syncing) if ticket}
        assert set(self.waiting) == held
        if self.d.state is GroupState.PREPARING_REBALANCE:
            assert self.d.has_timer(TimerKind.JOIN)
        if self.d.state is GroupState.COMPLETING_REBALANCE:
            assert self.d.has_timer(TimerKind.SYNC)
        for asked_ms in self.waiting.values():
            assert self.d.now_ms - asked_ms <= 2 * NEW_MEMBER_JOIN_TIMEOUT_MS

    @invariant()
    def the_books_are_right(self) -> None:
        if not hasattr(self, "d"):
            return
        group = self.d.group
        assert group.roster.joining == sum(member.joining is not None for member in group.roster)
        assert group.roster.weight_bytes == sum(member.weight_bytes for member in group.roster)
        assert len(group.roster) <= 5
        for member in group.roster:
            assert self.d.has_timer(TimerKind.SESSION, member.member_id)
        if group.state is GroupState.EMPTY:
            assert not len(group.roster)
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            assert group.roster.leader in group.roster
        if len(group.roster):
            assert group.roster.select_protocol()

    @invariant()
    def one_reader_for_each_part_of_a_generation(self) -> None:
        if not hasattr(self, "d"):
            return
        for ticket in [ticket for ticket in self.syncs if ticket in self.d.answers]:
            generation, reader = self.syncs.pop(ticket)
            answer = self.d.answers[ticket]
            if isinstance(answer, SyncResult):
                for part in answer.assignment:
                    assert self.read_by.setdefault((generation, part), reader) == reader

    @invariant()
    def one_leader_for_each_generation(self) -> None:
        if not hasattr(self, "d"):
            return
        led = Counter(
            answer.generation
            for answer in self.d.answers.values()
            if isinstance(answer, JoinResult) and answer.members and not answer.skip_assignment
        )
        names = {
            (answer.generation, answer.member_id)
            for answer in self.d.answers.values()
            if isinstance(answer, JoinResult) and answer.members and not answer.skip_assignment
        }
        assert len(names) == len(led)
        assert all(answer.member_id for answer in self.d.answers.values() if isinstance(answer, MemberIdRequired))

    def teardown(self) -> None:
        if hasattr(self, "d"):
            self.d.advance(10 * NEW_MEMBER_JOIN_TIMEOUT_MS)
            assert self.d.state is GroupState.EMPTY
            assert not [ticket for ticket in self.waiting if ticket not in self.d.answers]
            assert not self.d.timers


TestRandomGroup = RandomGroup.TestCase
TestRandomGroup.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
