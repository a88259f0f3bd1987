"""Both kernels under the columns, in one process."""

from __future__ import annotations

from types import ModuleType

import pytest
from wire_samples import kernel_module

from streamhouse.wire import columns, columns_encode

KERNELS = ("_columns", "_columns_py")


@pytest.fixture(params=KERNELS)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Runs the test twice, with the compiled kernel and with its pure twin."""
    module = kernel_module(request.param)
    monkeypatch.setattr(columns, "kernel", module)
    monkeypatch.setattr(columns_encode, "kernel", module)
    return module
