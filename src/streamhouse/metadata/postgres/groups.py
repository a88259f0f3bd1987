"""Offset commits of consumer groups: a function of the database, so that each is one round trip."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Final

from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import OffsetCommit, SlotFence, slot_of
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.rows.groups import GroupRows
from streamhouse.metadata.rows.layer import key_columns, to_key

_ENCODED: Final = "\x01"  # the migration that brought it has put it before the texts that began with it
_COMMIT: Final = "SELECT * FROM sh_commit_offsets($1, $2, $3, $4, $5, $6, $7, $8)"


class PostgresGroups(GroupRows):
    _database: Database

    async def _commit_offsets(
        self, group_id: str, fence: SlotFence | None, offsets: Sequence[OffsetCommit]
    ) -> list[PartitionKey]:
        rows = await self._database.fetch(
            _COMMIT,
            group_id,
            slot_of(group_id).slot,
            None if fence is None else fence.epoch,
            *key_columns(commit.key for commit in offsets),
            [commit.offset for commit in offsets],
            [commit.leader_epoch for commit in offsets],
            [storable_text(commit.metadata) for commit in offsets],
        )
        return [to_key(row) for row in rows]

    def _offset_metadata(self, stored: str) -> str:
        return stored_text(stored)


def storable_text(text: str) -> str:
    """PostgreSQL's text holds no NUL. A text with one is stored in base64 behind a mark; every other as it is."""
    if "\0" not in text and not text.startswith(_ENCODED):
        return text
    return _ENCODED + base64.b64encode(text.encode()).decode()


def stored_text(stored: str) -> str:
    if not stored.startswith(_ENCODED):
        return stored
    try:
        return base64.b64decode(stored[len(_ENCODED) :], validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return stored  # written by a process that does not know the mark yet
