"""Who holds which lease: the owner's word against the store's."""

from __future__ import annotations

from uuid import UUID

from streamhouse.broker.known_leases import KnownLeases
from streamhouse.core.ids import PartitionKey, TopicId
from streamhouse.metadata.contract import Lease, LeaseKey, SlotKey

TOPIC = TopicId(UUID(int=7))
KEY, NEXT = PartitionKey(TOPIC, 0), PartitionKey(TOPIC, 1)
SLOT = SlotKey(3)


def lease(key: LeaseKey, agent_id: str, epoch: int, *, expired: bool = False) -> Lease:
    return Lease(
        key=key,
        topic="t" if isinstance(key, PartitionKey) else None,
        agent_id=agent_id,
        incarnation=UUID(int=1),
        epoch=epoch,
        acquired_at_ms=0,
        expires_at_ms=1,
        expired=expired,
        high_watermark=0,
    )


def test_the_owners_word_outweighs_the_stores() -> None:
    known = KnownLeases("me")
    known.gained(lease(KEY, "me", 4))
    assert known.take([lease(KEY, "other", 3)]) == []
    assert known.holding(KEY) == ("me", 4)
    assert known.ended(KEY)
    assert not known.ended(KEY)
    assert known.holding(KEY) is None
    assert known.take([lease(KEY, "me", 4)]) == []
    assert known.holding(KEY) is None


def test_what_is_handed_over_stays_here_until_the_store_names_another_or_nobody() -> None:
    known = KnownLeases("me")
    for key in (KEY, NEXT):
        known.gained(lease(key, "me", 4))
        assert known.leave(key)
        assert not known.leave(key)
    assert not known.is_own(KEY)
    assert list(known.leaving()) == [KEY, NEXT]
    assert known.take([lease(KEY, "me", 4), lease(NEXT, "me", 4)]) == []
    assert known.of_topic(TOPIC) == ({0: 4, 1: 4}, {})
    assert set(known.take([lease(KEY, "other", 5)])) == {KEY, NEXT}
    assert known.of_topic(TOPIC) == ({}, {0: ("other", 5)})
    assert known.leaving_epoch(KEY) is None


def test_an_answer_about_some_keys_says_nothing_of_the_rest() -> None:
    known = KnownLeases("me")
    assert set(known.take([lease(KEY, "other", 1), lease(SLOT, "other", 1)])) == {KEY, SLOT}
    assert known.take([lease(KEY, "other", 2, expired=True)], asked=[KEY]) == [KEY]
    assert known.holding(KEY) is None
    assert known.holding(SLOT) == ("other", 1)
    assert known.take([]) == [SLOT]
    assert known.holding(SLOT) is None


def test_a_deleted_topics_open_partitions_stay_until_their_owner_closes_them() -> None:
    known = KnownLeases("me")
    known.gained(lease(KEY, "me", 4))
    known.take([lease(NEXT, "other", 1)])
    known.forget_topic(TOPIC)
    assert known.of_topic(TOPIC) == ({0: 4}, {})
