"""Writes ``docs/configuration.md`` from the settings' own descriptions: `python docs/configuration.py [--check]`."""

from collections.abc import Collection, Iterator
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import click
from annotated_types import Ge, Gt, Le, MaxLen
from pydantic.fields import FieldInfo

from reaper.settings import ReaperSettings
from workers.runtime.options import bare_type
from workers.runtime.quantities import written
from workers.runtime.settings import ProgramSettings, Settings

FILE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
OUTDATED_EXIT = 1

_HEAD = """\
# Configuration

<!-- Written by `docs/configuration.py` from the descriptions in the settings classes. Do not edit by hand. -->

For operators. All programs share one prefix and can share one file.

## Where settings come from

A setting comes from the first of these places that has it:

1. a flag, for example `--lease-ttl 20`
2. an environment variable, for example `REAPER_LEASE_TTL=20`
3. a TOML file, for example `lease_ttl = 20`. Name the file with `--config FILE` or in `REAPER_CONFIG`.
4. the arguments of a program, for example `Worker(..., concurrency=8)`
5. for `redis_url` only: the variable `REDIS_URL`
6. the default

A setting that is on or off has two flags, for example `--observe` and `--no-observe`.
Each program ignores the settings of the other ones, and rejects unknown settings.

A variable that ends in `_FILE` names a file with the value, for example `REAPER_REDIS_URL_FILE`
([secrets](redis.md#secrets)). The variable with the value itself is stronger.

A duration is a number with a unit (`ms`, `s`, `m`, `h`, `d`): `30s`, `24h`. A number alone is seconds.

## The address of Redis

| address | of |
|---|---|
| `redis://[[user]:password@]host:port/db`, `unix:///path` | one Redis or Valkey that accepts writes |
| `redis+sentinel://[[user]:password@]h1:26379,h2,h3/mymaster/0` | the master `mymaster` ([Sentinel](\
redis.md#sentinel)); user and password are those of Redis |
| `redis+cluster://h1,h2` | any nodes of a cluster; they name the others ([cluster](redis.md#cluster)) |

For TLS write `rediss://…`, `rediss+sentinel://…` or `rediss+cluster://…`.

The address takes the options `client_name`, `socket_keepalive`, `sentinel_username` and `sentinel_password`, for
example `redis://…?socket_keepalive=true`. `Producer` and the Spark data source have no settings for TLS, so they also
take `ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`, `ssl_password` and other `ssl_` options of redis-py.

All programs have these settings:
"""

_REAPER = """\
## `reaper run`

```toml
# reaper.toml
redis_url = "redis://redis.internal:6379/0"
visibility_timeout = "60s"

[[groups]]
stream = "orders"
group = "billing"

[[groups]]
stream = "mail"
group = "sender"
visibility_timeout = "5m"
redelivery = "retry-stream"
```

A table `[[groups]]` needs `stream` and `group`. Its `visibility_timeout`, `max_deliveries` and `redelivery` override
those of the file. `stream = "orders:*"` is a pattern, and `exclude = ["orders:test:*"]` lists exceptions
([patterns](scaling.md#patterns)).

To change a setting, edit the file and restart the replicas one by one. A replica that stops hands its groups over
within 100 ms.

`--log-level debug|info|warning|error` and `--log-format console|json` are flags only.

The commands for operators take `redis_url`, `namespace`, `groups` and `journal` from the same places.
`reaper status` also takes `observe`, and `reaper doctor` takes `redelivery`.
"""

_WORKER = """\
## `worker run`

```toml
# worker.toml
redis_url = "redis://redis.internal:6379/0"
stream = "orders"
group = "billing"
concurrency = 32
```

Unset values are taken from the group settings, which the holder of the lease stores in Redis.
"""

_PIPELINE = """\
## `reaper pipeline`

```toml
# pipeline.toml
lake = "/data/lake"
redis_url = "redis://redis.internal:6379/0"
trigger = 30
```

Each command takes the settings that it needs (`reaper pipeline COMMAND --help`). See [the pipeline](pipeline.md).
"""


