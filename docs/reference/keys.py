"""Lists of the keys of the run file, settings.yaml and scenarios, from the validating models.

A key's description is the docstring below its field or, without one, its section's docstring.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from annotated_types import Ge, GroupedMetadata, Gt, Le, Lt, MaxLen, MinLen, MultipleOf
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from coordinator.run.settings import Settings
from peer.config.architectures import ARCHITECTURES
from peer.config.base import WrittenAs
from peer.config.run import RunConfig
from peer.rehearsal.scenario import Scenario

NAMES: Mapping[Any, str] = {bool: "`true` or `false`", int: "whole number", float: "number", str: "text", Path: "path"}
SCALARS = {bool, int, float, str}
FREE = "NAME"  # placeholder for a name that the operator chooses


@dataclass(frozen=True)
class Key:
    """A key, named by its full path with dots, and its description."""

    name: str
    values: str  # description of the allowed values
    default: str
    meaning: str


def key_lists() -> dict[str, str]:
    """Return all lists of keys as Markdown, by names such as `run.yaml model` and `scenario`."""
    lists = {}
    for section, field in RunConfig.model_fields.items():
        model = next(sections_in(field.annotation))
        lists[f"run.yaml {section}"] = f"{_sentence(model)}\n\n{_key_list(RunConfig, [section])}"
    plain = []
    for section, field in Settings.model_fields.items():
        if any(sections_in(field.annotation)):
            lists[f"settings.yaml {section}"] = _key_list(Settings, [section])
        else:
            plain.append(section)
    return {
        **lists,
        "settings.yaml": _key_list(Settings, plain),
        "scenario": _key_list(Scenario, Scenario.model_fields),
        "model.options": "\n\n".join(_options()),
    }


def keys_of(model: type[BaseModel], names: Iterable[str], prefix: str, seen: dict[Any, str]) -> Iterator[Key]:
    """Yield these keys of a model and those of their sections; `seen`: section -> first key."""
    meanings = _meanings(model)
    for name in names:
        field = model.model_fields[name]
        path = prefix + name
        sections = list(sections_in(field.annotation))
        again = seen.get(sections[0]) if sections else None
        values = f"the keys of `{again}`" if again else words(field.annotation, field.metadata)
        meaning = meanings.get(name) or " ".join(map(_sentence, sections))
        if not (sections and _is_plain(field)) or again:
            yield Key(path, values, default_of(field), meaning)
        for section in () if again else sections:
            seen[section] = path
            below = f"{path}.{FREE}." if _is_mapping(field.annotation) else f"{path}."
            yield from keys_of(section, section.model_fields, below, seen)


def sections_in(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the Pydantic models that occur in a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for argument in get_args(annotation):
        yield from sections_in(argument)


def words(annotation: Any, metadata: Iterable[Any] = ()) -> str:
    """Describe in words the values that a type allows, except None."""
    bounds = list(_flat(metadata))
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return words(arguments[0], [*arguments[1:], *bounds])
    if origin in (Union, UnionType):
        kinds = [argument for argument in arguments if argument is not NoneType]
        scalars = ["value"] if set(kinds) >= SCALARS else []
        rest = [words(kind, bounds) for kind in kinds if not (scalars and kind in SCALARS)]
        return " or ".join(dict.fromkeys([*scalars, *rest]))
    if origin is Literal:
        return alternatives(arguments)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "section"
    if origin in (list, tuple):
        if origin is tuple and arguments[-1] is not ...:
            bounds += [MinLen(len(arguments)), MaxLen(len(arguments))]
        return _collection(f"list{_sized(bounds, 'item')}", arguments[0])
    if _is_mapping(annotation):
        return _collection(f"mapping{_sized(bounds, 'key')}", arguments[1])
    return _scalar(annotation, bounds)


def definition(names: Iterable[str], values: str, default: str, meaning: str) -> str:
    """Return an item of a definition list: names, values, default and, below, the meaning."""
    facts = [values, default if default in ("", "required") else f"default: {default}"]
    told = "; ".join(filter(None, facts))
    return f"{', '.join(f'**`{name}`**' for name in names)}{f' ({told})' if told else ''}\n:   {meaning}"


def alternatives(values: Iterable[Any]) -> str:
    """Format the values as inline code, with `or` before the last."""
    *others, last = (f"`{value}`" for value in values)
    return f"{', '.join(others)} or {last}" if others else last


def default_of(field: FieldInfo) -> str:
    """Describe a field's default, in YAML syntax."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True, validated_data={})
    return "" if isinstance(value, BaseModel) else as_default(value)


