"""The report as text, for a terminal and for report.txt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

_WIDTH: Final = 28
_EXAMPLES_SHOWN: Final = 10
_MAX_PROBLEMS: Final = 10
SILENCE: Final = "longest silence while an agent ran"


def as_text(document: Mapping[str, Any]) -> str:
    lines = [f"chaos: {headline(document)}", ""]
    shown = facts(document)
    width = max(len(name) for name, _ in shown)
    lines += [f"{name.ljust(width)}  {value}" for name, value in shown]
    lines += ["", "anomalies"]
    lines += [
        f"  {kind.ljust(_WIDTH)}  {count}{'   ' + document['anomaly_meanings'][kind] if count else ''}"
        for kind, count in document["anomalies"].items()
    ]
    lines += _examples(document)
    lines += ["", f"{SILENCE} (first number)", f"{silence_outside(document)} (second number)"]
    lines += [
        f"  {each['partition'].ljust(_WIDTH)}  {each['longest_gap_s']:.1f} s, "
        f"{each['longest_gap_outside_outages_s']:.1f} s"
        for each in document["partitions"]
    ]
    for problem in document["problems"][:_MAX_PROBLEMS]:
        lines += ["", f"problem with the run itself: {problem}"]
    return "\n".join(lines) + "\n"


def facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The lines of the summary: what, and its value."""
    acknowledged, faults = document["acknowledged"], document["faults"]
    found = [
        ("target", document["target"]),
        ("versions", _pairs({"streamhouse": document["streamhouse"], **document["versions"]})),
        ("agents' data", document["data"] or ""),
        ("seed", str(document["seed"])),
        ("began", utc(document["begin_ms"])),
        ("load and faults", f"{document['seconds']:.0f} s{', interrupted' if document['interrupted'] else ''}"),
        ("clients", ", ".join(document["clients"])),
        *(("did not take part", each) for each in document["clients_absent"]),
        ("faults", _pairs(faults)),
        *((f"fault {kind} not possible", reason) for kind, reason in document["faults_skipped"].items()),
        ("faults left out (floor, or target busy)", _pairs(document["faults_left_out"]) or "none"),
        ("good time", f"{document['good_share']:.0%} (an agent ran and both stores answered)"),
        ("producers", _pairs(document["producers"])),
        (
            "acknowledged",
            f"{acknowledged['total']} (acks=all: {acknowledged['acks=all']}, acks=1: {acknowledged['acks=1']})",
        ),
        *((f"acknowledged, {client}", _pairs(counts)) for client, counts in acknowledged["by_client"].items()),
        (
            "failed",
            f"{document['failed']} records: reported as failed to the application "
            f"({document['failed_but_written']} of them are in the log)",
        ),
        ("permitted duplicates", f"{document['permitted_duplicates']} (of producers that retry without idempotence)"),
        ("acks=1", f"{document['lost_acks_1']} lost, {document['moved_acks_1']} at another offset; both permitted"),
        ("records in the log", str(document["records_in_log"])),
        ("delivered to groups", str(document["delivered_to_groups"])),
    ]
    for name, sums in document["groups"].items():
        found.append((f"group {name}", f"{sums['records']} records read, {sums['behind']} not committed"))
    return [(name, value) for name, value in found if value]


def headline(document: Mapping[str, Any]) -> str:
    """The verdict in one line. A verdict that is not reliable says so first."""
    total, killed = sum(document["anomalies"].values()), document["clients_killed"]
    if not document["judged"] and not total:
        return "interrupted before the last read; not judged"
    doubt = f"the verdict is not reliable: {' and '.join(killed)} killed, history incomplete; " if killed else ""
    if total:
        kinds = _pairs({kind: count for kind, count in document["anomalies"].items() if count})
        return f"{doubt}{total} {'anomaly' if total == 1 else 'anomalies'} ({kinds})"
    if killed:
        return f"{doubt}no anomaly"
    if document["problems"]:
        return "no anomaly, but the run itself had problems; its verdict may be incomplete"
    return "no anomaly"


def silence_outside(document: Mapping[str, Any]) -> str:
    return f"{SILENCE} and both stores answered; limit {document['unavailable_limit_s']:g} s"


def utc(at_ms: int) -> str:
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def utc_time(at_ms: int) -> str:
    """The time without the date."""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%H:%M:%S} UTC"


def _pairs(counts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _examples(document: Mapping[str, Any]) -> Sequence[str]:
    examples = document["anomaly_examples"]
    shown = [f"  {_example(each)}" for each in examples[:_EXAMPLES_SHOWN]]
    more = sum(document["anomalies"].values()) - len(shown)
    return (
        ["", "examples", *shown, *([f"  and {more} more; report.json has up to 50 of each kind"] if more else [])]
        if shown
        else []
    )


def _example(each: Mapping[str, Any]) -> str:
    at = "" if each["at_ms"] is None else f" (at {utc_time(each['at_ms'])})"
    return f"{each['kind']}: {each['where']}: {each['what']}{at}"
