"""``reaper replicas`` and ``reaper drain``: the replicas, and moving all groups away from one of them."""

import click

from reaper.cli.options import connected, json_option, operator_options
from reaper.operations.drain import DRAIN_S, await_drained, drain, undo_drain
from reaper.operations.snapshot import look_at_namespace
from reaper.operations.state import Snapshot
from reaper.operations.words import duration
from reaper.replicas import Replica
from reaper.settings import ReaperSettings
from workers.protocol.messages import counted
from workers.runtime.options import NEGATIVE_EXIT, DurationType, help_end
from workers.runtime.printing import show, show_json, styled

_COLOURS = {"live": "green", "drained": "yellow", "silent": "red"}


@click.command(
    epilog=help_end(
        "reaper replicas", "reaper replicas -o json", ok="at least one replica is alive", no="no replica is alive"
    )
)
@json_option
@operator_options
@click.pass_context
async def replicas(context: click.Context, /, machine: bool, settings: ReaperSettings) -> None:
    """Show the replicas, and how many groups each one holds."""
    async with connected(settings) as (client, server):
        seen = await look_at_namespace(client, settings.namespace_keys, server)
    if machine:
        show_json({"namespace": seen.namespace, "replicas": [_as_json(seen, one) for one in seen.replicas]})
    elif not seen.replicas:
        show(f"no replica has registered in namespace {seen.namespace!r}")
    else:
        show(*(_line(seen, one) for one in seen.replicas))
    context.exit(0 if seen.live else NEGATIVE_EXIT)


def _state(seen: Snapshot, replica: Replica) -> str:
    if replica not in seen.live:
        return "silent"
    return "drained" if replica.id in seen.drained else "live"


def _as_json(seen: Snapshot, replica: Replica) -> dict[str, object]:
    return {
        "id": replica.id,
        "name": replica.name,
        "state": _state(seen, replica),
        "version": replica.version,
        "holds": replica.held,
        "watches": replica.watched,
        "terms": replica.terms,
        "started_ms": replica.started_ms,
        "seen_ms": replica.at_ms,
        "drained_until_ms": seen.drained.get(replica.id),
        "settings": replica.settings,
    }


def _line(seen: Snapshot, replica: Replica) -> str:
    state, now_ms = _state(seen, replica), seen.now_ms
    silent = f"last seen {duration(max(0, now_ms - replica.at_ms))} ago"
    facts = [
        f"version {replica.version}",
        silent if state == "silent" else f"holds {replica.held} of {counted(replica.watched, 'group')}",
        f"leases taken {replica.terms}",
        f"started {duration(max(0, now_ms - replica.started_ms))} ago",
        f"drained for {duration(seen.drained[replica.id] - now_ms)} more" if state == "drained" else "",
    ]
    return f"{styled(replica.id, 'bold')}  {styled(state, _COLOURS[state])}  {' · '.join(filter(None, facts))}"


@click.command(
    "drain",
    epilog=help_end(
        "reaper drain host-7-a1b2c3",
        "reaper drain host-7-a1b2c3 --for 30m",
        "reaper drain host-7-a1b2c3 --undo",
        ok="the replica holds no group, or may take groups again",
        no="the replica still holds groups or is not alive, or no other replica could take them",
    ),
)
@click.argument("replica", metavar="REPLICA")
@click.option("--for", "for_s", type=DurationType(), default=DRAIN_S, help="How long it takes no groups. Default: 5m.")
@click.option("--timeout", type=DurationType(), help="How long to wait until it holds none. Default: twice lease_ttl.")
@click.option("--undo", is_flag=True, help="Let the replica take groups again.")
@json_option
@operator_options
@click.pass_context
async def drain_command(
    context: click.Context,
    /,
    replica: str,
    for_s: float,
    timeout: float | None,
    undo: bool,
    machine: bool,
    settings: ReaperSettings,
) -> None:
    """Move all groups of a replica to other replicas, and wait.

    REPLICA is an ID from `reaper replicas`. Other replicas with the same settings take the groups. No job is lost or
    recovered twice, because every write of a replica is checked against the lease of its group.
    """
    patience = timeout if timeout is not None else settings.lease_ttl.total_seconds() * 2
    keys, for_ms, held = settings.namespace_keys, 0 if undo else round(for_s * 1000), 0
    async with connected(settings) as (client, _):
        if for_ms:
            held = await await_drained(client, keys, await drain(client, keys, replica, for_ms), patience)
            message = f"{replica} holds no group, and takes none for {duration(for_ms)}."
        else:
            was_drained = await undo_drain(client, keys, replica)
            message = f"{replica} may take groups again." if was_drained else f"{replica} was not drained."
    if held:
        message = (
            f"{replica} still holds {counted(held, 'group')} after {patience:g} s. It stays drained for "
            f"{duration(for_ms)}. See its log, or run `reaper drain {replica} --undo`."
        )
    if machine:
        show_json({"replica": replica, "drained_ms": for_ms, "holds": held})
    else:
        show(message, err=bool(held))
    context.exit(NEGATIVE_EXIT if held else 0)
