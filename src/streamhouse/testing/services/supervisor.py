"""The process that stands between a test run and a server, so that no server outlives its run.

Run as a script (``python supervisor.py``), with nothing but the standard library. It starts one server, and when its
parent says so, goes away or is killed (kill -9 included), it stops the server with everything the server forked and
removes the server's directory. A handler in the parent could not do that: no handler runs on kill -9.

    stdin, first line   the plan: {"argv", "directory", "log", "environment", "uid", "gid", "stop_signal", "strays"}
    stdin, later        "keep": leave the directory where it is; "stop", or end of file: stop
    stdout              {"pid": 123} once the server is started, or {"error": "…"}

It must not import anything of streamhouse: it has to start in milliseconds and to work while the tree is being edited.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

POLL_S = 0.1  # how late a dead server or a vanished parent is noticed
STOP_GRACE_S = 15.0  # a server that ignores its stop signal for this long is killed
STOP_POLL_S = 0.01
MAX_PLAN_BYTES = 1 << 20  # the plan is a command line and an environment; both are small

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


def prctl(option: int, value: int) -> None:
    """Linux only; elsewhere the pipe to the parent is the one watch there is."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def read_plan() -> tuple[dict[str, Any], bytes]:
    buffer = b""
    while b"\n" not in buffer:
        chunk = os.read(0, 65536)
        if not chunk or len(buffer) > MAX_PLAN_BYTES:
            sys.exit(2)
        buffer += chunk
    line, rest = buffer.split(b"\n", 1)
    plan: dict[str, Any] = json.loads(line)
    return plan, rest


def answer(message: dict[str, Any]) -> None:
    # The parent may be gone, and the pipe with it; that is no reason to leave the server behind.
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(message).encode() + b"\n")


def spawn(plan: dict[str, Any]) -> int:
    # The kernel forgets the death signal when a process changes its user; preexec_fn runs after that change.
    drop = {} if plan["uid"] is None else {"user": plan["uid"], "group": plan["gid"], "extra_groups": []}
    with open(plan["log"], "ab") as log:
        server = subprocess.Popen(
            plan["argv"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=plan["directory"],
            env=plan["environment"],
            preexec_fn=lambda: prctl(PR_SET_PDEATHSIG, signal.SIGKILL),
            **drop,
        )
    server.returncode = 0  # reaped below, with everything else, by waitpid(-1)
    return server.pid


def reap(server: int) -> bool:
    """Collect ended processes; true when the server is among them."""
    ended = False
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended = ended or pid == server


def children() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def watch(server: int, parent: int, commands: bytes, asked: list[int]) -> tuple[bool, bool]:
    """Wait for a reason to stop. Returns (keep the directory, the server has already ended)."""
    ended = False
    while b"stop" not in commands and not asked and os.getppid() == parent:
        readable, _, _ = select.select([0], [], [], POLL_S)
        if readable:
            chunk = os.read(0, 4096)
            if not chunk:
                break
            commands = (commands + chunk)[-64:]
        ended = reap(server) or ended
    return b"keep" in commands, ended


def stop(server: int, ended: bool, stop_signal: int) -> None:
    if not ended:
        with contextlib.suppress(ProcessLookupError):
            os.kill(server, stop_signal)
        for _ in range(int(STOP_GRACE_S / STOP_POLL_S)):
            if reap(server):
                break
            time.sleep(STOP_POLL_S)
    # As subreaper this process inherits what the server leaves behind, PostgreSQL's sessions included.
    for _ in range(int(STOP_GRACE_S / STOP_POLL_S)):
        left = children()
        if not left:
            return
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(STOP_POLL_S)
        reap(server)


def main() -> None:
    parent = os.getppid()
    asked: list[int] = []
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _frame: asked.append(number))
    plan, commands = read_plan()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        server = spawn(plan)
    except OSError as error:
        answer({"error": str(error)})
        sys.exit(1)
    answer({"pid": server})
    keep, ended = watch(server, parent, commands, asked)
    stop(server, ended, plan["stop_signal"])
    for stray in plan["strays"]:
        Path(stray).unlink(missing_ok=True)
    if not keep:
        shutil.rmtree(plan["directory"], ignore_errors=True)
    os._exit(0)


if __name__ == "__main__":
    main()