def document() -> str:
    """Return the whole page."""
    from reaper.pipeline.settings import PipelineSettings
    from workers.settings import WorkerSettings  # the docs describe both sides; the service knows only its own

    shared = ProgramSettings.model_fields
    parts = [_HEAD, table(ProgramSettings, shared)]
    sides: list[tuple[str, str, type[ProgramSettings], str]] = [  # the last column begins the settings for tuning
        ("reaper run", _REAPER, ReaperSettings, "namespace"),
        ("worker run", _WORKER, WorkerSettings, "backoff_cap"),
        ("reaper pipeline", _PIPELINE, PipelineSettings, "redis_url_env"),
    ]
    for program, text, kind, tuning in sides:
        own = [name for name in kind.model_fields if name not in shared]
        first = own.index(tuning)
        parts += [text, f"### Common settings of `{program}`\n", table(kind, own[:first])]
        parts += [f"### Tuning of `{program}`\n", table(kind, own[first:])]
    return "\n".join(parts)


def table(kind: type[Settings], names: Collection[str]) -> str:
    """Return a Markdown table of the settings ``names``, in the order of the class."""
    return "\n".join(_rows(kind, names)) + "\n"


def _rows(kind: type[Settings], names: Collection[str]) -> Iterator[str]:
    columns = ["setting", "type", "default", "meaning"]
    yield _row(columns)
    yield _row(["---"] * len(columns))
    for name in names:
        field = kind.model_fields[name]
        twin = None if kind in (ProgramSettings, ReaperSettings) else ReaperSettings.model_fields.get(name)
        meaning = "As in `reaper run`." if twin and twin.description == field.description else field.description or ""
        yield _row([f"`{name}`", _type(field), _default(field), meaning])


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _type(field: FieldInfo) -> str:
    kind = bare_type(field.annotation)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(f"`{member.value}`" for member in kind)
    names = {timedelta: "duration", int: "integer", float: "number", bool: "boolean", str: "text"}
    return names.get(kind, "tables") + _bounds(field)


def _bounds(field: FieldInfo) -> str:
    """Return the end of a phrase about limits, for example `` greater than 0`` or `` from 1 to 1000``."""
    longest = next((rule.max_length for rule in field.metadata if isinstance(rule, MaxLen)), None)
    if longest is not None:
        return f" of at most {longest} characters"
    low = next((f" greater than {_limit(rule.gt)}" for rule in field.metadata if isinstance(rule, Gt)), "")
    low = next((f" from {_limit(rule.ge)}" for rule in field.metadata if isinstance(rule, Ge)), low)
    low = f" from {field.json_schema_extra['shortest']}" if isinstance(field.json_schema_extra, dict) else low
    high = next((f" to {_limit(rule.le)}" for rule in field.metadata if isinstance(rule, Le)), "")
    return f"{low} up" if low.startswith(" from") and not high else low + high


def _limit(value: Any) -> str:
    return written(value) if isinstance(value, timedelta) else str(value)


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    return _plain(field.default)


def _plain(default: Any) -> str:
    if default is None or default in ("", ()):
        return ""
    if isinstance(default, timedelta):
        return f"`{written(default)}`"
    if isinstance(default, Enum):
        return f"`{default.value}`"
    return f"`{str(default).lower()}`" if isinstance(default, bool) else f"`{default}`"


@click.command()
@click.option("--check", is_flag=True, help="Write nothing; exit 1 where the page is out of date.")
@click.pass_context
def main(context: click.Context, /, check: bool) -> None:
    """Write the page of all settings, or check that it is up to date."""
    written = FILE.read_text(encoding="utf-8") if FILE.exists() else ""
    if written == document():
        return
    if check:
        click.echo(f"error: {FILE} is out of date: run `python docs/configuration.py`.", err=True)
        context.exit(OUTDATED_EXIT)
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(document(), encoding="utf-8")


if __name__ == "__main__":
    main()
