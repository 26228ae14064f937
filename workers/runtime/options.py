"""Builds command lines, with options from settings classes, shared types of options, and the form of errors.

Each field of a settings class is one flag. A flag that is not given is None. `workers.runtime.settings.load_settings`
reads and checks the values, by the same rules as those from the environment and the file.
"""

import io
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from workers.protocol.address import HIDDEN, may_be_address, without_logins
from workers.protocol.errors import ConfigurationError, NotPossibleError, StreamReaperError, UnreachableError
from workers.protocol.keys import GroupKeys, group_keys, split_group
from workers.runtime.logs import CONSOLE, LOG_FORMATS
from workers.runtime.printing import show, show_json
from workers.runtime.quantities import A_DURATION, seconds_in, written
from workers.runtime.settings import LONGEST, Settings
from workers.runtime.user_code import plain_error

INTERRUPTED_EXIT = 130
"""Exit code after Ctrl-C, as in shells."""
NEGATIVE_EXIT = 1
"""Exit code of a negative result, for example not healthy or not found."""
USAGE_EXIT = 2
"""Exit code of wrong usage or settings."""
UNREACHABLE_EXIT = 3
"""Exit code if Redis is unreachable or rejects the program."""
_FAILURES: tuple[tuple[type[StreamReaperError], int, str], ...] = (
    (UnreachableError, UNREACHABLE_EXIT, "unreachable"),
    (NotPossibleError, NEGATIVE_EXIT, "not_possible"),
    (StreamReaperError, USAGE_EXIT, "invalid"),
)
"""Errors with their exit codes, and their names in JSON."""
TEXT, JSON = "text", "json"

CommandT = TypeVar("CommandT", bound=Callable[..., Any])
_MACHINE = "machine"


class Program(click.Group):
    """A program's group of commands, which prints errors as ``error: …``."""

    def main(self, args: Sequence[str] | None = None, *others: Any, **more: Any) -> NoReturn:
        """Run the command line, and exit."""
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")
        code: object = USAGE_EXIT
        try:
            code = super().main(args, *others, **{**more, "standalone_mode": False})
        except click.Abort:
            code = INTERRUPTED_EXIT
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
        except click.ClickException as error:
            _show_wrong_usage(error, sys.argv[1:] if args is None else args)
        except OSError as error:  # for example a full disk, or too many open files
            sys.stdout = io.StringIO()  # at the end, Python would try again to write what is left, and complain
            what = f" {error.filename}" if error.filename else ""
            show(f"error: cannot read or write{what}: {error.strerror or error}.", err=True)
        sys.exit(code if isinstance(code, int) else 0)


def _show_wrong_usage(error: click.ClickException, typed: Sequence[str]) -> None:
    """Print click's error without the passwords in words that it quotes."""
    message = error.format_message()
    for word in typed:
        if may_be_address(word):
            message = message.replace(word, HIDDEN).replace(repr(word), repr(HIDDEN))
    command = getattr(error, "ctx", None)
    usage = [f"Run `{command.command_path} --help` for the usage."] if command else []
    show(f"error: {message[:1].lower()}{message[1:]}", *usage, err=True)


def settings_options(
    kind: type[Settings], *, exclude: Collection[str] = (), helps: Mapping[str, str] | None = None
) -> Callable[[CommandT], CommandT]:
    """Return a decorator that adds ``--config FILE`` and ``--kebab-name`` for each field of ``kind``.

    The command gets ``config: Path | None`` and every field by its own name: None if the flag was not given, else its
    text (a bool for ``--x/--no-x``). Pass them to ``load_settings(kind, flags=…, file=config)``. A class without
    ``env_prefix`` is set by flags alone, and gets no ``--config``. ``helps`` replaces descriptions.
    """

    def decorate(command: CommandT) -> CommandT:
        prefix = str(kind.model_config.get("env_prefix", ""))
        for name, field in reversed(kind.model_fields.items()):
            if name not in exclude:
                command = _option(name, field, prefix, (helps or {}).get(name))(command)
        if not prefix:
            return command
        summary = f"TOML file with settings. Flags and the environment are stronger.  [env: {prefix}CONFIG]"
        path = click.Path(dir_okay=False, path_type=Path)
        return click.option("--config", type=path, metavar="FILE", envvar=f"{prefix}CONFIG", help=summary)(command)

    return decorate


def _option(name: str, field: FieldInfo, prefix: str, summary: str | None) -> Callable[[CommandT], CommandT]:
    flag = f"--{name.replace('_', '-')}"
    kind = bare_type(field.annotation)
    text = f"{summary or field.description or ''}{_origin(name, field, prefix)}".strip()
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
    if choices := _choices_of(kind):
        return click.option(flag, name, type=click.Choice(choices), default=None, help=text)
    if kind is Path:
        return click.option(flag, name, type=click.Path(path_type=Path), default=None, help=text)
    return click.option(flag, name, type=str, metavar=_METAVARS.get(kind, "TEXT,…"), default=None, help=text)


