"""«Did you mean …?» for every name a person can mistype. Shows names, never values."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known name most like the word, or None when nothing is near enough to be worth a guess."""
    by_lower = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word[:200].lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str], *, otherwise: str) -> str:
    """A hint for an error: the closest known name, or where to find them all."""
    name = closest(word, known)
    return f"did you mean {name}?" if name else otherwise
