"""Explains an invalid setting in a sentence, with the setting, its place and the cause."""

import difflib
from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name, with a suggestion or all names."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    return f". Did you mean {near[0]!r}?" if near else f". Choose one of {', '.join(names)}."


def explain(kind: type[BaseModel], error: ValidationError, sources: Mapping[str, str]) -> list[str]:
    """Return one sentence for each problem. ``sources`` has the origin of each top-level setting."""
    return [_sentence(kind, problem, sources) for problem in error.errors(include_url=False, include_input=False)]


def _sentence(kind: type[BaseModel], problem: ErrorDetails, sources: Mapping[str, str]) -> str:
    """Explain in pydantic's words why a value is invalid. The value is not quoted, because it can be a password."""
    path = [str(part) for part in problem["loc"]]
    message = str(problem["msg"]).removeprefix("Value error, ")
    if not path:  # the message names the settings
        return message
    name = ".".join(path)
    where = f" ({sources[path[0]]})" if path[0] in sources else ""
    if problem["type"] == "extra_forbidden":
        return f"unknown setting {name!r}{where}{did_you_mean(name, kind.model_fields) if len(path) == 1 else '.'}"
    if problem["type"] == "missing":
        flag, variable = f"--{name.replace('_', '-')}", f"{kind.model_config.get('env_prefix')}{name.upper()}"
        advice = "" if len(path) > 1 else f" Set it by {flag}, by {variable} or in the settings file."
        return f"setting {name!r}{where} is missing.{advice}"
    return f"setting {name!r}{where} is invalid. {message}."
