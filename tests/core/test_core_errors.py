"""The error tree: the drawing equals the classes, and every class can be translated at every front door."""

from __future__ import annotations

import copy
import inspect
import pickle
import re
from collections.abc import Sequence
from pathlib import Path
from typing import get_type_hints

import pytest

import streamhouse.core.errors as errors
from streamhouse.core.errors import (
    LeaseHeldByOther,
    NotLeader,
    RecordError,
    StaleEpoch,
    StoreUnavailable,
    StreamHouseError,
)
from streamhouse.metadata.sqlite.connections import Busy

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


def all_below(root: type[StreamHouseError]) -> list[type[StreamHouseError]]:
    """The class and its subclasses, those that modules keep to themselves included if they are imported."""
    return [root, *(each for child in root.__subclasses__() for each in all_below(child))]


def example_of(each: type[StreamHouseError]) -> StreamHouseError:
    """An error of this class, made from the arguments that it takes."""
    values = {
        str: "orders",
        int: 7,
        bool: True,
        str | None: "wait",
        Sequence[RecordError]: [RecordError(position=3, message="no key")],
    }
    wanted = inspect.signature(each).parameters
    hints = get_type_hints(each.__init__)
    given = {name: values[hints[name]] for name in wanted}
    positional = [given.pop(name) for name, one in wanted.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    return each(*positional, **given)


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


def test_errors_that_modules_keep_to_themselves_are_looked_at_too() -> None:
    assert Busy in all_below(StreamHouseError)


@pytest.mark.parametrize("each", all_below(StreamHouseError), ids=lambda each: each.__name__)
def test_p4_every_error_survives_the_way_from_a_task_to_the_driver(each: type[StreamHouseError]) -> None:
    sent = example_of(each)
    sent.add_note("in task 3")
    got = pickle.loads(pickle.dumps(sent))
    assert type(got) is each
    assert str(got) == str(sent)
    assert (got.args, vars(got)) == (sent.args, vars(sent))
    assert vars(copy.copy(sent)) == vars(sent)
