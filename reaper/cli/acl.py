"""``reaper acl``: the permissions that each role needs."""

import click

from reaper.cli.options import json_option, reaper_settings
from reaper.operations.acl import Role, acl_line, roles_in, rules_of
from reaper.settings import ReaperSettings
from workers.protocol.errors import ConfigurationError
from workers.protocol.messages import RecoveryMode
from workers.runtime.options import help_end
from workers.runtime.printing import show, show_json

recovery_option = click.option(
    "--recovery",
    type=click.Choice([mode.value for mode in RecoveryMode]),
    default=RecoveryMode.REAPER.value,
    show_default=True,
    help="Whether the reaper or the workers recover stalled jobs. Embedded workers need more permissions.",
)


@click.command(
    epilog=help_end(
        "reaper acl --groups orders/billing",
        "reaper acl worker --recovery embedded --groups orders/billing,mail/sender",
        "reaper acl reaper --config reaper.toml -o json",
        redis=False,
    )
)
@click.argument("role", metavar="[ROLE]", type=click.Choice([one.value for one in Role]), required=False)
@recovery_option
@json_option
@reaper_settings(("redis_url", "namespace", "groups"))
def acl(role: str | None, recovery: str, machine: bool, settings: ReaperSettings) -> None:
    """Print the least permissions of each role, as ACL rules.

    ROLE is producer, worker, reaper, read-only or operator. Without ROLE, the command prints all roles of the
    recovery mode. Replace PASSWORD. The rules contain the keys of `--groups`. The command does not connect to Redis.
    """
    if not settings.groups:
        raise ConfigurationError(
            "cannot print rules: no groups are set. Name them, for example --groups orders/billing."
        )
    mode = RecoveryMode(recovery)
    roles = [Role(role)] if role else roles_in(mode)
    groups = [group.keys for group in settings.groups]
    rules = [rules_of(one, mode, groups, [settings.namespace_keys]) for one in roles]
    if machine:
        show_json([{"role": one.role, "rules": one.words, "from_redis_8_8": one.newer} for one in rules])
        return
    for one in rules:
        show(f"# {one.role}", acl_line(one.role, ["on", ">PASSWORD", *one.words]), whole=True)
        if one.newer:
            show("# for redelivery in place, on Redis 8.8 and later:", f"# {acl_line(one.role, one.newer)}", whole=True)
