"""Documents of users: every problem in one pass, each with its path and with what to write instead."""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from streamhouse.core.errors import InvalidSetting
from streamhouse.spark.definitions.documents import Document, DocumentProblem, KeyRule, Text, read


class Colour(StrEnum):
    RED = "red"
    GREEN = "green"


def no_ghosts(name: str) -> None:
    if name == "ghost":
        raise InvalidSetting("is a ghost", hint="call someone else")


class Inner(Document, frozen=True, kw_only=True):
    colour: Colour = Colour.RED
    size: Literal["small", "large"] = "small"


class Outer(Document, frozen=True, kw_only=True):
    name: Annotated[Text, KeyRule(example="name: x", check=no_ghosts)]
    code: Annotated[str, Meta(pattern=r"^[a-z]+\Z"), KeyRule(example="code: abc", wrong="is no code")] = "abc"
    inner: (
        Annotated[Inner, KeyRule(before=lambda given: {"colour": given} if isinstance(given, str) else given)] | None
    ) = None
    many: dict[Annotated[str, KeyRule(check=no_ghosts)], Inner | None] = msgspec.field(default_factory=dict)
    renamed: bool = msgspec.field(default=False, name="re-named")

    def contradictions(self) -> Iterator[DocumentProblem]:
        if self.renamed and self.code == "abc":
            yield DocumentProblem(path=("code",), message="must not be abc")


def test_what_is_right_is_converted() -> None:
    given = {"name": 2026, "inner": "GREEN", "many": {"a": None, "b": {"size": "Large"}}, "re-named": None}
    found, problems = read(Outer, given)
    assert problems == []
    green, large = Inner(colour=Colour.GREEN), Inner(size="large")
    assert found == Outer(name="2026", inner=green, many={"a": None, "b": large})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "is not a mapping of names to values"),
        ({}, "name is missing (name: x)"),
        ({"name": None}, "name is missing (name: x)"),
        ({"name": ""}, "name: expected str of length >= 1 (name: x)"),
        ({"name": True}, "name: expected str, got bool (name: x)"),
        ({"name": "ghost"}, "name: is a ghost (call someone else)"),
        ({"name": "x", "code": "A1"}, "code: 'A1' is no code (code: abc)"),
        ({"name": "x", "inner": 1}, "inner: is not a mapping of names to values"),
        ({"name": "x", "inner": "gren"}, "inner.colour: 'gren' is none of red, green (did you mean green?)"),
        ({"name": "x", "many": {"b": {"size": 7}}}, "many.b.size: '7' is none of small, large (write small, large)"),
        ({"name": "x", "many": {"ghost": None}}, "many.ghost: is a ghost (call someone else)"),
        ({"name": "x", "cod": 1}, "cod: there is no 'cod' here (did you mean code?)"),
        ({"name": "x", "renamed": True}, "renamed: there is no 'renamed' here (did you mean re-named?)"),
        ({"name": "x", "re-named": True}, "code: must not be abc"),
    ],
)
def test_what_is_wrong_is_said_with_its_path_and_a_hint(given: Any, said: str) -> None:
    found, problems = read(Outer, given)
    assert found is None
    assert [str(problem) for problem in problems] == [said]


def test_all_problems_are_found_at_once() -> None:
    _, problems = read(Outer, {"zzz": 1, "code": "1", "inner": {"size": "", "y": 2}})
    assert [problem.path for problem in problems] == [(), ("code",), ("inner", "size"), ("inner", "y"), ("zzz",)]
