"""The arguments of settings as type checkers see them are the fields that pydantic reads."""

from datetime import timedelta
from enum import Enum
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest

from workers.runtime.options import bare_type
from workers.runtime.settings import Settings
from workers.settings import WorkerArguments, WorkerSettings

KINDS: list[tuple[type[Settings], Any]] = [
    (WorkerSettings, WorkerArguments),
]
FIELDS = [
    pytest.param(kind, name, get_type_hints(arguments).get(name), id=f"{kind.__name__}.{name}")
    for kind, arguments in KINDS
    for name in kind.model_fields
]


def expected_of(annotation: Any) -> set[Any]:
    """Return what programs may give for a field that holds this."""
    optional: set[Any] = {NoneType} if NoneType in get_args(annotation) else set()
    kind = bare_type(annotation)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {kind, *(str(member.value) for member in kind), *optional}
    return ({float, timedelta} if kind is timedelta else {kind}) | optional


def given_by(hint: Any) -> set[Any]:
    """Return the types and literal values that an argument may be."""
    if get_origin(hint) is Literal:
        return set(get_args(hint))
    return set().union(*map(given_by, get_args(hint))) if get_args(hint) else {hint}


@pytest.mark.parametrize(("kind", "arguments"), KINDS, ids=lambda one: one.__name__)
def test_each_field_is_an_argument_in_the_same_order_and_nothing_else_is(kind: type[Settings], arguments: Any) -> None:
    names = {"stream", "group"}
    assert set(get_type_hints(arguments)) == set(kind.model_fields)
    assert [name for name in arguments.__annotations__ if name not in names] == [
        name for name in kind.model_fields if name not in names
    ]


@pytest.mark.parametrize(("kind", "name", "hint"), FIELDS)
def test_an_argument_may_be_what_its_field_holds_and_what_pydantic_makes_that_of(
    kind: type[Settings], name: str, hint: Any
) -> None:
    assert given_by(hint) == expected_of(kind.model_fields[name].annotation)


def test_what_may_come_from_the_environment_is_not_required() -> None:
    assert WorkerArguments.__required_keys__ == frozenset()
