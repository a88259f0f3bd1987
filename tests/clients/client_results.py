"""What the matrix found on one target, kept in a file, and where ours differs from Apache Kafka's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from client_features import OK, Cell

RESULTS: Final = Path(__file__).resolve().parent / "results"
ROOT: Final = Path(__file__).resolve().parents[2]


class Results:
    """What is known of one target: {"target", "clients": {name: version}, "cells": {client: {feature: cell}}}"""

    def __init__(self, path: Path) -> None:
        self.path = path
        known = json.loads(path.read_text()) if path.exists() else {}
        self.target: dict[str, str] = known.get("target", {})
        self.versions: dict[str, str] = known.get("clients", {})
        self.cells: dict[str, dict[str, dict[str, Any]]] = known.get("cells", {})

    def add(self, client: str, cell: Cell) -> None:
        entry = {"outcome": cell.outcome}
        if cell.detail and cell.outcome != OK:
            entry["detail"] = cell.detail.replace(f"{ROOT}/", "")[:600]
        if cell.seen is not None:
            entry["seen"] = cell.seen
        self.cells.setdefault(client, {})[cell.feature] = entry

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        whole = {"target": self.target, "clients": self.versions, "cells": self.cells}
        self.path.write_text(_one_line_a_cell(whole, depth=3) + "\n")


def differences(ours: Results, kafka: Results) -> list[str]:
    """Cells of ours that do not pass, or that are not what the same client saw on Kafka."""
    found = []
    for client, cells in ours.cells.items():
        for feature, cell in cells.items():
            theirs = kafka.cells.get(client, {}).get(feature)
            if theirs is None:
                found.append(f"{client}, {feature}: not run on {kafka.target.get('name', 'Apache Kafka')}")
            elif cell["outcome"] != theirs["outcome"]:
                detail = cell.get("detail", "")
                found.append(f"{client}, {feature}: {cell['outcome']} ({detail}), there {theirs['outcome']}")
            elif cell.get("seen") != theirs.get("seen"):
                found.append(f"{client}, {feature}: saw {cell.get('seen')}, there {theirs.get('seen')}")
    return found


def _one_line_a_cell(value: Any, depth: int, indent: str = "") -> str:
    """So that a change of one cell is a change of one line."""
    if depth == 0 or not isinstance(value, dict) or not value:
        return json.dumps(value, ensure_ascii=False, sort_keys=True)
    inner = indent + " "
    lines = (f"{inner}{json.dumps(key)}: {_one_line_a_cell(each, depth - 1, inner)}" for key, each in value.items())
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
