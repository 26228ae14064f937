"""``reaper acl``: the rights that each kind of process needs, and no more."""

from typing import Any

import click

from reaper.cli.options import json_option, operator_options
from reaper.operations.acl import Role, Rules, knows_newer, roles_in, rules_of
from reaper.settings import ReaperSettings
from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import RecoveryMode
from workers.runtime.options import examples
from workers.runtime.printing import show, show_json

recovery_option = click.option(
    "--recovery",
    type=click.Choice([mode.value for mode in RecoveryMode]),
    default=RecoveryMode.REAPER.value,
    show_default=True,
    help="Who recovers: workers that recover by themselves need more rights, and no reaper is there.",
)


@click.command(
    epilog=examples(
        "reaper acl --groups orders/billing",
        "reaper acl worker --recovery embedded --groups orders/billing,mail/sender",
        "reaper acl reaper --config reaper.toml --json",
        "reaper acl worker --groups orders/billing --server-version 8.8",
    )
)
@click.argument("role", type=click.Choice([role.value for role in Role]), required=False)
@recovery_option
@click.option("--user", metavar="NAME", help="Name of the Redis user; default: the role's.")
@click.option(
    "--server-version",
    metavar="VERSION",
    help="Print what this server accepts, such as 7.0, 8.8 or valkey-9.1. Default: what every server accepts, and the "
    "rest as comments.",
)
@json_option
@operator_options
def acl(
    role: str | None,
    recovery: str,
    user: str | None,
    server_version: str | None,
    machine: bool,
    settings: ReaperSettings,
) -> None:
    """Print the least rights that a ROLE needs (all roles by default), as `ACL SETUSER` commands.

    Nothing is sent to Redis. Put a password in place of PASSWORD. The rules name the keys of the pairs in `groups`; a
    worker's and a producer's name no key of the namespace. Exit code 0, or 2 where no groups are named.
    """
    if not settings.groups:
        raise ConfigurationError(
            "no groups are set: the rules name keys, so say which, for example --groups orders/billing."
        )
    mode = RecoveryMode(recovery)
    roles = [Role(role)] if role else roles_in(mode)
    pairs = [group.keys for group in settings.groups]
    rules = [rules_of(one, mode, pairs, [settings.namespace_keys], url=settings.redis_url) for one in roles]
    newer = None if server_version is None else knows_newer(server_version)
    if machine:
        show_json([_as_json(one, newer) for one in rules])
        return
    for one in rules:
        name = user or one.role.value
        show(f"# {one.role}", one.line(name), whole=True)
        if one.newer and newer is not False:
            comment = "" if newer else "# "
            show("# for redelivery in place, on Redis 8.8 and later:", comment + one.newer_line(name), whole=True)


def _as_json(rules: Rules, newer: bool | None) -> dict[str, Any]:
    """Return the rules of a role. ``newer``: whether the server knows all commands; None if that is unknown."""
    words = rules.words() + (rules.newer_words() if newer else [])
    return {"role": rules.role, "rules": words, "from_redis_8_8": rules.newer_words() if newer is None else []}