def as_default(value: Any) -> str:
    """Format a default as inline code, in YAML syntax."""
    if value is None or (isinstance(value, (tuple, list, dict)) and not value):
        return "none"
    if value == "":
        return "empty"
    written = yaml.safe_dump(_plain(value), default_flow_style=True, sort_keys=False, allow_unicode=True)
    return f"`{written.removesuffix('...' + chr(10)).strip()}`"


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_unset=True)
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def _meanings(model: type[BaseModel]) -> dict[str, str]:
    (definition,) = ast.parse(inspect.getsource(model)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairwise(definition.body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }


def _sentence(model: type[BaseModel]) -> str:
    return " ".join((model.__doc__ or "").split("\n\n")[0].split())


def _is_plain(field: FieldInfo) -> bool:
    """Return whether a section is always present, so that a separate entry is unnecessary."""
    return isinstance(field.annotation, type)


def _is_mapping(annotation: Any) -> bool:
    return isinstance(get_origin(annotation), type) and issubclass(get_origin(annotation), Mapping)


def _flat(metadata: Iterable[Any]) -> Iterator[Any]:
    for rule in metadata:
        if isinstance(rule, FieldInfo):
            yield from rule.metadata
        elif isinstance(rule, GroupedMetadata):
            yield from rule
        else:
            yield rule


def _collection(kind: str, item: Any) -> str:
    return f"{kind}, each a section" if list(sections_in(item)) else f"{kind}, each: {words(item)}"


def _scalar(annotation: Any, bounds: list[Any]) -> str:
    written = [rule.words for rule in bounds if isinstance(rule, WrittenAs)]
    if written:
        return str(written[0])
    if annotation is str:
        return NAMES[str] + _sized(bounds, "character")
    return NAMES[annotation] + _range(bounds, whole=annotation is int)


def _sized(bounds: list[Any], unit: str) -> str:
    """Describe the allowed number of units, such as list items or characters."""
    least = next((rule.min_length for rule in bounds if isinstance(rule, MinLen)), 0)
    most = next((rule.max_length for rule in bounds if isinstance(rule, MaxLen)), None)
    between = _between(least or None, most)
    return f" of {between} {unit}{'' if between.split()[-1] == '1' else 's'}" if between else ""


def _range(bounds: list[Any], *, whole: bool) -> str:
    """Describe the range of the allowed numbers."""
    least = most = above = below = steps = None
    for rule in bounds:
        match rule:
            case Ge():
                least = rule.ge
            case Le():
                most = rule.le
            case Gt(gt=int() as end) if whole:
                least = end + 1
            case Lt(lt=int() as end) if whole:
                most = end - 1
            case Gt():
                above = f"above {rule.gt}"
            case Lt():
                below = f"below {rule.lt}"
            case MultipleOf():
                steps = f"a multiple of {rule.multiple_of}"
    return "".join(f", {part}" for part in (above, _between(least, most), below, steps) if part)


def _between(least: Any, most: Any) -> str:
    """Describe a range by its ends, either of which may be None."""
    if least is None:
        return "" if most is None else f"at most {most:.10g}"
    if most is None:
        return f"at least {least:.10g}"
    return f"{least:.10g}" if least == most else f"{least:.10g} to {most:.10g}"


def _key_list(model: type[BaseModel], names: Iterable[str]) -> str:
    keys = keys_of(model, names, prefix="", seen={})
    return "\n\n".join(definition([key.name], key.values, key.default, key.meaning) for key in keys)


def _options() -> Iterator[str]:
    """Yield each valid key of `model.options`, with its values and the families that support it."""
    for option in dict.fromkeys(option for family in ARCHITECTURES.values() for option in family.options):
        kinds = {name: family.options[option] for name, family in ARCHITECTURES.items() if option in family.options}
        (values,) = set(map(words, kinds.values()))
        yield definition([option], values, "", f"For {', '.join(f'`{name}`' for name in kinds)}.")
