"""The write-ahead log of an agent process: one directory, one writer, one sequence of frames. docs/wal.md tells how.

disk.py        what is asked of a disk       local_disk.py    the real one
names.py       names in the directory        identity.py      whose WAL it is
state.py       what goes where, what may go (pure)
files.py       carries it out                pump.py          the queue; thread_pump.py, task_pump.py: who works it
recovery.py    what an earlier run left      opening.py       from a directory to a WAL
wal.py         the WAL as the event loop sees it
"""

from streamhouse.log.wal.disk import Disk, Listed, WalFile
from streamhouse.log.wal.local_disk import LocalDisk
from streamhouse.log.wal.native_pump import NativePump
from streamhouse.log.wal.opening import open_wal
from streamhouse.log.wal.options import WalOptions
from streamhouse.log.wal.pump import Pump
from streamhouse.log.wal.recovery import Recovered
from streamhouse.log.wal.task_pump import TaskPump
from streamhouse.log.wal.thread_pump import ThreadPump
from streamhouse.log.wal.wal import Wal, WalHealth, WalMetrics

__all__ = [
    "Disk",
    "Listed",
    "LocalDisk",
    "NativePump",
    "Pump",
    "Recovered",
    "TaskPump",
    "ThreadPump",
    "Wal",
    "WalFile",
    "WalHealth",
    "WalMetrics",
    "WalOptions",
    "open_wal",
]
