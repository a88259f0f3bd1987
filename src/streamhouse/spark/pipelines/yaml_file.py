"""``pipelines.yaml``: definitions in a file, and the line of each mistake. Reads no file itself.

    pipelines:
      - name: orders-per-minute
        state: running              # or stopped; without it, what runs goes on and what is new is started
        sources: …

Tags, anchors and merge keys of YAML are refused: with aliases, a small file can expand to gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from streamhouse.core.errors import InvalidSetting
from streamhouse.core.limits import MAX_CONFIG_FILE_BYTES
from streamhouse.core.suggest import did_you_mean
from streamhouse.metadata.contract import WantedState
from streamhouse.spark.definitions.documents import DocumentProblem, Path
from streamhouse.spark.pipelines.parsing import parse_pipeline
from streamhouse.spark.pipelines.spec import PipelineSpec

MAX_PIPELINES: Final = 1_000
_MAX_DEPTH: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedPipeline:
    spec: PipelineSpec
    wanted: WantedState | None
    """The wanted state; None if the file does not say."""
    line: int


def read_pipelines(text: str, *, file: str) -> list[WantedPipeline]:
    """Raises InvalidSetting with every problem, one a line, each as ``file:line: …``."""
    if len(text.encode()) > MAX_CONFIG_FILE_BYTES:
        raise InvalidSetting(f"{file} has more than {MAX_CONFIG_FILE_BYTES} bytes")
    document, lines = _load(text, file)
    problems: list[tuple[int, str]] = []
    found = list(_pipelines(document, lines, problems))
    if problems:
        raise InvalidSetting("\n".join(f"{file}:{line}: {said}" for line, said in sorted(problems)))
    return found


def _pipelines(document: Any, lines: _Lines, problems: list[tuple[int, str]]) -> Iterator[WantedPipeline]:
    if not isinstance(document, Mapping) or not isinstance(document.get("pipelines"), list):
        problems.append((1, "there is no list of pipelines (begin the file with `pipelines:` and `  - name: …`)"))
        return
    for name in document:
        if name != "pipelines":
            hint = did_you_mean(str(name), ["pipelines"], otherwise="a file holds only pipelines")
            problems.append((lines.of((str(name),)), f"there is no {str(name)[:80]!r} here ({hint})"))
    seen: dict[str, int] = {}
    for number, each in enumerate(document["pipelines"][: MAX_PIPELINES + 1]):
        base: Path = ("pipelines", str(number))
        line = lines.of(base)
        if number == MAX_PIPELINES:
            problems.append((line, f"there are more than {MAX_PIPELINES} pipelines in one file"))
            return
        given = dict(each) if isinstance(each, Mapping) else each
        wanted = given.pop("state", None) if isinstance(given, dict) else None
        if wanted is not None and wanted not in list(WantedState):
            problems.append((lines.of((*base, "state")), f"state: {wanted!r} is neither running nor stopped"))
            wanted = None
        spec, wrong = parse_pipeline(given)
        problems.extend((lines.of((*base, *problem.path)), _said(given, problem)) for problem in wrong)
        if spec is None:
            continue
        if spec.name in seen:
            problems.append((line, f"the pipeline {spec.name} is defined twice, first in line {seen[spec.name]}"))
        seen[spec.name] = line
        yield WantedPipeline(spec=spec, wanted=None if wanted is None else WantedState(wanted), line=line)


def _said(given: object, problem: DocumentProblem) -> str:
    name = given.get("name") if isinstance(given, Mapping) else None
    return f"pipeline {name}: {problem}" if isinstance(name, str) else str(problem)


class _Lines:
    """The line on which each part of the document begins, by its path."""

    def __init__(self) -> None:
        self._lines: dict[Path, int] = {}

    def put(self, path: Path, line: int) -> None:
        """The first call counts: the line of a key, not of its value."""
        self._lines.setdefault(path, line)

    def of(self, path: Path) -> int:
        """The line of the part, or of the nearest part around it."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)


def _load(text: str, file: str) -> tuple[Any, _Lines]:
    lines = _Lines()
    try:
        depth = 0
        # The first pass is lazy. It ends deep nesting before PyYAML spends minutes on it.
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH:
                line = event.start_mark.line + 1
                raise InvalidSetting(f"{file}:{line}: this is nested more than {_MAX_DEPTH} levels deep")
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise InvalidSetting(f"{file}:{event.start_mark.line + 1}: anchors and aliases are not allowed here")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            return None, lines
        _walk(root, (), lines, file)
        return yaml.safe_load(text), lines
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = 1 if mark is None else mark.line + 1
        raise InvalidSetting(f"{file}:{line}: {error.problem or error.context}", hint="this is not YAML") from error
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InvalidSetting(f"{file}: this is not YAML: {str(error)[:200]}") from error


def _walk(node: yaml.Node, path: Path, lines: _Lines, file: str) -> None:
    line = node.start_mark.line + 1
    lines.put(path, line)
    if isinstance(node, yaml.SequenceNode):
        for number, each in enumerate(node.value):
            _walk(each, (*path, str(number)), lines, file)
    elif isinstance(node, yaml.MappingNode):
        names: set[str] = set()
        for name, value in node.value:
            text = str(name.value)
            if text in names:
                raise InvalidSetting(f"{file}:{name.start_mark.line + 1}: {text[:80]!r} is there twice")
            names.add(text)
            lines.put((*path, text), name.start_mark.line + 1)
            _walk(value, (*path, text), lines, file)
