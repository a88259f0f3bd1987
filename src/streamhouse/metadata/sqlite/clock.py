"""The store's clock: the machine's wall clock, except that it never goes back (R20). The caller stores it.

While the wall clock is behind (it was set back), this clock goes on from where it stood, measured by the boot clock,
at 15/16 of full speed. If it stood still, the leases of a dead agent would live until the wall clock has caught up. At
full speed the wall clock would never catch up. At 15/16 leases end on time (7% late), and a step back of five minutes
is caught up in 80. PostgreSQL's ``sh_now_ms()`` keeps the same rule (see the migration that makes ``store_clock``).
"""

from __future__ import annotations

import threading
from typing import Final

from streamhouse.core.clock import Clock

_SLOWER_BY: Final = 16


class StoreClock:
    """The largest of: the wall clock, what any process has stored, what this process has said before."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._anchor_ms = 0
        self._anchor_boot_ms = clock.boot_ms()

    def now_ms(self, stored_ms: int) -> int:
        with self._lock:
            boot_ms = self._clock.boot_ms()
            passed_ms = boot_ms - self._anchor_boot_ms
            slewed_ms = self._anchor_ms + passed_ms - -(-passed_ms // _SLOWER_BY)
            known_ms = max(self._clock.wall_ms(), stored_ms)
            if known_ms < slewed_ms:
                return slewed_ms
            self._anchor_ms, self._anchor_boot_ms = known_ms, boot_ms
            return known_ms
