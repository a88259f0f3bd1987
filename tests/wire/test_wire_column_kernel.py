"""Which of the twins does the work: the compiled one where it was built, unless the environment asks otherwise."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
from wire_samples import kernel_module

from streamhouse.wire._column_kernel import IS_COMPILED, _choose, kernel


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [({}, "streamhouse.wire._columns"), ({"STREAMHOUSE_PURE": "1"}, "streamhouse.wire._columns_py")],
)
def test_the_environment_can_force_the_pure_kernel(environment: dict[str, str], wanted: str) -> None:
    code = "from streamhouse.wire._column_kernel import kernel; print(kernel.__name__)"
    child = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert child.stdout.strip() == wanted


def test_the_name_of_the_kernel_says_whether_it_is_compiled() -> None:
    assert kernel.__name__.endswith("_columns") is IS_COMPILED


def test_without_a_build_the_pure_kernel_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STREAMHOUSE_PURE", raising=False)
    monkeypatch.setattr(importlib, "import_module", without(COMPILED, missing=COMPILED))
    assert _choose() is kernel_module("_columns_py")


def test_a_build_that_lacks_something_else_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken installation must be seen: the pure kernel is two hundred times slower."""
    monkeypatch.delenv("STREAMHOUSE_PURE", raising=False)
    monkeypatch.setattr(importlib, "import_module", without(COMPILED, missing="streamhouse.wire.gone"))
    with pytest.raises(ModuleNotFoundError, match="gone"):
        _choose()


def test_only_the_value_1_asks_for_the_pure_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    for value, name in (("1", "_columns_py"), ("0", "_columns"), ("", "_columns")):
        monkeypatch.setenv("STREAMHOUSE_PURE", value)
        assert _choose() is kernel_module(name)


COMPILED = "streamhouse.wire._columns"


def without(module: str, *, missing: str) -> Callable[[str], ModuleType]:
    """``import_module`` in an installation where importing ``module`` does not find ``missing``."""
    real = importlib.import_module

    def import_module(name: str) -> ModuleType:
        if name == module:
            raise ModuleNotFoundError(f"No module named {missing!r}", name=missing)
        return real(name)

    return import_module
