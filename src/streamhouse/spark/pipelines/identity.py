"""Who holds a claim: a process, named so that another on the same machine can see whether it is still there."""

from __future__ import annotations

import hashlib
import os
import socket
from pathlib import Path

from streamhouse.core.randomness import Randomness


def runner_id(randomness: Randomness) -> str:
    """``host/pid/where/…``. ``where`` is this boot and this set of process ids: containers share host names."""
    return f"{socket.gethostname()}/{os.getpid()}/{_where()}/{randomness.uuid().hex[:8]}"


def is_surely_gone(runner: str) -> bool:
    """Whether the process of a runner id has ended. False where nobody here can know."""
    parts = runner.split("/")
    where = _where()
    if len(parts) != 4 or not where or parts[0] != socket.gethostname() or parts[2] != where or not parts[1].isdigit():
        return False
    try:
        os.kill(int(parts[1]), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False


def _where() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return hashlib.sha256(f"{boot} {os.readlink('/proc/self/ns/pid')}".encode()).hexdigest()[:12]
    except OSError:
        return ""
