"""WAL file images with any history of syncs, made without a disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from uuid import UUID

from format_samples import START_MS, TOPIC

from streamhouse.formats.wal_frame_v1 import FileHeader, FrameKind, encode_file_header, encode_frame_header

WAL = UUID("a1b2c3d4-0000-4000-8000-00000000cafe")
OTHER_WAL = UUID("a1b2c3d4-0000-4000-8000-00000000beef")


@dataclass
class WalImage:
    """One file. ``spans`` and ``synced`` hold each frame's byte range and last synced LSN."""

    generation: int = 1
    first_lsn: int = 1
    wal_id: UUID = WAL
    data: bytearray = field(default_factory=bytearray)
    spans: list[tuple[int, int]] = field(default_factory=list)
    synced: list[int] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.data += encode_file_header(
            FileHeader(wal_id=self.wal_id, generation=self.generation, first_lsn=self.first_lsn, created_at_ms=START_MS)
        )

    @property
    def next_lsn(self) -> int:
        return self.first_lsn + len(self.spans)

    def add(self, payload: bytes, *, last_synced_lsn: int, kind: FrameKind = FrameKind.DATA) -> None:
        start = len(self.data)
        self.data += encode_frame_header(
            payload,
            wal_id=self.wal_id,
            generation=self.generation,
            lsn=self.next_lsn,
            last_synced_lsn=last_synced_lsn,
            topic_id=TOPIC,
            partition=len(self.spans) % 5,
            epoch=7,
            base_offset=1000 + 10 * len(self.spans),
            timestamp_ms=START_MS + len(self.spans),
            acks=-1 if len(self.spans) % 2 else 1,
            kind=kind,
        )
        self.data += payload
        self.spans.append((start, len(self.data)))
        self.synced.append(last_synced_lsn)
        self.payloads.append(payload)


def image(payloads: Sequence[bytes], *, group: int = 3, generation: int = 1, first_lsn: int = 1) -> WalImage:
    """Frames written in groups, each group synced before the next is made."""
    made = WalImage(generation=generation, first_lsn=first_lsn)
    for number, payload in enumerate(payloads):
        made.add(payload, last_synced_lsn=first_lsn - 1 + number // group * group)
    return made


def recycled(old: WalImage, new: WalImage) -> bytes:
    """The new image written over the old file, whose rest stays."""
    return bytes(new.data) + bytes(old.data[len(new.data) :])
