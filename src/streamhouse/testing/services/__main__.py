"""``python -m streamhouse.testing.services``: the servers for a person. ``make services-up`` and ``-down`` call it.

    up        start PostgreSQL, the S3 server (S3=minio for MinIO) and Oxia where there is one; print what to export
    down      stop them; --purge deletes their data too
    status    say what runs; exit code 1 unless PostgreSQL and S3 do
    env       print the environment of what runs
    find      say which programs the tests would use; exit code 1 when one is missing

What a shell can eval goes to stdout, everything else to stderr.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from streamhouse.core.errors import ServiceError, ServiceMissing
from streamhouse.testing.services.binaries import find_oxia, find_postgres, find_weed
from streamhouse.testing.services.detached import DetachedServices


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m streamhouse.testing.services", description=(__doc__ or ""))
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("command", choices=("up", "down", "status", "env", "find"))
    parser.add_argument("--directory", type=Path, default=Path(".services"), help="default: .services")
    parser.add_argument("--purge", action="store_true", help="with down: delete the data")
    chosen = parser.parse_args(arguments)
    services = DetachedServices(chosen.directory, report=_say)
    try:
        match chosen.command:
            case "up":
                _export(services.up())
            case "down":
                services.down(purge=chosen.purge)
            case "env":
                _export(services.environment())
            case "status":
                return 0 if services.status() else 1
            case "find":
                return _find()
    except ServiceError as error:
        _say(str(error))
        return 1
    return 0


def _find() -> int:
    missing = 0
    try:
        postgres = find_postgres()
        _say(f"PostgreSQL: {postgres.directory} ({postgres.source})")
    except ServiceMissing as error:
        missing += 1
        _say(f"PostgreSQL: {error}")
    try:
        _say(f"SeaweedFS: {find_weed()}")
    except ServiceMissing as error:
        missing += 1
        _say(f"SeaweedFS: {error}")
    _say(f"Oxia: {find_oxia() or 'absent, which is allowed'}")
    return 1 if missing else 0


def _export(environment: dict[str, str]) -> None:
    for name, value in environment.items():
        sys.stdout.write(f"export {name}={shlex.quote(value)}\n")


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
