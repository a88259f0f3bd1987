"""The pass of `streamhouse verify` as commands see it, with its repair (maintenance_steps.py has the other passes)."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from streamhouse.app.maintenance_passes import MaintenancePasses
from streamhouse.cli.commands.maintenance_steps import Pass, Row, RowList
from streamhouse.cli.exit_codes import ExitCode
from streamhouse.cli.output import SetProgress
from streamhouse.core.ids import PartitionKey
from streamhouse.maintenance.repair import DamageList, EntryRepair, RepairOutcome, RepairSummary
from streamhouse.maintenance.verify import Finding, VerifyOptions, VerifyProgress, VerifySummary
from streamhouse.metadata.contract import Topic


@dataclass(slots=True, kw_only=True)
class VerifyPass(Pass):
    """With ``repair``, what it has found is repaired afterwards; a plan then verifies, and proves what a repair would
    write. Without ``repair``, a plan reads nothing."""

    name = "verify"
    doing = "verifying"
    rows_are = "findings"
    columns = ("kind", "topic", "partition", "base_offset", "end_offset", "object", "problem")
    cut = "problem"
    not_on_a_terminal = ("end_offset", "object")
    options: VerifyOptions
    repair: bool = False
    planned_partitions: int = 0
    seen: VerifySummary | None = None
    repaired: RepairSummary | None = None
    repairs: RowList = field(
        default_factory=lambda: RowList(
            name="repairs",
            columns=("topic", "partition", "base_offset", "end_offset", "found", "outcome", "reason", "object"),
            cut="reason",
            not_on_a_terminal=("end_offset", "found", "object"),
        )
    )

    @property
    def more_rows(self) -> Sequence[RowList]:
        return (self.repairs,) if self.repair else ()

    async def work(self, maintenance: MaintenancePasses, topics: list[Topic], tell: SetProgress) -> None:
        total, done, damages = sum(topic.partition_count for topic in topics), 0, DamageList()

        def hear(told: Finding | VerifyProgress) -> None:
            nonlocal done
            if isinstance(told, Finding):
                self._add(told)
                damages.hear(told)
            else:
                done += told.is_done
            text = f"verifying, {verifier.summary.entries:,} entries, {verifier.summary.read_bytes:,} bytes read"
            tell(text, done=done, total=total)

        tell_damaged = damages.add if self.repair else None
        verifier = maintenance.verifier(self.options, tell=hear, tell_damaged=tell_damaged)
        self.seen = verifier.summary
        if self.plan_only and not self.repair:
            self.planned_partitions = total
            self.notes.append(f"{total} partitions would be verified, at depth {self.options.depth}")
            return
        await verifier.run([topic.name for topic in topics])
        if self.repair:
            await self._repair(maintenance, damages, {key for topic in topics for key in topic.partition_keys()}, tell)

    async def _repair(
        self, maintenance: MaintenancePasses, damages: DamageList, keys: Collection[PartitionKey], tell: SetProgress
    ) -> None:
        def hear(repair: EntryRepair) -> None:
            self._add_repair(repair)
            summary = repairer.summary
            tell(f"repairing, {summary.rewriting.bytes_in:,} bytes read", done=summary.done, total=summary.entries)

        repairer = maintenance.repairer(self.options, tell=hear, plan_only=self.plan_only)
        self.repaired = repairer.summary
        try:
            await repairer.run(damages)
        except asyncio.CancelledError:
            await maintenance.finish_compactions(keys)
            raise
        if damages.left_out:
            self.notes.append(f"{damages.left_out:,} more damaged entries were not looked at: run it again")

    def _add_repair(self, repair: EntryRepair) -> None:
        judged = repair.judged
        self.repairs.add(
            {
                "topic": judged.topic,
                "partition": judged.key.partition,
                "base_offset": judged.entry.base_offset,
                "end_offset": judged.entry.end_offset,
                "found": " ".join(judged.kinds),
                "outcome": repair.outcome.value,
                "reason": repair.reason,
                "object": judged.entry.object_key,
                "new_object": repair.new_object,
            }
        )

    def _add(self, finding: Finding) -> None:
        self.add_row(
            {
                "kind": finding.kind.value,
                "topic": finding.topic,
                "partition": finding.key.partition,
                "base_offset": finding.base_offset,
                "end_offset": finding.end_offset,
                "object": finding.object_key,
                "byte_offset": finding.byte_offset,
                "byte_length": finding.byte_length,
                "problem": finding.problem,
                "advice": finding.advice,
            }
        )

    def summary(self) -> Row:
        seen = self.seen or VerifySummary(depth=self.options.depth)
        if self.plan_only and not self.repair:
            return {"depth": seen.depth.value, "partitions": self.planned_partitions}
        sums = {
            "depth": seen.depth.value,
            "partitions": seen.partitions,
            "gone_partitions": seen.gone_partitions,
            "entries": seen.entries,
            "changed_entries": seen.changed_entries,
            "unsettled_entries": seen.unsettled_entries,
            "read_bytes": seen.read_bytes,
            "repeated_reads": seen.repeated_reads,
            "findings": seen.findings.total(),
        }
        return sums | self._repair_sums() if self.repair else sums

    def _repair_sums(self) -> Row:
        did = self.repaired or RepairSummary()
        return {
            "damaged_entries": did.entries + did.left_out,
            "repairable_entries" if self.plan_only else "repaired_entries": did.outcomes[
                RepairOutcome.REPAIRABLE if self.plan_only else RepairOutcome.REPAIRED
            ],
            "replaced_entries": did.outcomes[RepairOutcome.REPLACED],
            "not_repairable_entries": did.outcomes[RepairOutcome.NOT_REPAIRABLE],
            "put_off_entries": did.outcomes[RepairOutcome.PUT_OFF] + did.left_out,
            "still_damaged_entries": did.outcomes[RepairOutcome.STILL_DAMAGED],
            "written_bytes": did.rewriting.bytes_out,
        }

    def exit_code(self) -> ExitCode:
        if self.seen is not None and self.seen.findings and not self._is_all_healed:
            return ExitCode.DAMAGED
        return ExitCode.FAILURE if self.seen is None or self.seen.unsettled_entries else ExitCode.OK

    @property
    def _is_all_healed(self) -> bool:
        return self.repaired is not None and self.repaired.is_all_healed
