"""The errors of the Spark sink, pipelines and tables."""

from __future__ import annotations

from streamhouse.core.errors.base import StreamHouseError
from streamhouse.core.errors.conflicts import Conflict


class NotAdopted(StreamHouseError):
    kafka_code = 7  # REQUEST_TIMED_OUT
    http_status = 503
    retriable = True
    default_hint = "check that agents run and are healthy, then run the query again: it goes on where it stopped"


class TargetError(StreamHouseError):
    pass


class TargetUnavailable(TargetError):
    http_status = 503
    retriable = True
    default_hint = "check that it is up and reachable; the pipeline goes on by itself"


class BatchRegressed(Conflict):
    default_hint = "the checkpoint is older than the sink; restore the newest checkpoint or start a new query"


class CheckpointLost(Conflict):
    default_hint = "restore the checkpoint; or empty the target and start again: `streamhouse pipeline start --reset`"


class TableBusy(Conflict):
    retriable = True
    default_hint = "see who else writes to this table"


class DefinitionChanged(Conflict):
    retriable = True
    default_hint = "look at it again, then repeat the change"
