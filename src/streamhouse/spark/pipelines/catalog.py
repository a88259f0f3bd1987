"""How the metadata store keeps pipelines: the kind of definition, and its document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from streamhouse.spark.definitions.catalog import DefinitionKind, Stored
from streamhouse.spark.pipelines.parsing import load_pipeline
from streamhouse.spark.pipelines.spec import PipelineSpec

StoredPipeline = Stored[PipelineSpec]

PROGRESS_KIND: Final = "pipeline-progress"
"""Documents that target_topic.py keeps, one for each pipeline that writes to a topic."""


def _write(spec: PipelineSpec, generation: int) -> Mapping[str, Any]:
    return {"spec": spec.to_document(), "generation": generation}


def _read(name: str, document: Mapping[str, Any]) -> tuple[PipelineSpec, int]:
    return load_pipeline(document["spec"]), int(document["generation"])


PIPELINES: Final = DefinitionKind(name="pipeline", checkpoints="", write=_write, read=_read)
