"""The options of a WAL."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.limits import MAX_WAL_SPARE_FILES
from streamhouse.core.settings import WalSettings
from streamhouse.formats.wal_frame_v1 import FILE_HEADER_BYTES, FRAME_HEADER_BYTES

_BYTES_PER_SPARE: Final = 8 * 1024 * 1024
"""Small files are chosen to save disk, so fewer of them are kept as spares."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WalOptions:
    """The settings wal.* without the directory. Tests and the simulator go below the settings' bounds."""

    file_bytes: int
    max_bytes: int
    max_batch_age_ms: int = 0
    max_spare_files: int = MAX_WAL_SPARE_FILES
    room_pause_ms: int = 1000
    """The pause before the next attempt to make a file that the disk had no room for."""

    def __post_init__(self) -> None:
        if self.file_bytes < FILE_HEADER_BYTES + 2 * FRAME_HEADER_BYTES:
            raise InvalidSetting(f"wal.file_bytes: {self.file_bytes} bytes do not hold a header and two frames")
        if self.max_bytes < 2 * self.file_bytes:
            raise InvalidSetting(f"wal.max_bytes: {self.max_bytes} bytes do not hold two files of {self.file_bytes}")

    @classmethod
    def of(cls, settings: WalSettings) -> WalOptions:
        return cls(
            file_bytes=settings.file_bytes,
            max_bytes=settings.max_bytes,
            max_batch_age_ms=settings.max_batch_age_ms,
            max_spare_files=min(MAX_WAL_SPARE_FILES, max(2, settings.file_bytes // _BYTES_PER_SPARE)),
        )
