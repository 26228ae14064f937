"""``reaper acl``: the rights that each kind of process needs, and no more."""

import click

from reaper.cli.options import json_option, operator_options
from reaper.operations.acl import Role, roles_in, rules_of
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
    )
)
@click.argument("role", type=click.Choice([role.value for role in Role]), required=False)
@recovery_option
@click.option("--user", metavar="NAME", help="Name of the Redis user; default: the role's.")
@json_option
@operator_options
def acl(role: str | None, recovery: str, user: str | None, machine: bool, settings: ReaperSettings) -> None:
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
    if machine:
        show_json([{"role": one.role, "rules": one.words(), "from_redis_8_8": one.newer_words()} for one in rules])
        return
    for one in rules:
        name = user or one.role.value
        show(f"# {one.role}", one.line(name), whole=True)
        if one.newer:
            show("# and on Redis 8.8 and later, for redelivery in place", one.newer_line(name), whole=True)
