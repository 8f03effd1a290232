"""Reading the files that people write: strict YAML, and the check against a JSON schema; a mistake is one line.

Knows YAML and the schemas of this folder; what the values mean together is the business of the package that reads the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from jsonschema.exceptions import ValidationError

from kvatlas.errors import KvatlasError
from kvatlas.files import read_json
from kvatlas.paths import PACKAGE_FOLDER
from kvatlas.schemas.messages import explain, key_path, missing_keys
from kvatlas.schemas.values import check_values

_MERGE_KEY = "<<"
_MERGE, _TIMESTAMP = "tag:yaml.org,2002:merge", "tag:yaml.org,2002:timestamp"


class _StrictLoader(yaml.SafeLoader):
    """YAML's safe loader, except that keys are texts and that a key given twice is an error instead of the last one.

    `<<` merges other maps in here, because a map that overrides what it merged is not always merged right by PyYAML.
    """

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        pairs: dict[str, tuple[yaml.Node, yaml.Node]] = {}
        for key_node, value_node in node.value:
            key = self._key(key_node)
            if key in pairs:
                raise _mistake(f"key '{key}' is given twice", key_node)
            pairs[key] = key_node, value_node
        if _MERGE_KEY in pairs and pairs[_MERGE_KEY][0].tag == _MERGE:
            _, merged = pairs.pop(_MERGE_KEY)
            for source in merged.value if isinstance(merged, yaml.SequenceNode) else [merged]:
                if not isinstance(source, yaml.MappingNode) or source is node:
                    raise _mistake("'<<' merges another map, or a list of maps", merged)
                # The first map that has a key wins, and the map's own keys before all.
                pairs = {key.value: (key, value) for key, value in source.value} | pairs
        node.value = list(pairs.values())
        return node

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise _mistake(f"a {'list' if isinstance(node, yaml.SequenceNode) else 'map'} cannot be a key", node)
        key = node.value if node.tag == _MERGE else self.construct_object(node)
        if not isinstance(key, str):
            raise _mistake(f"key {node.value} is not a text; put it in quotes", node)
        return key


# JSON knows no dates: one without quotes is the text that it looks like.
_StrictLoader.add_constructor(_TIMESTAMP, lambda _, node: node.value)


def _mistake(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(problem=problem, problem_mark=node.start_mark)


def read(path: Path | str, *, kind: str = "file", way_out: str) -> Any:
    """Read one YAML file into plain values.

    `kind` and `way_out` word the error for a missing file. Raises KvatlasError that names the file and, for YAML that is
    broken, the line.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise KvatlasError(f"{path}: no such {kind}; {way_out}") from error
    except IsADirectoryError as error:
        raise KvatlasError(f"{path}: this is a folder, not a {kind}; {way_out}") from error
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise KvatlasError(f"{path}: not valid UTF-8 (line {line}); save the file as UTF-8") from error
    except OSError as error:
        raise KvatlasError(f"{path}: cannot be read ({error.strerror})") from error
    return parse(text, str(path))


def read_checked(path: Path | str, schema: str, *, way_out: str) -> Any:
    """Read one YAML file and check it against a schema. Raises KvatlasError that names the file and the key."""
    document = read(path, way_out=way_out)
    try:
        check(document, load_schema(schema))
    except KvatlasError as error:
        raise KvatlasError(f"{path}: {error}") from error
    return document


def parse(text: str, name: str, *, first_line: int = 1) -> Any:
    """Read YAML text into plain values; `name` begins its errors, and `first_line` is the line that it begins at.

    Raises KvatlasError for YAML that is broken, a key given twice, and keys that are no texts.
    """
    try:
        # The strict loader is a SafeLoader: it builds plain values only.
        return yaml.load(text, Loader=_StrictLoader)
    except yaml.MarkedYAMLError as error:
        problem = " ".join(filter(None, (error.context, error.problem)))
        mark = error.problem_mark or error.context_mark
        where = f" (line {mark.line + first_line})" if mark else ""
        raise KvatlasError(f"{name}: not valid YAML: {problem}{where}") from error
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + first_line
        raise KvatlasError(
            f"{name}: not valid YAML: character U+{ord(text[error.position]):04X} is not allowed (line {line})"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise KvatlasError(f"{name}: not valid YAML: {' '.join(str(error).split())}") from error


def check(document: Any, schema: Mapping[str, Any]) -> None:
    """Check plain values against a JSON schema. Raises KvatlasError that explains the first mistake."""
    check_values(document)
    mistakes = sorted(_Validator(schema).iter_errors(document), key=_rank)
    if not mistakes:
        return
    first = mistakes[0]
    if first.validator != "required":
        raise KvatlasError(explain(first, document))
    # Keys of one place that several rules want are missed together.
    there = [each for each in mistakes if each.validator == "required" and each.absolute_path == first.absolute_path]
    wanted = dict.fromkeys(key for each in there for key in each.validator_value)
    missing = [key for key in wanted if key not in first.instance]
    raise KvatlasError(missing_keys(key_path(first.absolute_path, document), missing))


def load_schema(name: str) -> dict[str, Any]:
    """Return one of this folder's schemas: `config`, `models`, `texts` or `claims`."""
    schema: dict[str, Any] = read_json(PACKAGE_FOLDER / "schemas" / f"{name}.schema.json")
    return schema


def _pattern(_: Any, pattern: str, text: Any, __: Any) -> Iterator[ValidationError]:
    """A pattern whose `$` is the end of the text, not also the place before a last line end, and whose classes are ASCII."""
    ended = pattern[:-1] + r"\Z" if pattern.endswith("$") else pattern
    if isinstance(text, str) and not re.search(ended, text, re.ASCII):
        yield ValidationError(f"{text!r} does not match {pattern!r}")


_Validator = jsonschema.validators.extend(jsonschema.Draft202012Validator, {"pattern": _pattern})  # type: ignore[no-untyped-call]


def _rank(error: ValidationError) -> tuple[bool, list[str]]:
    # An unknown key explains more than the missing key that it was meant to be.
    return error.validator != "additionalProperties", [str(step) for step in error.absolute_path]
