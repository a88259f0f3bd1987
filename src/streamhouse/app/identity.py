"""The name of this agent: from the settings, or made once and kept in the data directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from streamhouse.app.agent import AgentIdentity
from streamhouse.core.errors import InvalidSetting
from streamhouse.core.randomness import Randomness
from streamhouse.core.settings import Settings

_FILE: Final = "agent.id"


def agent_identity(settings: Settings, randomness: Randomness) -> AgentIdentity:
    """Raises InvalidSetting when the data directory cannot keep the name."""
    return AgentIdentity(
        agent_id=settings.agent.id or _kept_name(settings.data_dir, randomness),
        address=settings.agent.address,
        zone=settings.agent.zone,
    )


def _kept_name(data_dir: Path, randomness: Randomness) -> str:
    path = data_dir / _FILE
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        name = f"agent-{randomness.uuid().hex[:12]}"
        try:
            # Created whole under another name: a crash never leaves half a name behind.
            made = data_dir / f".{_FILE}.{name}"
            made.write_text(f"{name}\n", encoding="ascii")
            os.link(made, path)
        except FileExistsError:
            name = path.read_text(encoding="ascii").strip()
        finally:
            made.unlink(missing_ok=True)
    except OSError as error:
        raise InvalidSetting(
            f"cannot keep this agent's name in {path}: {error.strerror}", hint="set --agent-id, or another --data-dir"
        ) from error
    if not name:
        raise InvalidSetting(f"{path} is empty", hint="write this agent's name into it, or set --agent-id")
    return name
