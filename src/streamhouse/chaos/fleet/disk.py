"""A small disk of an agent's own: a tmpfs, which root can mount. Filling it is the fault."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

DISK_BYTES: Final = 96 * 1024 * 1024  # tens of WAL files of the size that the run sets; memory, while it is mounted
_FILLER: Final = "filler"
_CHUNK: Final = bytes(1024 * 1024)
_TOOL_S: Final = 20


def why_no_disks(parent: Path) -> str | None:
    """The reason why small disks cannot be had here; none when they can."""
    if os.geteuid() != 0:
        return "only root may mount a small disk"
    if shutil.which("mount") is None:
        return "there is no mount program"
    probe = parent / "disk-probe"
    probe.mkdir()
    try:
        disk = SmallDisk(probe)
        disk.unmount()
    except OSError as error:
        return f"a small disk cannot be mounted: {error}"
    finally:
        with contextlib.suppress(OSError):
            probe.rmdir()
    return None


class SmallDisk:
    """A small disk that is mounted at ``directory``. Raises OSError when the machine refuses that."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        argv = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES},mode=0700", "streamhouse-chaos", str(directory)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TOOL_S)
        if done.returncode != 0:
            raise OSError(errno.EPERM, done.stderr.strip() or "mount failed")

    def fill(self) -> None:
        """Fill the disk until no byte is free."""
        with (self.directory / _FILLER).open("ab", buffering=0) as file:
            chunk = _CHUNK
            while chunk:
                try:
                    if file.write(chunk) < len(chunk):
                        chunk = chunk[: len(chunk) // 2]
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    chunk = chunk[: len(chunk) // 2]

    def empty(self) -> None:
        (self.directory / _FILLER).unlink(missing_ok=True)

    def unmount(self) -> None:
        subprocess.run(["umount", "-l", str(self.directory)], capture_output=True, timeout=_TOOL_S)
