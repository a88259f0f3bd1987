"""Stories that take minutes: `make test-spark` tells them, `make test` does not collect them."""

from __future__ import annotations

import os

collect_ignore_glob = [] if os.environ.get("SPARK_KILLS") else ["test_*.py"]
