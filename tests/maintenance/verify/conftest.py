"""The world of a verification on each metadata backend."""

from __future__ import annotations

from verify_fixtures import postgres_world, verify_database, world

__all__ = ["postgres_world", "verify_database", "world"]
