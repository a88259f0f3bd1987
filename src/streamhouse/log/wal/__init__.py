"""The write-ahead log of an agent process: one directory, one writer, one sequence of frames (docs/wal.md).

wal.py         the WAL for the event loop: append, wait for the sync, settle
state.py       decides which file takes a frame, and which files may go. Pure
pump.py        the protocol of a pump and its queue; thread_pump.py, native_pump.py and task_pump.py are pumps
files.py       carries out the orders of state.py on a disk
disk.py        the protocol of a disk        local_disk.py    the real disk
names.py       names in the directory        identity.py      the id of the WAL
recovery.py    reads what an earlier run left                 opening.py       from a directory to a WAL
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
