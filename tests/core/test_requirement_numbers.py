"""Every requirement number in the code, the docs and the names of tests refers to a page of the repository."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = (ROOT / "docs/requirements.md", ROOT / "docs/safety.md")
PLACES = ("src", "tests", "simulator", "docs", "scripts", "bench")
SUFFIXES = {".py", ".pyx", ".pxi", ".sql", ".md"}
WRITTEN = re.compile(r"\b(S[123]\.\d+|P\.\d|R\d{1,2})\b")
IN_A_TEST_NAME = re.compile(r"\btest_(?:(s[123])_(\d+)|(p)_(\d)|(r)(\d{1,2}))(?:_|\b)")


def numbers_in(text: str) -> Iterator[str]:
    for match in WRITTEN.finditer(text):
        yield match[1]
    for s, s_number, p, p_number, r, r_number in IN_A_TEST_NAME.findall(text):
        yield f"{s.upper()}.{s_number}" if s else f"{p.upper()}.{p_number}" if p else f"{r.upper()}{r_number}"


def test_every_requirement_number_in_use_has_a_line() -> None:
    listed = {match[1] for page in PAGES for match in re.finditer(r"^\| (\S+) \|", page.read_text(), re.MULTILINE)}
    assert len(listed) > 60
    unknown: dict[str, str] = {}
    files = [path for place in PLACES for path in (ROOT / place).rglob("*") if path.suffix in SUFFIXES]
    for path in files:
        for number in numbers_in(path.read_text()):
            if number not in listed:
                unknown.setdefault(number, str(path.relative_to(ROOT)))
    assert not unknown, "these numbers are in no table of docs/requirements.md and docs/safety.md"


def test_numbers_are_found_in_prose_and_in_names() -> None:
    text = "as S3.17 asks (R4) … def test_s1_10_alive(): … def test_r12_x(): … def test_p_1(self)"
    assert set(numbers_in(text)) == {"S3.17", "R4", "S1.10", "R12", "P.1"}
