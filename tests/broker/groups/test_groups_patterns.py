"""Regular expressions of clients over topic names."""

from __future__ import annotations

import pytest

from streamhouse.broker.groups.options import MAX_PATTERN_CHARS
from streamhouse.broker.groups.patterns import check_pattern, matching
from streamhouse.core.errors import InvalidPattern


def test_a_pattern_matches_whole_names() -> None:
    assert matching("order.*", ["orders", "my-orders", "order"]) == ["orders", "order"]
    assert matching("^orders$", ["orders", "orders-2"]) == ["orders"]


@pytest.mark.parametrize("pattern", ["(", "[", "(?=x)", r"(a)\1", "a" * (MAX_PATTERN_CHARS + 1), "((a{1000}){1000})"])
def test_what_re2_does_not_take_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPattern):
        check_pattern(pattern)


def test_a_pattern_that_would_take_other_engines_for_ever_is_quick() -> None:
    assert matching("(a+)+b", ["a" * 200]) == []
