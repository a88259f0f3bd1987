"""A terminal for commands to run on, and what a person would see on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

WAIT_S = 300
_CSI = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b[()][A-Z0-9]|\x1b[=>]")


class Terminal:
    """Runs ``command`` on a pseudo-terminal of its own: stdin, stderr and, unless it is piped, stdout."""

    def __init__(
        self, command: Sequence[str], *, columns: int = 100, rows: int = 30, pipe_stdout: bool = False
    ) -> None:
        self._ours, theirs = pty.openpty()
        self.rows = rows
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=subprocess.PIPE if pipe_stdout else theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**kept, "TERM": "xterm-256color"},
        )
        os.close(theirs)
        self._written = bytearray()
        self._piped = bytearray()
        self._reading = [threading.Thread(target=self._read, daemon=True)]
        if pipe_stdout:
            self._reading.append(threading.Thread(target=self._read_pipe, daemon=True))
        for thread in self._reading:
            thread.start()

    @property
    def raw(self) -> str:
        return self._written.decode(errors="replace")

    @property
    def piped(self) -> str:
        return self._piped.decode()

    def screen(self) -> list[str]:
        return screen_of(self.raw, rows=self.rows)

    def wait_for(self, what: Callable[[list[str]], bool]) -> list[str]:
        until = time.monotonic() + WAIT_S
        while not what(seen := self.screen()):
            assert time.monotonic() < until, "\n".join(seen)
            assert self.process.poll() is None or what(self.screen()), "\n".join(self.screen())
            time.sleep(0.05)
        return seen

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def end(self, timeout_s: float = 200) -> int:
        """Wait for the command; its exit code."""
        code = self.process.wait(timeout_s)
        for thread in self._reading:
            thread.join(timeout_s)
        return code

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()
        for thread in self._reading:
            thread.join(10)
        if self.process.stdout is not None:
            self.process.stdout.close()
        os.close(self._ours)

    def _read(self) -> None:
        with suppress(OSError):  # the last one that had it open has ended
            while piece := os.read(self._ours, 65_536):
                self._written += piece

    def _read_pipe(self) -> None:
        assert self.process.stdout is not None
        while piece := os.read(self.process.stdout.fileno(), 65_536):
            self._piped += piece


def screen_of(written: str, *, rows: int) -> list[str]:
    """What is to be seen, above and on the screen, after everything was written. Knows what rich writes."""
    lines, row, column, at = [""], 0, 0, 0
    while at < len(written):
        match = _CSI.match(written, at)
        if match is not None:
            at = match.end()
            count = int(match[1]) if match[1] and match[1].isdigit() else 1
            if match[2] == "A":
                row = max(row - count, len(lines) - rows, 0)
            elif match[2] == "K":
                lines[row] = "" if match[1] == "2" else lines[row][:column]
            elif match[2] == "J":
                lines = [*lines[:row], lines[row][:column]]
            continue
        character, at = written[at], at + 1
        if character == "\r":
            column = 0
        elif character == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif character >= " ":
            lines[row] = f"{lines[row][:column]:<{column}}{character}{lines[row][column + 1 :]}"
            column += 1
    return [line.rstrip() for line in lines]
