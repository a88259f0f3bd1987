"""The checker. It knows what clients were told and what a consumer read at the end, and nothing of the engine.

It reads the history one partition at a time, so its memory is that of the largest partition. An import contract keeps
it apart from every package of the engine, so that a fault there cannot hide an anomaly here.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from streamhouse.chaos.checker.anomalies import MEANINGS, Anomaly, AnomalyKind, Findings
from streamhouse.chaos.checker.availability import Availability, SilentPeriod, Span, measure, merge_spans
from streamhouse.chaos.checker.groups import GroupFacts, judge_groups
from streamhouse.chaos.checker.writes import WriteFacts, WritesJudge, read_producers, total
from streamhouse.chaos.history import partitions

__all__ = [
    "MEANINGS",
    "Anomaly",
    "AnomalyKind",
    "Findings",
    "GroupFacts",
    "PartitionVerdict",
    "RunVerdict",
    "SilentPeriod",
    "Span",
    "judge",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionVerdict:
    where: str
    log_end: int
    longest_gap_ms: int
    """The times in which an agent ran."""
    longest_gap_outside_outages_ms: int
    """The times in which an agent ran and both stores answered."""
    silences: Sequence[SilentPeriod]
    groups: Sequence[GroupFacts]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunVerdict:
    findings: Findings
    writes: WriteFacts
    producers: Counter[str]
    """How many there were, by client."""
    partitions: Sequence[PartitionVerdict]
    acknowledged_by_second: Counter[int]


def judge(
    history: Path,
    *,
    without_agents: Sequence[Span] = (),
    outages: Sequence[Span] = (),
    unavailable_limit_ms: int,
    drained: bool = True,
    killed: Collection[str] = (),
    cut_short: bool = False,
) -> RunVerdict:
    """``drained``: the groups had their time to reach the end, so one that did not is an anomaly.

    ``killed``: client processes whose history lacks its last lines. ``cut_short``: the run ended the last read itself.
    """
    findings = Findings()
    producers = read_producers(history)
    no_agent = merge_spans(without_agents)
    excluded = merge_spans([*without_agents, *outages])
    facts: list[WriteFacts] = []
    verdicts: list[PartitionVerdict] = []
    rate: Counter[int] = Counter()
    for topic, partition in partitions(history):
        part, where = history / "parts" / topic / str(partition), f"{topic}/{partition}"
        writes = WritesJudge(part, where, producers, findings, killed=killed, cut_short=cut_short)
        writes.judge()
        facts.append(writes.facts)
        groups = judge_groups(part, where, writes.facts.log_end, findings)
        gaps = measure(part, no_agent)
        gaps_outside = measure(part, excluded)
        rate.update(gaps.acknowledged_by_second)
        _judge_gap(findings, where, gaps_outside, unavailable_limit_ms)
        verdicts.append(
            PartitionVerdict(
                where=where,
                log_end=writes.facts.log_end,
                longest_gap_ms=gaps.longest_ms,
                longest_gap_outside_outages_ms=gaps_outside.longest_ms,
                silences=gaps.silences,
                groups=groups,
            )
        )
    if drained:
        _judge_lag(findings, verdicts)
    return RunVerdict(
        findings=findings,
        writes=total(facts),
        producers=Counter(producer.client for producer in producers.values()),
        partitions=verdicts,
        acknowledged_by_second=rate,
    )


def _judge_gap(findings: Findings, where: str, gaps: Availability, limit_ms: int) -> None:
    if gaps.longest is not None and gaps.longest_ms > limit_ms:
        findings.add(
            AnomalyKind.UNAVAILABLE,
            where,
            f"nothing was acknowledged for {gaps.longest_ms / 1000:.1f} s; the limit is {limit_ms / 1000:.0f} s",
            gaps.longest.end_ms,
        )


def _judge_lag(findings: Findings, verdicts: Sequence[PartitionVerdict]) -> None:
    behind: defaultdict[str, int] = defaultdict(int)
    for verdict in verdicts:
        for facts in verdict.groups:
            behind[facts.group] += facts.behind
    for group, records in sorted(behind.items()):
        if records:
            findings.add(AnomalyKind.UNAVAILABLE, f"group {group}", f"at the end {records} records were not committed")
