"""Adoption: the leader appends one partition's share of an intent to the log, in one function of the database (R13)."""

from __future__ import annotations

from streamhouse.core.errors import NotFound
from streamhouse.core.ids import PartitionKey
from streamhouse.metadata.contract import IntentKey, SliceOutcome
from streamhouse.metadata.postgres.commits import REPEATED, VERDICTS
from streamhouse.metadata.postgres.database import Database
from streamhouse.metadata.rows.intents import IntentRows


class PostgresIntents(IntentRows):
    _database: Database

    async def adopt_intent(
        self, key: IntentKey, partition: int, *, epoch: int, base_offset: int | None
    ) -> SliceOutcome:
        row = await self._database.fetchrow(
            "SELECT * FROM sh_adopt_intent($1, $2, $3, $4, $5, $6)",
            key.query_id,
            key.topic_id,
            key.batch_id,
            partition,
            epoch,
            base_offset,
        )
        if row is None:
            raise NotFound(f"there is no intent {key} with rows for partition {partition}")
        return SliceOutcome(
            key=PartitionKey(key.topic_id, partition),
            verdict=VERDICTS[row["verdict"]],
            base_offset=row["base_offset"],
            end_offset=row["end_offset"],
            high_watermark=row["high_watermark"],
            leader_epoch=row["leader_epoch"],
            repeated=row["verdict"] == REPEATED,
        )
