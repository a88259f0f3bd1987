"""What each side of a transfer decides (R20)."""

from __future__ import annotations

from uuid import UUID

import pytest

from streamhouse.cluster.assigner import Wish
from streamhouse.cluster.transfers import Accepted, Completion, Offer, judge_completion, judge_offer, refusal
from streamhouse.core.errors import (
    MetadataError,
    MetadataUnavailable,
    NotLeader,
    PartitionNotFound,
    TransferConflict,
    TransferNotFound,
)
from streamhouse.metadata.contract import LeaseKey, SlotKey, Transfer, TransferState

KEY = SlotKey(4)


def make_transfer(number: int = 1, *, state: TransferState = TransferState.PENDING, key: LeaseKey = KEY) -> Transfer:
    return Transfer(
        transfer_id=UUID(int=number),
        key=key,
        from_agent="a",
        to_agent="b",
        epoch=1,
        state=state,
        reason="",
        created_at_ms=0,
        deadline_ms=10_000,
    )


@pytest.mark.parametrize(
    ("state", "offer"),
    [
        (TransferState.PENDING, Offer.OPEN),
        (TransferState.ACCEPTED, Offer.ACCEPTED),
        (TransferState.REJECTED, Offer.REFUSED),
        (TransferState.FAILED, Offer.REFUSED),
    ],
)
def test_what_becomes_of_an_offer(state: TransferState, offer: Offer) -> None:
    assert judge_offer(make_transfer(state=state)) is offer


def test_an_offer_that_is_not_listed_any_more_was_refused() -> None:
    assert judge_offer(None) is Offer.REFUSED


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (None, Completion.MOVED),
        (MetadataUnavailable("away"), Completion.UNKNOWN),
        (TimeoutError(), Completion.UNKNOWN),
        (NotLeader("orders:0", current_leader="c"), Completion.NOT_MINE),
        (PartitionNotFound("gone"), Completion.NOT_MINE),
        (TransferConflict("past its deadline"), Completion.REFUSED),
        (TransferNotFound("swept"), Completion.REFUSED),
        (MetadataError("closed"), Completion.REFUSED),
    ],
)
def test_r20_only_the_store_says_whether_a_completion_happened(error: Exception | None, verdict: Completion) -> None:
    assert judge_completion(error) is verdict


@pytest.mark.parametrize(
    ("leader", "draining", "holds", "stopping", "reason"),
    [
        ("b", [], [], False, None),
        ("b", [], [], True, "b is stopping"),
        ("b", [], [KEY], False, "b leads slot 4 already"),
        ("c", [], [], False, "c should lead slot 4"),
        (None, [], [], False, "no agent should lead slot 4"),
        ("c", ["a"], [], False, None),
        ("c", ["a"], [], True, "b is stopping"),
    ],
)
def test_when_an_offer_is_accepted(
    leader: str | None, draining: list[str], holds: list[LeaseKey], stopping: bool, reason: str | None
) -> None:
    wish = Wish(leader_of={KEY: leader})
    judged = refusal(make_transfer(), agent_id="b", wish=wish, holds=holds, draining=draining, stopping=stopping)
    assert judged == reason


def test_an_offer_of_something_that_does_not_exist_is_rejected() -> None:
    nothing = Wish(leader_of={})
    reason = refusal(make_transfer(), agent_id="b", wish=nothing, holds=(), draining=("a",), stopping=False)
    assert reason == "slot 4 does not exist"


def test_an_accepted_transfer_has_ended_when_it_is_not_open_any_more() -> None:
    accepted = Accepted()
    first, second = make_transfer(1), make_transfer(2, key=SlotKey(5))
    accepted.add(first)
    accepted.add(second)
    assert accepted.ended({first.transfer_id: first, second.transfer_id: second}) == []
    assert accepted.ended({second.transfer_id: second}) == [KEY]
    accepted.forget([KEY])
    assert KEY not in accepted
    assert accepted.keys() == (SlotKey(5),)
    assert len(accepted) == 1
