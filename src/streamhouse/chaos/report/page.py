"""The report as one HTML page without any other file: a time line drawn as SVG, and the summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from streamhouse.chaos.options import MEANINGS
from streamhouse.chaos.report.text import SILENCE, facts, headline, silence_outside, utc_time

_LEFT, _RIGHT, _ROW, _CHART = 180, 20, 20, 120
_PX_PER_S_MAX: Final = 8.0
_WIDTH_MIN, _WIDTH_MAX = 900, 6000
_COLOURS: Final = {
    "kill": "#c62828",
    "pause": "#ef6c00",
    "stop": "#6a1b9a",
    "s3": "#1565c0",
    "database": "#00838f",
    "disk": "#5d4037",
    "clock": "#9e9d24",
    "exit": "#000000",
}
_MODES: Final = {"cut": "connections cut", "refuse": "connections refused", "hold": "connections held silent"}
_STYLE: Final = """
body { font: 14px system-ui, sans-serif; margin: 24px; color: #222; background: #fff; }
h1 { font-size: 20px; } h2 { font-size: 16px; margin-top: 28px; }
.good { color: #2e7d32; } .bad { color: #c62828; }
table { border-collapse: collapse; } td, th { text-align: left; padding: 3px 14px 3px 0; vertical-align: top; }
th { font-weight: 600; } tr + tr td { border-top: 1px solid #eee; }
.scroll { overflow-x: auto; border: 1px solid #ddd; padding: 8px; }
.key span { display: inline-block; width: 12px; height: 12px; margin: 0 6px 0 0; vertical-align: -1px; }
svg text { font: 11px system-ui, sans-serif; fill: #444; }
"""


def as_page(document: Mapping[str, Any]) -> str:
    colour = "good" if document["passed"] else "bad"
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>streamhouse chaos {escape(document["run"])}</title>
<style>{_STYLE}</style></head><body>
<h1>streamhouse chaos: <span class="{colour}">{escape(headline(document))}</span></h1>
{_table([[escape(name), escape(value)] for name, value in facts(document)])}
<h2>Time line</h2>
<div class="key">{_key()}</div>
<div class="scroll">{time_line(document)}</div>
<p>Point at a span to read what it was. Red marks on top are anomalies whose time is known; the grey spans of a
partition are silences of two seconds and more: a client waited, an agent ran, and nothing was acknowledged.</p>
<h2>Anomalies</h2>
{_anomalies(document)}
{_problems(document)}
<h2>Longest silence of each partition</h2>
{_gaps(document)}
</body></html>
"""


def _table(rows: Sequence[Sequence[str]], head: Sequence[str] = ()) -> str:
    lines = ["<table>"]
    if head:
        lines.append("<tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in head) + "</tr>")
    lines += ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])


def _key() -> str:
    meanings = {**{kind.value: meaning for kind, meaning in MEANINGS.items()}, "exit": "an agent ended by itself"}
    return "".join(
        f'<div><span style="background:{colour}"></span>{kind}: {escape(meanings[kind])}</div>'
        for kind, colour in _COLOURS.items()
    )


def _anomalies(document: Mapping[str, Any]) -> str:
    counts = [
        [escape(kind), str(count), escape(document["anomaly_meanings"][kind])]
        for kind, count in document["anomalies"].items()
    ]
    examples = [
        [escape(each["kind"]), escape(each["where"]), escape(each["what"]), _clock(each["at_ms"])]
        for each in document["anomaly_examples"]
    ]
    shown = "<h2>Examples</h2>" + _table(examples, ["kind", "where", "what", "at"]) if examples else ""
    return _table(counts, ["kind", "count", "meaning"]) + shown


def _problems(document: Mapping[str, Any]) -> str:
    if not document["problems"]:
        return ""
    return "<h2>Problems with the run itself</h2>" + _table([[escape(each)] for each in document["problems"]])


def _gaps(document: Mapping[str, Any]) -> str:
    rows = [
        [
            escape(each["partition"]),
            str(each["records"]),
            f"{each['longest_gap_s']:.1f} s",
            f"{each['longest_gap_outside_outages_s']:.1f} s",
        ]
        for each in document["partitions"]
    ]
    return _table(rows, ["partition", "records", SILENCE, silence_outside(document)])


def _clock(at_ms: int | None) -> str:
    return "" if at_ms is None else utc_time(at_ms)


def time_line(document: Mapping[str, Any]) -> str:
    """Rows: the acknowledged rate, every agent, both stores, every partition."""
    seconds = max(1.0, (document["end_ms"] - document["begin_ms"]) / 1000)
    plot = min(_WIDTH_MAX, max(_WIDTH_MIN, int(seconds * _PX_PER_S_MAX))) - _LEFT - _RIGHT
    scale = _Scale(document["begin_ms"], plot / seconds, plot)
    faults = document["timeline"]["faults"]
    targets = sorted({each["target"] for each in faults})
    top = 20 + _CHART + 24
    rows = [_rate(document, scale, 20)]
    for number, target in enumerate(targets):
        y = top + number * _ROW
        rows.append(_label(target, y))
        rows += [_fault(each, scale, y) for each in faults if each["target"] == target]
    for number, partition in enumerate(document["partitions"], len(targets)):
        y = top + number * _ROW
        rows.append(_label(partition["partition"], y))
        rows += [_silence(each, scale, y) for each in partition["silences"]]
    height = top + (len(targets) + len(document["partitions"])) * _ROW + 30
    marks = [_mark(each, scale, height) for each in document["anomaly_examples"] if each["at_ms"] is not None]
    axis = _axis(scale, seconds, height)
    width = plot + _LEFT + _RIGHT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}">{axis}{"".join(rows)}{"".join(marks)}</svg>'
    )


class _Scale:
    def __init__(self, begin_ms: int, px_per_s: float, plot: int) -> None:
        self._begin_ms = begin_ms
        self.px_per_s = px_per_s
        self._plot = plot

    def x(self, at_ms: float) -> float:
        return _LEFT + min(max((at_ms - self._begin_ms) / 1000 * self.px_per_s, 0), self._plot)


def _label(text: str, y: float) -> str:
    return f'<text x="4" y="{y + 14}">{escape(text)}</text>'


def _span(x1: float, x2: float, y: float, colour: str, title: str, opacity: float = 1.0) -> str:
    return (
        f'<rect x="{x1:.1f}" y="{y + 3}" width="{max(x2 - x1, 2):.1f}" height="{_ROW - 6}" fill="{colour}" '
        f'opacity="{opacity}"><title>{escape(title)}</title></rect>'
    )


def _fault(each: Mapping[str, Any], scale: _Scale, y: float) -> str:
    colour = _COLOURS.get(each["kind"], "#777")
    return _span(scale.x(each["begin_ms"]), scale.x(each["end_ms"]), y, colour, _fault_title(each))


def _fault_title(each: Mapping[str, Any]) -> str:
    at, lasted = utc_time(each["begin_ms"]), f"{(each['end_ms'] - each['begin_ms']) / 1000:.1f} s"
    target, detail = each["target"], each["detail"]
    first, _, note = detail.partition("; ")
    match each["kind"]:
        case "kill":
            title = f"{target} killed at {at}, started again after {lasted}"
        case "pause":
            title = f"{target} paused at {at}, continued after {lasted}"
        case "stop":
            title = f"{target} told to stop at {at}, started again after {lasted}"
        case "disk":
            title = f"{target}: disk full at {at}, free again after {lasted}"
        case "clock":
            title = f"{target}: clock set by {first} at {at}, set right after {lasted}"
        case "s3" | "database":
            title = f"{target}: {_MODES.get(first.split()[0], first)} at {at}, for {lasted}"
        case _:
            return f"{target} at {at}: {detail}"
    return f"{title}; {note}" if note else title


def _silence(each: Mapping[str, Any], scale: _Scale, y: float) -> str:
    title = f"nothing acknowledged for {each['waited_ms'] / 1000:.1f} s, until {utc_time(each['end_ms'])}"
    return _span(scale.x(each["begin_ms"]), scale.x(each["end_ms"]), y, "#9e9e9e", title, 0.8)


def _mark(each: Mapping[str, Any], scale: _Scale, height: float) -> str:
    x = scale.x(each["at_ms"])
    title = escape(f"{each['kind']}: {each['where']}: {each['what']}, at {utc_time(each['at_ms'])}")
    return (
        f'<line x1="{x:.1f}" x2="{x:.1f}" y1="12" y2="{height - 24}" stroke="#d50000" stroke-dasharray="3 3"/>'
        f'<circle cx="{x:.1f}" cy="10" r="6" fill="#d50000"><title>{title}</title></circle>'
    )


def _rate(document: Mapping[str, Any], scale: _Scale, y: float) -> str:
    rates = {int(second): count for second, count in document["timeline"]["acknowledged_by_second"].items()}
    highest = max(rates.values(), default=1)
    first, last = document["begin_ms"] // 1000, document["end_ms"] // 1000
    points = " ".join(
        f"{scale.x(second * 1000):.1f},{y + _CHART - rates.get(second, 0) / highest * _CHART:.1f}"
        for second in range(first, last + 1)
    )
    left, right = scale.x(first * 1000), scale.x(last * 1000)
    return (
        f'<text x="4" y="{y + 10}">acknowledged/s</text><text x="4" y="{y + 26}">highest {highest}</text>'
        f'<polygon points="{left:.1f},{y + _CHART} {points} {right:.1f},{y + _CHART}" fill="#a5d6a7" stroke="#2e7d32"/>'
    )


def _axis(scale: _Scale, seconds: float, height: float) -> str:
    step = next(step for step in (5, 10, 30, 60, 300, 600, 3600, 86400) if seconds / step <= 30 or step == 86400)
    ticks = []
    for number in range(int(seconds // step) + 1):
        x = _LEFT + number * step * scale.px_per_s
        ticks.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="20" y2="{height - 24}" stroke="#eee"/>'
            f'<text x="{x:.1f}" y="{height - 8}">{number * step} s</text>'
        )
    return "".join(ticks)
