"""How often something dear may be done: at once now and then, and for a set share of the time in the long run. Pure.

    purse   ▕████████▏ 1 s     a look takes out what it took; time puts a share of itself back
    empty                      who is in debt waits until it is paid, and never longer than ``longest_s``

A pause in proportion to the last look alone would let one slow look, in a store that was busy for a moment, hold up
everything after it, and would make even a look that is due for the first time in an hour wait.
"""

from __future__ import annotations


class Allowance:
    def __init__(self, *, share: float, purse_s: float, longest_s: float) -> None:
        self._share = share
        self._purse_s = purse_s
        self._longest_debt_s = longest_s * share
        self._left_s = purse_s
        self._at_s: float | None = None

    def spent(self, took_s: float, *, now_s: float) -> None:
        self._left_s = max(self._now_left_s(now_s) - took_s, -self._longest_debt_s)
        self._at_s = now_s

    def wait_s(self, *, now_s: float) -> float:
        """0 while there is something in the purse."""
        return max(-self._now_left_s(now_s) / self._share, 0.0)

    def _now_left_s(self, now_s: float) -> float:
        elapsed_s = 0.0 if self._at_s is None else now_s - self._at_s
        return min(self._left_s + self._share * elapsed_s, self._purse_s)
