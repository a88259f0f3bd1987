"""How soon the command line answers: whole processes, cold imports included."""

from __future__ import annotations

import subprocess
import sys

from report import heading, measure, row


def main() -> None:
    heading("command line (a process each)")
    bare = measure(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True), rounds=9)
    for name, arguments, target in (
        ("streamhouse --help", ["--help"], "250 ms"),
        ("streamhouse --version", ["--version"], ""),
        ("streamhouse config show", ["config", "show"], ""),
    ):
        command = [sys.executable, "-m", "streamhouse", *arguments]
        timing = measure(lambda command=command: subprocess.run(command, capture_output=True, check=True), rounds=9)  # type: ignore[misc]
        ratio = f"{timing.wall_s / bare.wall_s:.0f} × python -c pass"
        row(name, f"{timing.wall_s * 1000:.0f} ms", target=target, ratio=ratio)


if __name__ == "__main__":
    main()
