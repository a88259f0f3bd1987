"""The report as text, for a terminal and for report.txt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_WIDTH: Final = 26
_EXAMPLES_SHOWN: Final = 10
_MAX_TROUBLES: Final = 10


def as_text(document: Mapping[str, Any]) -> str:
    lines = [_headline(document), ""]
    lines += [_fact(name, value) for name, value in facts(document)]
    lines += ["", "anomalies"]
    lines += [
        f"  {kind.ljust(_WIDTH)}  {count}{'   ' + document['anomaly_meanings'][kind] if count else ''}"
        for kind, count in document["anomalies"].items()
    ]
    lines += _examples(document)
    lines += ["", "longest time without an acknowledgement, by partition (in brackets: outside outages of the stores)"]
    lines += [
        f"  {each['partition'].ljust(_WIDTH)}  {each['longest_gap_s']:.1f} s "
        f"({each['longest_gap_outside_outages_s']:.1f} s)"
        for each in document["partitions"]
    ]
    for trouble in document["troubles"][:_MAX_TROUBLES]:
        lines += ["", f"trouble with the run itself: {trouble}"]
    return "\n".join(lines) + "\n"


def facts(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The lines of the summary: what, and its value."""
    acknowledged, faults = document["acknowledged"], document["faults"]
    found = [
        ("target", document["target"]),
        ("versions", _pairs({"streamhouse": document["streamhouse"], **document["versions"]})),
        ("agents' data", document["data"] or ""),
        ("seed", str(document["seed"])),
        ("lasted", f"{document['seconds']:.0f} s{', interrupted' if document['interrupted'] else ''}"),
        ("clients", ", ".join(document["clients"])),
        *(("did not take part", each) for each in document["clients_absent"]),
        ("faults", _pairs(faults)),
        *((f"fault {kind} not possible", reason) for kind, reason in document["faults_skipped"].items()),
        ("left out for the floor", _pairs(document["faults_left_out"]) or "none"),
        ("good time", f"{document['good_share']:.0%} (an agent ran and both stores answered)"),
        ("producers", _pairs(document["producers"])),
        (
            "acknowledged",
            f"{acknowledged['total']} (acks=all: {acknowledged['acks=all']}, acks=1: {acknowledged['acks=1']})",
        ),
        *((f"acknowledged, {client}", _pairs(counts)) for client, counts in acknowledged["by_client"].items()),
        ("given up by clients", f"{document['failed']} ({document['failed_but_written']} of them are in the log)"),
        ("permitted duplicates", f"{document['permitted_duplicates']} (of producers that retry without idempotence)"),
        ("acks=1", f"{document['lost_acks_1']} lost, {document['moved_acks_1']} at another offset; both permitted"),
        ("records in the log", str(document["records_in_log"])),
        ("delivered to groups", str(document["delivered_to_groups"])),
    ]
    for name, sums in document["groups"].items():
        found.append((f"group {name}", f"{sums['records']} records read, {sums['behind']} not committed"))
    return [(name, value) for name, value in found if value]


def _headline(document: Mapping[str, Any]) -> str:
    total = sum(document["anomalies"].values())
    if total:
        kinds = _pairs({kind: count for kind, count in document["anomalies"].items() if count})
        return f"chaos: {total} anomalies ({kinds})"
    if document["troubles"]:
        return "chaos: no anomaly, but the run itself had trouble; its verdict may be incomplete"
    return "chaos: no anomaly"


def _fact(name: str, value: str) -> str:
    return f"{name.ljust(_WIDTH)}  {value}"


def _pairs(counts: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items())


def _examples(document: Mapping[str, Any]) -> Sequence[str]:
    examples = document["anomaly_examples"]
    shown = [f"  {each['kind']}: {each['where']}: {each['what']}" for each in examples[:_EXAMPLES_SHOWN]]
    more = sum(document["anomalies"].values()) - len(shown)
    return (
        ["", "examples", *shown, *([f"  and {more} more; report.json has up to 50 of each kind"] if more else [])]
        if shown
        else []
    )
