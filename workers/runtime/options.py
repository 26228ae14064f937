"""Builds a command line from a settings class: one flag a field, so that no flag can be forgotten or drift.

A flag that is not given stays None, so that `workers.runtime.settings.load_settings` can tell; values are
read and checked there, by the same rules as those from the environment and the file.
"""

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import click
from pydantic.fields import FieldInfo

from workers.protocol.address import HIDDEN, may_be_address, without_logins
from workers.protocol.errors import ConfigurationError, StreamReaperError, UnreachableError
from workers.runtime.entrance import INTERRUPTED_EXIT, has_entered
from workers.runtime.logs import CONSOLE, LOG_FORMATS
from workers.runtime.printing import prepare_outputs, show, show_json
from workers.runtime.settings import Settings
from workers.runtime.settings_errors import bare_type, choices_of, plain
from workers.runtime.user_code import plain_error

USAGE_EXIT = 2
"""Exit code for wrong usage or settings: you have to change something."""
UNREACHABLE_EXIT = 3
"""Exit code if Redis cannot be reached, or does not admit the program."""


def exit_code_of(error: StreamReaperError) -> int:
    """Return the exit code of a command that ends with one of our errors."""
    return UNREACHABLE_EXIT if isinstance(error, UnreachableError) else USAGE_EXIT


CommandT = TypeVar("CommandT", bound=Callable[..., Any])
_TYPED, _DONE, _MACHINE = "stream-reaper.typed", "stream-reaper.done", "machine"


class Program(click.Group):
    """A program's group of commands. Ctrl-C ends a command without a message.

    With ``--json`` a usage error is a JSON document, too.
    """

    def main(self, args: Sequence[str] | None = None, *others: Any, **more: Any) -> Any:
        """Run the command line."""
        prepare_outputs()
        try:
            return super().main(args, *others, **more)
        except OSError as error:  # a full disk, or too many open files
            machine = "--json" in (sys.argv if args is None else args)
            show_error(ConfigurationError(f"input or output failed: {error.strerror or error}."), machine=machine)
            sys.exit(USAGE_EXIT)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep the words of the command line."""
        ctx.meta[_TYPED] = tuple(args)
        with _quoting_no_address(args):
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        machine = "--json" in ctx.meta[_TYPED]
        try:
            has_entered()
            with _quoting_no_address(ctx.meta[_TYPED]):
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED_EXIT) from None
        except click.UsageError as error:
            if not (machine and error.ctx and _speaks_json(error.ctx.command)):
                raise
            show_error(ConfigurationError(error.format_message()), machine=True)
            raise click.exceptions.Exit(USAGE_EXIT) from error


@contextmanager
def _quoting_no_address(typed: Sequence[str]) -> Iterator[None]:
    """Hide what may be an address with a password: click quotes words in whose place it expects something else."""
    try:
        yield
    except click.UsageError as error:
        for word in typed:
            if may_be_address(word):
                message = error.message.replace(word, HIDDEN).replace(repr(word), repr(HIDDEN))
                vars(error).update(message=message)  # Final to type checkers
        raise


def _speaks_json(command: click.Command) -> bool:
    """Tell whether ``--json`` is a flag there, and no file's name."""
    return any("--json" in one.opts and one.name == _MACHINE for one in command.params)


def settings_options(kind: type[Settings], *, exclude: Collection[str] = ()) -> Callable[[CommandT], CommandT]:
    """Return a decorator that adds ``--config FILE`` and ``--kebab-name`` for each field of ``kind``.

    The command gets ``config: Path | None`` and every field by its own name: None where the flag was not
    given, text where it was (a bool for ``--x/--no-x``). Hand them to ``load_settings(kind, flags=…, file=config)``.
    A class without ``env_prefix`` is set by flags alone, and gets no ``--config``.
    """

    def decorate(command: CommandT) -> CommandT:
        prefix = str(kind.model_config.get("env_prefix", ""))
        for name, field in reversed(kind.model_fields.items()):
            if name not in exclude:
                command = _option(name, field, prefix)(command)
        return _config_option(prefix)(command) if prefix else command

    return decorate


def _config_option(prefix: str) -> Callable[[CommandT], CommandT]:
    return click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        envvar=f"{prefix}CONFIG",
        help=f"TOML file with settings. Flags and the environment are stronger.  [env: {prefix}CONFIG]",
    )


