"""Every log call has one fixed message and `fields`, so that JSON lines and alerts have keys, and no text is forged."""

import ast
from collections.abc import Iterator
from pathlib import Path

import reaper
import workers

LEVELS = {"debug": 0, "info": 0, "warning": 0, "error": 0, "exception": 0, "critical": 0, "log": 1}
"""Log methods, and the position of the message."""
LOGGERS = {"logger", "LOG"}
RESERVED = {"at", "level", "logger", "message", "thread", "error", "trace_id", "span_id"}
"""Keys that every JSON line has (`workers.runtime.logs.JsonFormatter`)."""


def trees() -> Iterator[tuple[str, ast.Module]]:
    for package in (reaper, workers):
        root = Path(str(package.__file__)).parent
        for path in sorted(root.rglob("*.py")):
            yield f"{root.name}/{path.relative_to(root)}", ast.parse(path.read_text(encoding="utf-8"))


def log_calls(tree: ast.Module) -> Iterator[tuple[ast.Call, list[ast.expr]]]:
    """Return log calls, each with its message and arguments."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        match node.func:
            case ast.Attribute(value=ast.Name(id=name), attr=attr) if name in LOGGERS and attr in LEVELS:
                yield node, node.args[LEVELS[attr] :]


def names_of_fields(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "fields":
            yield from (keyword.arg for keyword in node.keywords if keyword.arg)


def objection(args: list[ast.expr]) -> str:
    """Return what is wrong with a message and its arguments, or ''."""
    message, *arguments = args
    messages = [message.body, message.orelse] if isinstance(message, ast.IfExp) else [message]
    for one in messages:
        if not (isinstance(one, ast.Constant) and isinstance(one.value, str)):
            return "the message is not a fixed text"
        if one.value.count("%") != len(arguments) or (arguments and not one.value.endswith(": %s")):
            return "the message must end with ': %s' for its fields, and have no other argument"
    match arguments:
        case [] | [ast.Call(func=ast.Name(id="fields"))] | [ast.Name(id="facts")]:
            return ""
    return "the argument is not fields(…), nor a name 'facts' for it"


def test_every_log_call_has_a_fixed_message_and_fields() -> None:
    found = [(f"{path}:{call.lineno}", objection(args)) for path, tree in trees() for call, args in log_calls(tree)]
    assert len(found) > 80
    assert [one for one in found if one[1]] == []


def test_no_field_has_the_name_of_a_key_that_every_line_has() -> None:
    assert [(path, name) for path, tree in trees() for name in names_of_fields(tree) if name in RESERVED] == []


def test_every_logger_is_found() -> None:
    made = [
        (path, target.id)
        for path, tree in trees()
        for node in tree.body
        if isinstance(node, ast.Assign) and "getLogger" in ast.unparse(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]
    assert len(made) > 20
    assert [one for one in made if one[1] not in LOGGERS] == []
