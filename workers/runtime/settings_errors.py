"""Explains an invalid setting in a sentence, with the setting, the cause and the fix."""

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MaxLen
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from workers.protocol.address import may_be_address
from workers.runtime.quantities import written


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name, with a suggestion or all names."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f". Did you mean {near[0]!r}?" if near else f". Known are {', '.join(names)}."


def explain(kind: type[BaseModel], error: ValidationError, sources: Mapping[str, str]) -> list[str]:
    """Return one sentence for each problem. ``sources`` has the origin of each top-level setting."""
    return [_sentence(kind, problem, sources) for problem in error.errors(include_url=False)]


def _sentence(kind: type[BaseModel], problem: ErrorDetails, sources: Mapping[str, str]) -> str:
    path = [str(part) for part in problem["loc"]]
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not path:  # the message names the settings
        return message
    name = ".".join(path)
    where = f" ({sources[path[0]]})" if path[0] in sources else ""
    owner, field = _find(kind, problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"unknown setting {name!r}{where}{did_you_mean(path[-1], owner.model_fields)}"
    if problem["type"] == "missing":
        table = "to this table" if len(path) > 1 else "to the file, the environment or the flags"
        return f"setting {name!r}{where} is missing. Add {path[-1]} {table}."
    advice = message if problem["type"] == "value_error" or field is None else f"Write {_expected(path, field)}"
    suggestion = _suggestion(problem.get("input"), field)
    given = shown(problem.get("input"))
    if field is None or not field.repr or may_be_address(given):
        given = "used as it is"
    return (
        f"setting {name!r}{where} cannot be {given}{'. ' if advice[:1].isupper() else ': '}{advice}{suggestion or '.'}"
    )


def _find(kind: type[BaseModel], loc: Sequence[int | str]) -> tuple[type[BaseModel], FieldInfo | None]:
    """Return the class that the last name of ``loc`` belongs to, and its field there, if it has one."""
    owner, field = kind, None
    for part in loc:
        if isinstance(part, int):
            continue
        if field is not None:
            owner = next(_models(field.annotation), owner)
        field = owner.model_fields.get(part)
    return owner, field


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models(part)


def bare_type(annotation: Any) -> Any:
    """Strip ``Annotated`` and ``| None`` from a type."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return bare_type(get_args(annotation)[0])
    if origin in (Union, UnionType):
        rest = [part for part in get_args(annotation) if part is not NoneType]
        return bare_type(rest[0]) if len(rest) == 1 else annotation
    return annotation


def choices_of(kind: Any) -> list[str]:
    """Return the words that a value can be. Empty for other types."""
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    return [str(member.value) for member in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []


def _expected(path: Sequence[str], field: FieldInfo) -> str:
    """Return the values that a field accepts, with an example."""
    kind = bare_type(field.annotation)
    if choices := choices_of(kind):
        return " or ".join(map(repr, choices))
    if kind is bool:
        return "true or false"
    model = next(_models(kind), None)
    if model is not None:
        required = [key for key, inner in model.model_fields.items() if inner.is_required()]
        name = next(part for part in reversed(path) if not part.isdigit())
        return f"[[{name}]] tables, each with {' and '.join(required)}"
    what = {timedelta: "a duration", int: "a whole number", float: "a number"}.get(kind, "text")
    return f"{what}{bounds(field)}{_example(field)}"


def bounds(field: FieldInfo) -> str:
    """Return the end of a phrase about limits, for example `` greater than 0`` or `` from 1 to 1000``."""
    longest = next((rule.max_length for rule in field.metadata if isinstance(rule, MaxLen)), None)
    if longest is not None:
        return f" of at most {longest} characters"
    low = next((f" greater than {plain(rule.gt)}" for rule in field.metadata if isinstance(rule, Gt)), "")
    low = next((f" from {plain(rule.ge)}" for rule in field.metadata if isinstance(rule, Ge)), low)
    high = next((f" below {plain(rule.lt)}" for rule in field.metadata if isinstance(rule, Lt)), "")
    high = next((f" to {plain(rule.le)}" for rule in field.metadata if isinstance(rule, Le)), high)
    return f"{low} up" if low.startswith(" from") and not high else low + high


def _example(field: FieldInfo) -> str:
    default = field.get_default()
    return "" if field.is_required() or default in (None, "", ()) else f", such as {plain(default)}"


def plain(value: Any) -> str:
    """Return a value in the form of a settings file."""
    return written(value) if isinstance(value, timedelta) else str(value)


def shown(value: Any) -> str:
    """Return a value for a message, cut to a readable length."""
    if isinstance(value, timedelta):
        return plain(value)
    try:
        return f"{value!r:.200}"
    except ValueError:  # a number of thousands of digits
        return f"a {type(value).__name__} that is too large to be shown"


def _suggestion(value: Any, field: FieldInfo | None) -> str:
    """Suggest the word that was probably meant."""
    choices = choices_of(bare_type(field.annotation)) if field else []
    if not isinstance(value, str):
        return ""
    near = difflib.get_close_matches(value.lower(), choices, n=1)
    return f". Did you mean {near[0]!r}?" if near else ""