def _option(name: str, field: FieldInfo, prefix: str) -> Callable[[CommandT], CommandT]:
    flag = f"--{name.replace('_', '-')}"
    kind = bare_type(field.annotation)
    text = f"{field.description or ''}{_origin(name, field, prefix)}".strip()
    if kind is bool and not prefix and not field.default:
        return click.option(flag, name, is_flag=True, help=field.description)
    if kind is bool:
        return click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
    if choices := choices_of(kind):
        return click.option(flag, name, type=click.Choice(choices), default=None, help=text)
    if kind is Path:
        return click.option(flag, name, type=click.Path(path_type=Path), default=None, help=text)
    return click.option(flag, name, type=str, metavar=_metavar(kind), default=None, help=text)


def _metavar(kind: Any) -> str:
    if kind is timedelta:
        return "SECONDS"
    if kind in (int, float):
        return "NUMBER"
    return "TEXT" if kind is str else "TEXT,…"


def _origin(name: str, field: FieldInfo, prefix: str) -> str:
    """Return where a value comes from if the flag is not given, as it ends a help text."""
    default = _readable(field.default) if not field.is_required() else ""
    parts = [f"env: {prefix}{name.upper()}"] if prefix else []
    parts += [f"default: {default}"] if default else []
    return f"  [{'; '.join(parts)}]" if parts else ""


def _readable(default: Any) -> str:
    if default is None or default in ("", ()):
        return ""  # the description says what that means
    return plain(default).lower() if isinstance(default, bool) else plain(default)


def examples(*lines: str) -> str:
    """Return the end of a command's help: how it is used, one line each, as they are."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


LOG_LEVELS = ("debug", "info", "warning", "error")

log_level_option = click.option(
    "--log-level", type=click.Choice(LOG_LEVELS), default="info", show_default=True, help="What is logged."
)


def log_options(command: CommandT) -> CommandT:
    """Add the flags that `reaper run` and `worker run` share; give their values to `log_to_stderr`."""
    with_format = click.option(
        "--log-format",
        type=click.Choice(LOG_FORMATS),
        default=CONSOLE,
        show_default=True,
        help="Log lines for people, or JSON, one object a line.",
    )
    return log_level_option(with_format(command))


class Amount(click.FloatRange):
    """A number in a range. ``nan`` is in none, though no comparison says so, and nothing here takes ``inf``."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read what was typed."""
        number: float = super().convert(value, param, ctx)
        if not isfinite(number):
            self.fail(f"{value!r} is no number.", param, ctx)
        return number


def json_flag(promise: str = "Print JSON.") -> Callable[[CommandT], CommandT]:
    """Add ``--json``, as the parameter ``machine``. Read before the others, for their errors are printed as it says."""
    return click.option("--json", _MACHINE, is_flag=True, is_eager=True, help=promise)


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Print our own errors as they are, without a traceback, and exit with ``USAGE_EXIT`` or ``UNREACHABLE_EXIT``.

    Where the command was asked for JSON, by a flag named ``machine``, they are JSON too (`show_error`).
    """
    try:
        yield
    except StreamReaperError as error:
        _give_up(error)
    except BaseExceptionGroup as group:
        ours = plain_error(group, StreamReaperError)
        if ours is None:
            raise
        _give_up(ours)


def tell_with_error(done: Mapping[str, Any]) -> None:
    """Keep what a command has done before it fails: `show_error` tells a machine of both in one document."""
    click.get_current_context().meta[_DONE] = done


def show_error(error: StreamReaperError, *, machine: bool) -> None:
    """Print one of our errors: its sentences, each on a line.

    For a machine, a document on standard output: ``{"status": "unreachable" | "impossible", "error": …}``, and what
    `tell_with_error` was given.
    """
    if machine:
        status = "unreachable" if isinstance(error, UnreachableError) else "impossible"
        command = click.get_current_context(silent=True)
        done = command.meta.get(_DONE, {}) if command else {}
        show_json({"status": status, "error": without_logins(str(error)), **done})
        return
    first, *others = (without_logins(str(sentence)) for sentence in error.args or [error])
    show(f"error: {first}", *others, err=True)


def _give_up(error: StreamReaperError) -> None:
    command = click.get_current_context(silent=True)
    show_error(error, machine=command is not None and command.params.get(_MACHINE) is True)
    raise SystemExit(exit_code_of(error)) from error
