"""A process that appends at full speed until it is killed, and says what it was told.

    python wal_victim.py DIRECTORY        prints, each line at once:
    first 17        the LSN of its first frame
    settle 40       about to settle everything up to here
    synced 63       it was told so: from now on this must survive

Frame by frame the payload follows from the base offset, so that whoever recovers it can tell good bytes from others.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from uuid import UUID

from streamhouse.core.clock import SystemClock
from streamhouse.core.errors import StreamHouseError
from streamhouse.core.ids import TopicId
from streamhouse.core.limits import MIB
from streamhouse.core.randomness import SystemRandomness
from streamhouse.log.wal import WalOptions, open_wal

OPTIONS = WalOptions(file_bytes=MIB, max_bytes=32 * MIB)
TOPIC = TopicId(UUID(int=7))
KEPT_FRAMES = 500


def payload(base_offset: int) -> bytes:
    return b"%d." % base_offset * (1 + base_offset * 7919 % 1500)


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


async def run(directory: Path) -> None:
    wal, recovered = await open_wal(directory, clock=SystemClock(), randomness=SystemRandomness(), options=OPTIONS)
    wal.on_synced(lambda lsn: say(f"synced {lsn}"))
    base_offset = 0
    lsns = [frame.lsn for frame in recovered.frames()]
    while True:
        for _ in range(20):
            lsn = wal.append(
                topic_id=TOPIC,
                partition=0,
                epoch=1,
                base_offset=base_offset,
                timestamp_ms=0,
                acks=1,
                batch=payload(base_offset),
            )
            if not base_offset:
                say(f"first {lsn}")
            lsns.append(lsn)
            base_offset += 1
        await wal.wait_synced(lsns[max(0, len(lsns) - 200)])
        while len(lsns) > 2 * KEPT_FRAMES:
            say(f"settle {lsns[KEPT_FRAMES - 1]}")
            wal.settle(lsns[:KEPT_FRAMES])
            del lsns[:KEPT_FRAMES]


if __name__ == "__main__":
    try:
        asyncio.run(run(Path(sys.argv[1])))
    except StreamHouseError as error:
        sys.exit(f"{type(error).__name__}: {error}")
