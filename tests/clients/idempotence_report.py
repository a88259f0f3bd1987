"""Write the table of answers in docs/idempotence.md from idempotence_cases.py.

python tests/clients/idempotence_report.py            write the table
python tests/clients/idempotence_report.py --check    exit code 1 when it is out of date
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from client_report import table
from idempotence_cases import CASES, CODE_NAMES, Answer, Batch

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "idempotence.md"
BEGIN: Final = "<!-- begin: written by tests/clients/idempotence_report.py -->"
END: Final = "<!-- end -->"
_COLUMNS: Final = ["the batch", "epoch", "sequences", "Apache Kafka 4.2", "StreamHouse"]


def rows() -> Iterator[list[str]]:
    for case in CASES:
        for batch in case.batches():
            if batch.says:
                yield [batch.says, str(batch.epoch), _sequences(batch), _shown(batch.kafka), _ours(batch)]


def _sequences(batch: Batch) -> str:
    last = (batch.sequence + batch.count - 1) % 2**31
    return str(batch.sequence) if batch.count == 1 else f"{batch.sequence} to {last}"


def _shown(answer: Answer) -> str:
    return f"{answer.code} {CODE_NAMES[answer.code]}" if answer.code else f"0, offset {answer.base_offset}"


def _ours(batch: Batch) -> str:
    if batch.streamhouse is None:
        return "not tested by requests"
    if batch.streamhouse == batch.kafka:
        return "the same"
    if batch.while_uncommitted is None:
        return f"**{_shown(batch.streamhouse)}**"
    return f"**{_shown(batch.streamhouse)}**, or {_shown(batch.while_uncommitted)} until it is committed"


def written_page(page: str) -> str:
    """The page with a new table between the two marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE} must contain the lines {BEGIN!r} and {END!r}; put them back")
    return f"{before}{BEGIN}\n\n{table(_COLUMNS, list(rows()))}\n\n{END}{after}"


def main(arguments: Sequence[str]) -> int:
    page = PAGE.read_text()
    wanted = written_page(page)
    if "--check" not in arguments:
        PAGE.write_text(wanted)
        return 0
    return 0 if page == wanted else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
