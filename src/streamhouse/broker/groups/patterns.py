"""Regular expressions of clients over topic names. RE2 only: its run time is linear in the length of the name.

The only module that imports ``re2``.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

import re2

from streamhouse.broker.groups.options import MAX_PATTERN_CHARS
from streamhouse.core.errors import InvalidPattern

_MAX_PROGRAM_BYTES: Final = 1 << 20  # of one compiled expression; RE2 refuses what needs more
_REMEMBERED: Final = 256


def check_pattern(pattern: str) -> None:
    """Raises InvalidPattern."""
    _compile(pattern)


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that the pattern matches as a whole, as in Kafka."""
    compiled = _compile(pattern)
    return [name for name in names if compiled.fullmatch(name)]


@lru_cache(_REMEMBERED)
def _compile(pattern: str) -> Any:
    if len(pattern) > MAX_PATTERN_CHARS:
        raise InvalidPattern(f"a regular expression of {len(pattern)} characters; at most {MAX_PATTERN_CHARS}")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_PROGRAM_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise InvalidPattern(f"{pattern[:64]!r} is not a valid RE2 expression: {_text(error)}") from error


def _text(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    return said.decode(errors="replace") if isinstance(said, bytes) else str(said)
