"""A history to fill by hand. This folder is on the path of imports: its helpers serve the folders below it, too."""

from __future__ import annotations

from pathlib import Path

import pytest
from chaos_histories import Tale


@pytest.fixture
def tale(tmp_path: Path) -> Tale:
    return Tale(tmp_path)
