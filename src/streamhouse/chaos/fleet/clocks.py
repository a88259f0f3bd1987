"""An agent's own wall clock, by libfaketime where that is installed. Setting it is the fault."""

from __future__ import annotations

import ctypes.util
import os
from pathlib import Path
from typing import Final

_PLACES: Final = ("/usr/lib", "/usr/local/lib", "/usr/lib64", "/lib")
_NAME: Final = "libfaketime.so.1"


def find_libfaketime() -> Path | None:
    for place in map(Path, _PLACES):
        for found in (*place.glob(f"faketime/{_NAME}"), *place.glob(f"*/faketime/{_NAME}"), *place.glob(_NAME)):
            return found
    known = ctypes.util.find_library("faketime")
    return Path(known) if known and Path(known).exists() else None


class OwnClock:
    """The offset of one process's wall clock from the machine's, kept in a file that libfaketime reads."""

    def __init__(self, library: Path, path: Path) -> None:
        self._library = library
        self._path = path
        self.set(0)

    def set(self, offset_s: int) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"{offset_s:+d}\n")
        os.replace(fresh, self._path)

    def environment(self) -> dict[str, str]:
        return {
            "LD_PRELOAD": str(self._library),
            "FAKETIME_TIMESTAMP_FILE": str(self._path),
            "FAKETIME_CACHE_DURATION": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
