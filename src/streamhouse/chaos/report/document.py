"""The report as one JSON document. Its field names are stable: scripts read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from streamhouse.chaos.checker import MEANINGS, AnomalyKind, RunVerdict
from streamhouse.chaos.fleet.nemesis import Happened
from streamhouse.chaos.load.clients import Clients
from streamhouse.chaos.options import FaultKind, Options

VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What the run itself knows: everything but the verdict."""

    run: str
    version: str
    target: str
    versions: dict[str, str]
    begin_ms: int
    end_ms: int
    interrupted: bool
    clients: Clients
    happened: Sequence[Happened]
    left_out: Counter[FaultKind]
    skipped: dict[FaultKind, str]
    good_share: float
    problems: Sequence[str]
    """The problems of the run itself, which may make its verdict incomplete."""
    killed: Sequence[str] = ()
    """Client processes that were killed: their history is incomplete."""
    judged: bool = True
    """False when the last read was cut short, so that most of the log was not judged."""
    data: str | None = None
    """Where the agents' data is kept."""


def compose(options: Options, story: Story, verdict: RunVerdict) -> dict[str, Any]:
    counts = Counter(each.kind for each in story.happened)
    return {
        "report_version": VERSION,
        "streamhouse": story.version,
        "run": story.run,
        "seed": options.seed,
        "target": story.target,
        "versions": story.versions,
        "data": story.data,
        "begin_ms": story.begin_ms,
        "end_ms": story.end_ms,
        "seconds": round((story.end_ms - story.begin_ms) / 1000, 1),
        "interrupted": story.interrupted,
        "passed": verdict.findings.total() == 0 and story.judged and not story.killed and not story.problems,
        "judged": story.judged,
        "clients_killed": list(story.killed),
        "anomalies": {kind.value: verdict.findings.counts.get(kind, 0) for kind in AnomalyKind},
        "anomaly_examples": [
            {"kind": each.kind.value, "where": each.where, "what": each.what, "at_ms": each.at_ms}
            for each in verdict.findings.examples()
        ],
        "anomaly_meanings": {kind.value: MEANINGS[kind] for kind in AnomalyKind},
        "problems": list(story.problems),
        "faults": {
            **{kind.value: counts.get(kind.value, 0) for kind in FaultKind},
            "agents that ended by themselves": counts.get("exit", 0),
        },
        "faults_left_out": {kind.value: count for kind, count in story.left_out.items()},
        "faults_skipped": {kind.value: reason for kind, reason in story.skipped.items()},
        "good_share": round(story.good_share, 3),
        "clients": [client.described for client in story.clients.present],
        "clients_absent": list(story.clients.absent),
        "producers": dict(sorted(verdict.producers.items())),
        "acknowledged": _acknowledged(verdict),
        "failed": verdict.writes.failed,
        "failed_but_written": verdict.writes.unresolved_present,
        "permitted_duplicates": verdict.writes.permitted_duplicates,
        "lost_acks_1": verdict.writes.lost_acks_1,
        "moved_acks_1": verdict.writes.moved_acks_1,
        "records_in_log": verdict.writes.log_end,
        "delivered_to_groups": verdict.writes.deliveries,
        "groups": _groups(verdict),
        "partitions": [
            {
                "partition": each.where,
                "records": each.log_end,
                "longest_gap_s": round(each.longest_gap_ms / 1000, 1),
                "longest_gap_outside_outages_s": round(each.longest_gap_outside_outages_ms / 1000, 1),
                "silences": [asdict(silence) for silence in each.silences],
            }
            for each in verdict.partitions
        ],
        "unavailable_limit_s": options.unavailable_limit_s,
        "timeline": {
            "faults": [asdict(each) for each in story.happened],
            "acknowledged_by_second": dict(sorted(verdict.acknowledged_by_second.items())),
        },
    }


def _acknowledged(verdict: RunVerdict) -> dict[str, Any]:
    by_acks: Counter[str] = Counter()
    by_client: dict[str, dict[str, int]] = {}
    for name, count in sorted(verdict.writes.acknowledged.items()):
        client, acks = name.split()
        by_acks[acks] += count
        by_client.setdefault(client, {})[f"acks={acks}"] = count
    return {"total": by_acks.total(), "acks=all": by_acks["all"], "acks=1": by_acks["1"], "by_client": by_client}


def _groups(verdict: RunVerdict) -> dict[str, dict[str, int]]:
    groups: dict[str, Counter[str]] = {}
    for partition in verdict.partitions:
        for facts in partition.groups:
            sums = groups.setdefault(facts.group, Counter())
            sums.update({"records": facts.deliveries, "behind": facts.behind})
    return {name: {"records": sums["records"], "behind": sums["behind"]} for name, sums in sorted(groups.items())}
