"""What the stories of real processes share: a word to the person who runs them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

TOLD: list[str] = []


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Print a measurement with the run's summary. Nothing is asserted about it."""
    return lambda line: TOLD.append(f"{request.node.name}: {line}")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in TOLD:
        terminalreporter.write_line(line)
