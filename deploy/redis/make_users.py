"""Make Redis users with the least rights, and a file with the address for each of them.

The folder then holds users.acl, for `aclfile` of Redis, and reaper-url, worker-url and so on, for the variables
REAPER_REDIS_URL_FILE. Existing passwords stay. Run it again after an upgrade or with other groups, and let Redis read
the rights by ACL LOAD.
"""

import hashlib
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

import click

from reaper.cli.acl import recovery_option
from reaper.operations.acl import roles_in, rules_of
from reaper.settings import ReaperSettings, check_groups
from workers.protocol.messages import RecoveryMode
from workers.runtime.options import errors_as_sentences, examples
from workers.runtime.settings import load_settings

PASSWORD_BYTES = 32
PIPELINE_COMMANDS = ("+ping", "+info", "+scan", "+xrange", "+xinfo|stream", "+multi", "+exec")
STRANGERS = "user default on nopass resetkeys resetchannels -@all +ping"
"""Who gives no password may ask whether the server is there; health checks do."""


@click.command(
    help=__doc__,
    epilog=examples(
        "python deploy/redis/make_users.py --config reaper.toml --host redis.internal --into secrets",
        "python deploy/redis/make_users.py --config reaper.toml --host redis.internal --tls --into secrets",
    ),
)
@click.option(
    "--config", type=click.Path(path_type=Path), required=True, help="The replicas' settings: they name the groups."
)
@click.option("--into", type=click.Path(file_okay=False, path_type=Path), required=True, help="Folder of the files.")
@click.option("--host", default="redis", show_default=True, help="Name or address of Redis, as processes see it.")
@click.option("--port", type=int, default=6379, show_default=True, help="Its port.")
@click.option("--tls", is_flag=True, help="Connect by TLS (rediss://).")
@recovery_option
def main(config: Path, into: Path, host: str, port: int, tls: bool, recovery: str) -> None:
    """See the module."""
    with errors_as_sentences():
        settings = check_groups(load_settings(ReaperSettings, file=config))
        users = [
            (name, _password(into / f"{name}-url"), rules) for name, rules in _users(settings, RecoveryMode(recovery))
        ]
    into.mkdir(parents=True, exist_ok=True)
    into.chmod(0o700)  # users of containers can read the files, and users outside of the folder cannot see them
    scheme = "rediss" if tls else "redis"
    for name, password, _ in users:
        _write(into / f"{name}-url", f"{scheme}://{name}:{password}@{host}:{port}/0")
    _write(into / "users.acl", "\n".join([STRANGERS, *(_line(*user) for user in users)]))
    click.echo(f"{into}: users.acl, {', '.join(f'{name}-url' for name, _, _ in users)}")


def _users(settings: ReaperSettings, mode: RecoveryMode) -> Iterator[tuple[str, list[str]]]:
    """Return the users with their rights, one for each role, one for the pipeline and one for an administrator."""
    groups = [group.keys for group in settings.groups]
    for role in roles_in(mode):
        yield role.value, rules_of(role, mode, groups, [settings.namespace_keys]).words
    yield "pipeline", _pipeline(settings)
    yield "admin", ["allkeys", "allchannels", "allcommands"]


def _pipeline(settings: ReaperSettings) -> list[str]:
    """Return the rights of `reaper pipeline ingest`, which reads journals and dead letters."""
    keys = [key for group in settings.groups for key in (group.keys.journal, group.keys.dead)]
    named = [f"~{key}" for key in dict.fromkeys([*keys, settings.namespace_keys.journal])]
    return ["resetkeys", "resetchannels", "-@all", *named, *PIPELINE_COMMANDS]


def _password(file: Path) -> str:
    """Return the password that ``file`` holds, or a new one."""
    known = urlsplit(file.read_text(encoding="utf-8").strip()).password if file.exists() else None
    return unquote(known) if known else secrets.token_urlsafe(PASSWORD_BYTES)


def _line(name: str, password: str, rules: Sequence[str]) -> str:
    """Return a line of an ACL file, with single spaces, and with the password's hash only."""
    return " ".join(["user", name, "on", f"#{hashlib.sha256(password.encode()).hexdigest()}", *rules])


def _write(file: Path, text: str) -> None:
    """Write in place, because Redis in a container sees the file itself, not its name."""
    if file.exists():
        file.chmod(0o600)
    file.write_text(text + "\n", encoding="utf-8")
    file.chmod(0o444)


if __name__ == "__main__":
    main()