def bare_type(annotation: Any) -> Any:
    """Strip ``Annotated`` and ``| None`` from a type."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return bare_type(get_args(annotation)[0])
    if origin in (Union, UnionType):
        rest = [part for part in get_args(annotation) if part is not NoneType]
        return bare_type(rest[0]) if len(rest) == 1 else annotation
    return annotation


def _choices_of(kind: Any) -> list[str]:
    """Return the words that a value can be. Empty for other types."""
    if get_origin(kind) is Literal:
        return [str(word) for word in get_args(kind)]
    return [str(member.value) for member in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []


_METAVARS = {timedelta: "DURATION", int: "NUMBER", float: "NUMBER", str: "TEXT"}


def _origin(name: str, field: FieldInfo, prefix: str) -> str:
    """Return the end of a help text: the variable and the default, unless the description explains it."""
    default = None if field.is_required() else field.default
    parts = [f"env: {prefix}{name.upper()}"] if prefix else []
    if isinstance(default, timedelta):
        parts.append(f"default: {written(default)}")
    elif default not in (None, "", ()):
        parts.append(f"default: {str(default).lower() if isinstance(default, bool) else default}")
    return f"  [{'; '.join(parts)}]" if parts else ""


def examples(*lines: str) -> str:
    """Return the last section of a command's help, with one command on each line."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def help_end(*lines: str, ok: str = "done", no: str = "", redis: bool = True) -> str:
    """Return the help behind the options. ``ok`` and ``no`` explain 0 and 1. With ``redis``, 3 is possible."""
    status = [f"  0  {ok}", *([f"  {NEGATIVE_EXIT}  {no}"] if no else []), f"  {USAGE_EXIT}  wrong usage or settings"]
    status += [f"  {UNREACHABLE_EXIT}  Redis is unreachable"] if redis else []
    return "\n".join(["\b", "Exit status:", *status, "", examples(*lines)])


def log_options(command: CommandT) -> CommandT:
    """Add the flags of services that log. Pass their values to `log_to_stderr`."""
    levels, formats = click.Choice(("debug", "info", "warning", "error")), click.Choice(LOG_FORMATS)
    level = click.option("--log-level", type=levels, default="info", show_default=True, help="Lowest level to log.")
    summary = "Log lines as text, or as one JSON object for each line."
    return level(click.option("--log-format", type=formats, default=CONSOLE, show_default=True, help=summary)(command))


class DurationType(click.ParamType[float]):
    """An option that holds a duration from ``least`` to ``most`` seconds. The command gets seconds."""

    name = "duration"

    def __init__(self, least: float = 0, most: float = LONGEST.total_seconds()) -> None:
        self._least, self._most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the typed text. click also passes the number that was read."""
        number = value if isinstance(value, (int, float)) else seconds_in(value)
        if number is None:
            self.fail(f"{value!r} is not {A_DURATION}.", param, ctx)
        if not self._least <= number <= self._most:
            limits = " to ".join(written(timedelta(seconds=limit)) for limit in (self._least, self._most))
            self.fail(f"{value!r} is not in the range from {limits}.", param, ctx)
        return float(number)


class GroupType(click.ParamType[GroupKeys]):
    """A consumer group, written ``STREAM/GROUP``. The command gets its keys."""

    name = "STREAM/GROUP"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> GroupKeys:
        """Read the typed text."""
        names = split_group(value)
        if not names:
            self.fail(f"{value!r} is not a group. Write STREAM/GROUP, for example orders/billing.", param, ctx)
        try:
            return group_keys(*names)
        except ConfigurationError as error:
            self.fail(str(error), param, ctx)


def output_option(**more: Any) -> Callable[[CommandT], CommandT]:
    """Add ``--output FILE``. A file that cannot exist is rejected before the long work of the command."""
    path = click.Path(dir_okay=False, writable=True, path_type=Path)
    return click.option("--output", metavar="FILE", type=path, callback=_in_a_folder, **more)


def _in_a_folder(context: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    if path is not None and not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {str(path.parent)!r}.", context, option)
    return path


group_option = click.option("--group", "keys", metavar="STREAM/GROUP", type=GroupType(), help="Only this group.")


def format_option(summary: str = "Print text, or JSON on one line.") -> Callable[[CommandT], CommandT]:
    """Add ``-o json``. The command gets ``machine``. The option is read first, because it also formats errors."""
    return click.option(
        "-o", "--format", _MACHINE, type=click.Choice((TEXT, JSON)), default=TEXT, show_default=True, is_eager=True,
        callback=lambda _context, _option, chosen: chosen == JSON, help=summary,
    )  # fmt: skip


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Print each sentence of a StreamReaperError on a line, or for a machine one document, and exit."""
    try:
        yield
    except (StreamReaperError, BaseExceptionGroup) as error:
        ours = error if isinstance(error, StreamReaperError) else plain_error(error, StreamReaperError)
        if ours is None:
            raise
        code, status = next((code, status) for kind, code, status in _FAILURES if isinstance(ours, kind))
        command = click.get_current_context(silent=True)
        if command is not None and command.params.get(_MACHINE) is True:
            show_json({"status": status, "error": without_logins(str(ours))})
        else:
            first, *others = (without_logins(str(sentence)) for sentence in ours.args or [ours])
            show(f"error: {first}", *others, err=True)
        raise SystemExit(code) from ours
