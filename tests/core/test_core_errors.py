"""The error tree: the drawing equals the classes, and every class can be translated at every front door."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

import streamhouse.core.errors as errors
from streamhouse.core.errors import LeaseHeldByOther, NotLeader, StaleEpoch, StoreUnavailable, StreamHouseError

KAFKA_CODES = {
    int(code): name
    for code, name in (
        line.split()
        for line in (Path(__file__).parent / "kafka_4_2_error_codes.txt").read_text().splitlines()
        if not line.startswith("#")
    )
}


def every_class() -> list[type[StreamHouseError]]:
    found = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, StreamHouseError)]
    assert len(found) > 40
    return found


def drawn_tree() -> dict[str, str | None]:
    """Class name → parent's name, read from the drawing in the module's docstring."""
    parents: dict[str, str | None] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"^    (?P<lead>[│├└─ ]*)(?P<name>[A-Z]\w+)(?:\s{2,}.*)?$", line)
        if match is None:
            continue
        depth = len(match["lead"]) // 4
        parents[match["name"]] = path[depth - 1] if depth else None
        path[depth:] = [match["name"]]
    return parents


def test_the_drawing_in_the_docstring_is_the_real_tree() -> None:
    real = {each.__name__: None if each is StreamHouseError else each.__bases__[0].__name__ for each in every_class()}
    assert drawn_tree() == real


def test_every_error_has_one_parent_in_the_tree() -> None:
    for each in every_class():
        assert len(each.__bases__) == 1, each


@pytest.mark.parametrize("each", every_class(), ids=lambda each: each.__name__)
def test_every_error_has_sane_codes(each: type[StreamHouseError]) -> None:
    assert each.kafka_code in KAFKA_CODES
    assert each.kafka_code != 0, "0 is success"
    assert 400 <= each.http_status <= 599
    assert isinstance(each.retriable, bool)
    assert not each.default_hint.endswith(".")


def test_the_name_beside_a_kafka_code_is_kafkas_name_of_it() -> None:
    beside = re.findall(r"kafka_code\b.*= (-?\d+)  # ([A-Z_]+)", inspect.getsource(errors))
    assert len(beside) == len(re.findall(r"^    kafka_code\b.*=", inspect.getsource(errors), re.MULTILINE))
    assert {(int(code), name) for code, name in beside} <= set(KAFKA_CODES.items())


def test_what_may_be_retried_is_never_blamed_on_the_request() -> None:
    for each in every_class():
        if each.retriable:
            assert each.http_status in (409, 503), each


def test_a_default_hint_can_be_replaced_or_silenced() -> None:
    assert str(StoreUnavailable("no answer")).startswith("no answer (check that the object store")
    assert str(StoreUnavailable("no answer", hint="wait")) == "no answer (wait)"
    assert str(StoreUnavailable("no answer", hint="")) == "no answer"


def test_s1_15_lease_errors_carry_who_holds_it() -> None:
    held = LeaseHeldByOther("orders-0", agent_id="agent-2")
    assert (held.agent_id, held.kafka_code) == ("agent-2", 6)
    assert NotLeader("orders-0", current_leader="agent-2").current_leader == "agent-2"
    assert "no leader now" in str(NotLeader("orders-0", current_leader=None))
    assert NotLeader("orders-0", current_leader=None).kafka_code == 6


def test_s3_13_a_stale_epoch_says_both_epochs() -> None:
    stale = StaleEpoch("orders-0", expected=3, actual=4)
    assert (stale.expected, stale.actual) == (3, 4)
    assert "epoch 3 of orders-0 is stale; it is at epoch 4" in str(stale)
