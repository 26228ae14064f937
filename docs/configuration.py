"""Writes ``docs/configuration.md`` from the settings' own descriptions: `python docs/configuration.py [--check]`."""

from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import click
from pydantic.fields import FieldInfo

from reaper.settings import GroupSettings, ReaperSettings
from workers.runtime.quantities import written
from workers.runtime.settings import Settings
from workers.runtime.settings_errors import bare_type, bounds

FILE = Path(__file__).resolve().parents[1] / "docs" / "configuration.md"
OUTDATED_EXIT = 1

_HEAD = """\
# Configuration

<!-- Written by `docs/configuration.py` from the descriptions in the settings classes. Do not edit by hand. -->

Settings come from flags, from environment variables and from a TOML file, in that order of strength.
Name the file with `--config FILE` or in `REAPER_CONFIG`.
In the file a setting has the name of the first column.

`reaper` and `worker` share the prefix `REAPER_` and can share a file.
A setting that both programs have means the same for both. Each program ignores the settings of the other one.
`REDIS_URL` is the address if nothing else sets `redis_url`: no flag, no `REAPER_REDIS_URL`, no file and no argument.

A variable with `_FILE` at its end names a file that holds the value: `REAPER_REDIS_URL_FILE=/run/secrets/redis-url`.
So a password is in no list of processes and in no settings file ([secrets](security.md#secrets)).

A duration is a number with a unit (`ms`, `s`, `m`, `h`, `d`): `30s`, `24h`. A number alone is seconds.
A rate is `100/s` or `100`.
`redis_url` is one of

| address | of |
|---|---|
| `redis://[[user]:password@]host:port/db`, `unix:///path` | one Redis or Valkey, which takes writes |
| `redis+sentinel://[[user]:password@]h1:26379,h2,h3/mymaster/0` | the master called `mymaster` ([Sentinel](\
topologies.md#sentinel)); user and password are those of Redis |
| `redis+cluster://h1,h2` | nodes of a cluster, any of them; others are asked for ([cluster](topologies.md#cluster)) |

and, over TLS, `rediss://…`, `rediss+sentinel://…` and `rediss+cluster://…`.
It takes the options `client_name`, `socket_keepalive` (`redis://…?socket_keepalive=true`), over TLS
`ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile` and their like, for Sentinels `sentinel_username` and `sentinel_password`.
The settings `redis_ca_file`, `sentinel_password` and their like are put into the address; where there are no settings
(a `Producer`, the Spark data source), it says all by itself.
Whoever connects asks first who answers: a replica, a Sentinel or a node of a cluster is refused with one sentence
where the address does not say so.
A setting that neither program has, or that cannot work, stops the process with a sentence that names it, says why, and
what to write instead.
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

A running replica reads the file again on SIGHUP.
`groups`, `visibility_timeout`, `max_deliveries` and `redelivery` then change at once; whatever else changed needs a
restart, and the log names it.
Where the new file is wrong, the log says so and the old settings stay in force.

`--log-level debug|info|warning|error` and `--log-format console|json` are flags only.

The operators' commands (`status`, `explain`, `leader`, `acl`, `pause`, `resume`, `forget`, `dead-letters`) take
`redis_url`, `namespace`, `groups` and `journal` from the same places, `status` also `observe`; `doctor` takes all of
them, to compare.
"""

_GROUPS = """\
### `[[groups]]`

One table per stream/group pair.
What is not given there is taken from the settings above.
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

What the group has agreed on (the leader writes it) is followed where nothing is set here.
"""


_PIPELINE = """\
## `reaper pipeline`

```toml
# pipeline.toml
lake = "/data/lake"
redis_url = "redis://redis.internal:6379/0"
trigger = 30
```

Each command takes those of these settings that it needs (`reaper pipeline COMMAND --help`).
The file is named with `--config` or in `REAPER_PIPELINE_CONFIG`.
Where nothing says where Redis is (none of `redis_url` … `sentinel_password`), what the environment tells the reaper
counts (`REAPER_REDIS_URL` …), and after that `REDIS_URL`.
[The pipeline](pipeline.md) tells how they work together.
"""


def document() -> str:
    """Return the whole page."""
    from reaper.pipeline.settings import PipelineSettings
    from workers.settings import WorkerSettings  # the docs tell of both sides; the service knows only its own

    parts = [_HEAD, _REAPER, table(ReaperSettings), _GROUPS, table(GroupSettings), _WORKER, table(WorkerSettings)]
    return "\n".join([*parts, _PIPELINE, table(PipelineSettings)])


def table(kind: type[Settings]) -> str:
    """Return a Markdown table of a class's settings, in the order they are written there."""
    return "\n".join(_rows(kind)) + "\n"


def _rows(kind: type[Settings]) -> Iterator[str]:
    prefix = str(kind.model_config.get("env_prefix", ""))
    names = ["setting", "type", "default", *(["environment", "flag"] if prefix else []), "meaning"]
    yield _row(names)
    yield _row(["---"] * len(names))
    for name, field in kind.model_fields.items():
        given = [f"`{prefix}{name.upper()}`", _flag(name, field)] if prefix else []
        yield _row([f"`{name}`", _type(field), _default(field), *given, field.description or ""])


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _flag(name: str, field: FieldInfo) -> str:
    flag = name.replace("_", "-")
    return f"`--{flag}`, `--no-{flag}`" if bare_type(field.annotation) is bool else f"`--{flag}`"


def _type(field: FieldInfo) -> str:
    kind = bare_type(field.annotation)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return " or ".join(f"`{member.value}`" for member in kind)
    names = {timedelta: "duration", int: "whole number", float: "number", bool: "`true` or `false`", str: "text"}
    return names.get(kind, "tables") + bounds(field)


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
