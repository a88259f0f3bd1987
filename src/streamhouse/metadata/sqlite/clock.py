"""The store's clock: the machine's wall clock, except that it never goes back (R20). The caller stores it."""

from __future__ import annotations

import threading

from streamhouse.core.clock import Clock


class StoreClock:
    """The largest of: the wall clock, what any process has stored, what this process has said before.

    While the wall clock stands behind (somebody set it back), this one goes on at half the speed of the boot clock:
    standing still would keep a dead agent's leases alive until the wall clock has caught up, and full speed would never
    let it catch up.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._anchor_ms = 0
        self._anchor_boot_ms = clock.boot_ms()

    def now_ms(self, stored_ms: int) -> int:
        with self._lock:
            boot_ms = self._clock.boot_ms()
            slewed_ms = self._anchor_ms + (boot_ms - self._anchor_boot_ms) // 2
            known_ms = max(self._clock.wall_ms(), stored_ms)
            if known_ms < slewed_ms:
                return slewed_ms
            self._anchor_ms, self._anchor_boot_ms = known_ms, boot_ms
            return known_ms
