"""docs/reference is what the code says (style, habit 13)."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from streamhouse.cli.main import load
from streamhouse.core.settings import SCHEMA
from streamhouse.core.topic_config import TOPIC_CONFIGS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gen_docs.py"


@pytest.fixture(scope="module")
def gen_docs() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gen_docs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_pages_are_up_to_date(gen_docs: ModuleType) -> None:
    assert gen_docs.outdated() == [], "run: .venv/bin/python scripts/gen_docs.py"


def test_an_outdated_page_is_noticed_and_rewritten(
    gen_docs: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gen_docs, "REFERENCE", tmp_path)
    assert gen_docs.main(["--check"]) == 1
    assert gen_docs.main([]) == 0
    assert gen_docs.main(["--check"]) == 0
    (tmp_path / "limits.md").write_text("old")
    assert gen_docs.outdated() == ["limits.md"]
    assert gen_docs.main(["--nonsense"]) == 2


def test_the_script_runs_on_its_own() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--check"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_setting_and_topic_config_has_its_entry(gen_docs: ModuleType) -> None:
    settings, configs = gen_docs.render("settings.md"), gen_docs.render("topic-configs.md")
    for setting in SCHEMA:
        for name in (f"### `{setting.key}`", f"`{setting.flag}`", f"`{setting.variable}`", setting.declaration.doc):
            assert name in settings
    for key in TOPIC_CONFIGS.values():
        assert f"| `{key.name}` |" in configs


def test_a_limit_without_a_reason_is_refused(gen_docs: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    real = gen_docs.inspect.getsource(gen_docs.limits)
    monkeypatch.setattr(gen_docs.inspect, "getsource", lambda module: re.sub(r"(MAX_BATCH_BYTES.*?)  #.*", r"\1", real))
    with pytest.raises(SystemExit, match="MAX_BATCH_BYTES has no reason"):
        gen_docs.render("limits.md")


def test_the_index_links_every_page_and_every_link_leads_somewhere(gen_docs: ModuleType) -> None:
    reference = ROOT / "docs" / "reference"
    for name in gen_docs.PAGES:
        assert f"({name})" in (reference / "README.md").read_text()
    for page in reference.glob("*.md"):
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (reference / target).exists(), f"{page.name} links to {target}"


def test_help_and_reference_say_how_often_an_argument_may_be_given(gen_docs: ModuleType) -> None:
    for name in ("compact", "compactor", "retain", "verify"):
        command = load(name)
        usage = command.collect_usage_pieces(command.make_context(name, [], resilient_parsing=True))
        assert usage == ["[OPTIONS]", "[TOPIC]..."], name
    page = gen_docs.render("cli.md")
    assert "| `[TOPIC]…` | Only these topics" in page
    assert "| `NAME…` | One or more names. |" in page
