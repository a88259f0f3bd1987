"""A store in a directory, what lies in it half-written, and a record of its system calls."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamhouse.core.clock import ManualClock, SystemClock
from streamhouse.core.randomness import SystemRandomness
from streamhouse.objectstore.local import LocalStore


async def opened(root: Path, clock: SystemClock | ManualClock | None = None) -> LocalStore:
    return await LocalStore.open(root, clock=clock or SystemClock(), randomness=SystemRandomness())


class Recorder:
    """Writes down the system calls that matter, by path, in order. The calls happen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.calls: list[str] = []
        self._root = root
        for name in ("fsync", "link", "unlink", "mkdir", "writev"):
            monkeypatch.setattr(os, name, self._recording(name, getattr(os, name)))

    def _recording(self, name, real):  # type: ignore[no-untyped-def]
        def call(first, *rest, **options):  # type: ignore[no-untyped-def]
            if options:  # a test's folder being removed: the store gives paths alone
                return real(first, *rest, **options)
            path = os.readlink(f"/proc/self/fd/{first}") if isinstance(first, int) else first
            path = rest[0] if name == "link" else path
            shown = str(Path(path).relative_to(self._root))
            self.calls.append(f"{name} {'TEMP' if shown.startswith('.tmp/') else shown}")
            return real(first, *rest)

        return call


def temp_files(store: LocalStore) -> list[str]:
    return os.listdir(Path(store.files.root) / ".tmp")
