"""A PostgreSQL table as a pipeline's target: insert or upsert, each batch in one transaction with its progress.

    tasks     COPY into the run's own UNLOGGED staging table, each row with its attempt
    driver    BEGIN; lock the progress row; decide; INSERT … SELECT the attempts that Spark counts; progress; COMMIT

No statement reads the rows of an attempt that died, was repeated or was speculative. The next run removes the staging
tables of killed runs.
"""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from streamhouse.core.errors import ConfigError, InvalidSetting, TargetError, TargetUnavailable
from streamhouse.core.urls import mask_url
from streamhouse.spark.definitions.progress import Batch, BatchCheck, Progress, decide, read_progress
from streamhouse.spark.definitions.targets import BatchPlan, LastFailure, batch_by_batch, by_value, compute_only
from streamhouse.spark.pipelines import postgres_sql as sql
from streamhouse.spark.pipelines.postgres_copy import RESULT, CopyPlan
from streamhouse.spark.pipelines.spec import PostgresTarget

if TYPE_CHECKING:
    import psycopg
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.readwriter import DataStreamWriter
    from pyspark.sql.types import StructType

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_CONNECT_TIMEOUT_S: Final = 10
_SETUP_LOCK: Final = 0x53484F55
"""An advisory lock: of two runners that create the same schema at the same time, one would fail."""
_TIDY_TIMEOUT: Final = "2s"
_COLUMNS_OF: Final = """SELECT a.attname, format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
    WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_UNIQUE_KEYS: Final = """SELECT array_agg(a.attname::text) FROM pg_index i
    JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
    WHERE i.indrelid = to_regclass(%s) AND i.indisunique AND i.indpred IS NULL AND i.indexprs IS NULL
    GROUP BY i.indexrelid"""
_WITHOUT_OWN_SCHEMA: Final = r"""SELECT set_config('search_path',
    regexp_replace(current_setting('search_path'), '"\$user"\s*,?\s*', ''), false)"""
"""Set the search path: for a user named like our schema, tables without a schema would be in it instead of in public.
"""
_STAGES: Final = "SELECT tablename FROM pg_tables WHERE schemaname = %s AND starts_with(tablename, %s)"


def resolved_url(url: str, environ: Mapping[str, str]) -> str:
    """The URL with every ${NAME} replaced. Raises InvalidSetting."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in environ:
            raise InvalidSetting(
                f"the target's url names ${{{match[1]}}}, which is not set", hint=f"export {match[1]} for the runner"
            )
        return environ[match[1]]

    return _VARIABLE.sub(value, url)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresWriter:
    url: str = field(repr=False)
    target: PostgresTarget
    columns: tuple[sql.Column, ...]
    pipeline_id: str
    stage: str
    run_id: str

    def write(self, rows: DataFrame, batch: Batch) -> None:
        with connected(self.url) as connection:
            first_look = decide(_progress(connection, self.pipeline_id), batch)
        if first_look is BatchCheck.SKIP:
            compute_only(rows)
            return
        attempts = self._copy(rows, batch.batch_id)
        with connected(self.url) as connection:
            with connection.transaction():
                stored = _progress(connection, self.pipeline_id, lock=True)
                if decide(stored, batch) is BatchCheck.WRITE:
                    if attempts:
                        _run(connection, sql.insert(self.target, self.stage, self.columns), (attempts,))
                    _run(
                        connection,
                        f"UPDATE {sql.PROGRESS} SET progress = %s, updated_at = now() WHERE pipeline = %s",
                        (batch.done.to_json(), self.pipeline_id),
                    )
            if attempts:
                self._tidy(connection)

    def _copy(self, rows: DataFrame, batch_id: int) -> list[str]:
        """The attempts whose result Spark has accepted."""
        plan = CopyPlan(url=self.url, stage=self.stage, columns=self.columns, run_id=self.run_id, batch_id=batch_id)
        copy = by_value("streamhouse.spark.pipelines.postgres_copy", "copy_rows", pickle.dumps(plan))
        answers = _as_text_where_nested(rows, self.columns).mapInArrow(copy, RESULT).collect()
        return [answer.attempt for answer in answers if answer.row_count]

    def _tidy(self, connection: psycopg.Connection[Any]) -> None:
        """A speculative attempt may still be writing; the next batch removes its rows."""
        import psycopg

        with suppress(psycopg.Error), connection.transaction():
            _run(connection, f"SET LOCAL lock_timeout = '{_TIDY_TIMEOUT}'")
            _run(connection, f"TRUNCATE {sql.stage_name(self.stage)}")


