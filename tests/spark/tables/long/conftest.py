"""Stories that take minutes: `make test-spark` tells them, `make test` does not collect them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

collect_ignore_glob = [] if os.environ.get("SPARK_KILLS") else ["test_*.py"]
