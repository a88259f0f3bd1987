"""Queries that are not Spark's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class FakeQuery:
    resumed = "at the beginning"

    def __init__(self) -> None:
        self.is_active = True
        self.failed: str | None = None
        self.said: Mapping[str, Any] | None = None
        self.stops = 0

    def latest(self) -> Mapping[str, Any] | None:
        return self.said

    def failure(self) -> str | None:
        return self.failed

    def fail(self, why: str) -> None:
        self.is_active, self.failed = False, why

    def stop(self) -> None:
        self.is_active = False
        self.stops += 1
