from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from data_ground import Ground, ground


@pytest.fixture
async def kafka(tmp_path: Path) -> AsyncIterator[Ground]:
    async with ground(tmp_path) as made:
        yield made
