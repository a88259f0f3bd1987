"""Verify on Spark: a task verifies one partition, under the pin that the driver holds from before the first task on.

A task changes nothing, so it may run as often as Spark likes; the driver takes one answer for each partition.

Tasks do not see each other's partitions. So two entries of different partitions that name the same bytes of a blob are
found by the blob's header alone, which says whose bytes they are. A quick verification reads no header. It is not
offered here: it reads no records either, so a cluster would gain it nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from streamhouse.core.errors import InvalidRequest
from streamhouse.core.limits import MIB
from streamhouse.core.randomness import Randomness
from streamhouse.log.offload import Offload
from streamhouse.maintenance.verify import Finding, Tell, Verifier, VerifyDepth, VerifyOptions, VerifyProgress
from streamhouse.maintenance.verify.options import VerifySummary
from streamhouse.maintenance.verify.verifier import _Walk
from streamhouse.metadata.contract import MetadataStore
from streamhouse.objectstore.contract import ObjectStore
from streamhouse.spark.maintenance.jobs import SparkTasks
from streamhouse.spark.maintenance.tasks import TaskStores, Work

_MAX_FINDINGS: Final = 1_000
"""Findings that an answer names, 500 bytes each; more of the same partition are only counted."""
_TASK_READ_BYTES: Final = 64 * MIB
"""Bytes in memory for each core of an executor: Spark leaves Python some hundred MiB."""
_COUNTERS: Final = (
    "partitions",
    "gone_partitions",
    "entries",
    "changed_entries",
    "unsettled_entries",
    "read_bytes",
    "repeated_reads",
)


@dataclass(slots=True, kw_only=True)
class Verified:
    """What a task has found in one partition."""

    summary: VerifySummary
    findings: list[Finding] = field(default_factory=list)
    progress: VerifyProgress | None = None
    """The last one; None for a partition that is gone."""

    def hear(self, told: Finding | VerifyProgress) -> None:
        if isinstance(told, VerifyProgress):
            self.progress = told
        elif len(self.findings) < _MAX_FINDINGS:
            self.findings.append(told)


class SparkVerifier(Verifier):
    def __init__(
        self,
        *,
        metadata: MetadataStore,
        store: ObjectStore,
        randomness: Randomness,
        tell: Tell,
        options: VerifyOptions,
        offload: Offload,
        tasks: SparkTasks,
    ) -> None:
        if options.depth is VerifyDepth.QUICK:
            raise InvalidRequest(
                "a quick verification reads no records, so Spark gains it nothing",
                hint="run `streamhouse verify --quick`",
            )
        super().__init__(
            metadata=metadata,
            store=store,
            randomness=randomness,
            tell=tell,
            options=replace(options, partitions_at_a_time=tasks.at_a_time),
            offload=offload,
        )
        self._tasks = tasks

    async def _verify_partition(self, walk: _Walk) -> None:
        options = replace(self._options, partitions_at_a_time=1, read_bytes=_TASK_READ_BYTES)
        verified = await self._tasks.run(VerifyPartition(walk=walk, options=options))
        for name in _COUNTERS:
            setattr(self.summary, name, getattr(self.summary, name) + getattr(verified.summary, name))
        self._report(walk, verified.findings)
        unnamed = verified.summary.findings.copy()
        unnamed.subtract(finding.kind for finding in verified.findings)
        self.summary.findings.update(+unnamed)
        if verified.progress is not None:
            self._tell(verified.progress)


# In a task.


class _PartitionVerifier(Verifier):
    async def verify_partition(self, walk: _Walk) -> None:
        """Without a pin: the driver holds one."""
        try:
            await self._verify_partition(walk)
        finally:
            await self._objects.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyPartition(Work[Verified]):
    doing = "verifying partitions"
    walk: _Walk
    options: VerifyOptions

    async def run(self, stores: TaskStores) -> Verified:
        verified = Verified(summary=VerifySummary(depth=self.options.depth))
        verifier = _PartitionVerifier(
            metadata=stores.metadata,
            store=stores.objects,
            randomness=stores.randomness,
            tell=verified.hear,
            options=self.options,
            offload=stores.offload,
        )
        verified.summary = verifier.summary
        await verifier.verify_partition(self.walk)
        return verified
