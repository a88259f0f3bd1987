"""The world of a verification, for what is repaired afterwards."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "verify"))
sys.path.insert(0, str(Path(__file__).parents[1] / "compaction"))

from verify_fixtures import postgres_world, verify_database, world

__all__ = ["postgres_world", "verify_database", "world"]