class PostgresPipelineTarget:
    """A ``Target`` (definitions/targets.py). ``run_id`` is unique to one start of the query."""

    def __init__(
        self,
        target: PostgresTarget,
        *,
        pipeline: str,
        definition_id: UUID,
        run_id: str,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.failure = LastFailure()
        self._target = target
        self._pipeline = pipeline
        self._id = definition_id.hex
        self._run_id = run_id
        self._url = resolved_url(target.url, os.environ if environ is None else environ)

    @property
    def name(self) -> str:
        return str(self._target)

    def check(self, schema: StructType) -> None:
        """Raises StreamHouseError for rows that the table could not take. Changes nothing."""
        columns = self._columns(schema)
        with connected(self._url) as connection:
            self._check_table(connection, columns, may_be_missing=self._target.create)

    def prepare(self, schema: StructType) -> None:
        columns = self._columns(schema)
        with connected(self._url) as connection:
            with connection.transaction():
                _run(connection, f"SELECT pg_advisory_xact_lock({_SETUP_LOCK})")
                _run(connection, f"CREATE SCHEMA IF NOT EXISTS {sql.SCHEMA}")
                _run(connection, sql.create_progress())
                if self._target.create:
                    _run(connection, sql.create_target(self._target, columns))
                _run(
                    connection,
                    f"INSERT INTO {sql.PROGRESS} (pipeline, name) VALUES (%s, %s) ON CONFLICT DO NOTHING",
                    (self._id, self._pipeline),
                )
            self._check_table(connection, columns, may_be_missing=False)
            self._drop_stages(connection)
            _run(connection, sql.create_stage(self._stage, columns))

    def writer(self, frame: DataFrame, *, checkpoint: str, generation: int) -> DataStreamWriter:
        writer = PostgresWriter(
            url=self._url,
            target=self._target,
            columns=self._columns(frame.schema),
            pipeline_id=self._id,
            stage=self._stage,
            run_id=self._run_id,
        )
        plan = BatchPlan(
            owner=f"pipeline {self._pipeline}", generation=generation, checkpoint=checkpoint, writer=writer
        )
        return batch_by_batch(frame, plan, self.failure)

    def progress(self) -> Progress | None:
        with connected(self._url) as connection:
            return _progress(connection, self._id) if self._has_progress_table(connection) else None

    def reset(self) -> None:
        """Forgets the progress only: the rows belong to the user."""
        with connected(self._url) as connection:
            if self._has_progress_table(connection):
                self._drop_stages(connection)
                _run(connection, f"DELETE FROM {sql.PROGRESS} WHERE pipeline = %s", (self._id,))

    @property
    def _stage(self) -> str:
        return f"{self._stage_prefix}{self._run_id[:12]}"

    @property
    def _stage_prefix(self) -> str:
        return f"stage_{self._id[:16]}_"

    def _has_progress_table(self, connection: psycopg.Connection[Any]) -> bool:
        row = _run(connection, "SELECT to_regclass(%s)", (sql.PROGRESS,)).fetchone()
        return row is not None and row[0] is not None

    def _columns(self, schema: StructType) -> tuple[sql.Column, ...]:
        fields = [(each.name, each.dataType.simpleString()) for each in schema.fields]
        return sql.columns_of(fields, self._target)

    def _check_table(
        self, connection: psycopg.Connection[Any], columns: tuple[sql.Column, ...], *, may_be_missing: bool
    ) -> None:
        table = sql.table_name(self._target.table)
        found: dict[str, str] = dict(_run(connection, _COLUMNS_OF, (table,)))
        if not found:
            if may_be_missing:
                return
            raise InvalidSetting(f"there is no table {self._target.table}", hint="make it, or set create: true")
        sql.check_table(self._target, columns, found)
        if self._target.key:
            keys = [set(names) for (names,) in _run(connection, _UNIQUE_KEYS, (table,))]
            if set(self._target.key) not in keys:
                raise InvalidSetting(
                    f"{self._target.table} has no unique index on {', '.join(self._target.key)}, which an upsert needs",
                    hint=f"CREATE UNIQUE INDEX ON {self._target.table} ({', '.join(self._target.key)})",
                )

    def _drop_stages(self, connection: psycopg.Connection[Any]) -> None:
        """Remove the staging tables of killed runs. A run whose tasks still write keeps its table for now."""
        import psycopg

        for (stage,) in _run(connection, _STAGES, (sql.SCHEMA, self._stage_prefix)).fetchall():
            with suppress(psycopg.errors.LockNotAvailable), connection.transaction():
                _run(connection, f"SET LOCAL lock_timeout = '{_TIDY_TIMEOUT}'")
                _run(connection, f"DROP TABLE IF EXISTS {sql.stage_name(stage)}")


@contextmanager
def connected(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection with autocommit, whose errors become ours."""
    try:
        import psycopg
    except ModuleNotFoundError as error:
        raise ConfigError("PostgreSQL targets need the package psycopg", hint="install streamhouse[spark]") from error
    try:
        with psycopg.connect(
            url, autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S, application_name="streamhouse pipeline"
        ) as connection:
            if connection.info.user == sql.SCHEMA:
                connection.execute(_WITHOUT_OWN_SCHEMA)
            yield connection
    except psycopg.OperationalError as error:
        raise TargetUnavailable(f"PostgreSQL at {mask_url(url)}: {_first_line(error)}") from error
    except psycopg.Error as error:
        raise TargetError(f"PostgreSQL at {mask_url(url)} refused: {_first_line(error)}") from error


def _run(connection: psycopg.Connection[Any], statement: str, given: tuple[Any, ...] | None = None) -> Any:
    # Names are quoted by postgres_sql; values are always parameters.
    return connection.execute(statement, given)


def _progress(connection: psycopg.Connection[Any], pipeline_id: str, *, lock: bool = False) -> Progress | None:
    statement = f"SELECT progress FROM {sql.PROGRESS} WHERE pipeline = %s{' FOR UPDATE' if lock else ''}"
    row = _run(connection, statement, (pipeline_id,)).fetchone()
    if row is None and lock:
        raise TargetError(f"the progress of this pipeline is gone from {sql.PROGRESS}")
    return None if row is None or row[0] is None else read_progress(row[0])


def _as_text_where_nested(rows: DataFrame, columns: tuple[sql.Column, ...]) -> DataFrame:
    from pyspark.sql import functions as fn

    quoted = {column.name: "`" + column.name.replace("`", "``") + "`" for column in columns}
    return rows.select(
        *(
            fn.to_json(fn.col(quoted[column.name])).alias(column.name)
            if column.is_json
            else fn.col(quoted[column.name])
            for column in columns
        )
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0][:500]
