"""``reaper leader``: who leads, the last terms and why they ended, and asking the leader to step down."""

from dataclasses import asdict
from typing import Any

import click

from reaper.cli.options import connected, json_option, operator_options
from reaper.operations.snapshot import look_at_namespace
from reaper.operations.state import Snapshot
from reaper.operations.terms import (
    COOLDOWN_S,
    UNTOLD,
    PastTerm,
    ask_to_step_down,
    await_successor,
    read_terms,
    replica_of,
)
from reaper.operations.words import duration, with_group
from reaper.settings import ReaperSettings
from workers.runtime.options import NEGATIVE_EXIT, DurationType, examples, help_end
from workers.runtime.printing import show, show_json


@click.group(epilog=examples("reaper leader show", "reaper leader step-down"))
def leader() -> None:
    """Show the leader, or ask it to step down."""


@leader.command(
    "show",
    epilog=help_end(
        "reaper leader show", "reaper leader show --terms 50 -o json", ok="a leader exists", no="no leader"
    ),
)
@click.option("--terms", type=click.IntRange(1, 200), default=10, show_default=True, help="How many terms to show.")
@json_option
@operator_options
@click.pass_context
async def show_(context: click.Context, /, terms: int, machine: bool, settings: ReaperSettings) -> None:
    """Show the leader, its followers and the last terms."""
    async with connected(settings) as (client, server):
        snapshot = await look_at_namespace(client, settings.namespace_keys, server)
        past = await read_terms(client, settings.namespace_keys, terms)
    if machine:
        show_json(_as_json(snapshot, past))
    else:
        show(*_lines(snapshot, past))
    context.exit(0 if snapshot.leader else NEGATIVE_EXIT)


def _as_json(snapshot: Snapshot, past: tuple[PastTerm, ...]) -> dict[str, Any]:
    found = snapshot.leader
    return {
        "namespace": snapshot.namespace,
        "leader": asdict(found, dict_factory=with_group) if found else None,
        "holder": snapshot.holder,
        "token": snapshot.token,
        "lease_left_ms": snapshot.lease_left_ms,
        "followers": [follower.id for follower in snapshot.followers],
        "terms": [asdict(term) | {"replica": term.replica} for term in past],
    }


def _lines(snapshot: Snapshot, past: tuple[PastTerm, ...]) -> list[str]:
    found = snapshot.leader
    if found:
        lines = [f"leader     {found.id}  term {found.token}  lease {duration(snapshot.lease_left_ms)} left"]
    else:
        lines = [f"leader     none{f' (the lease is held by {snapshot.holder})' if snapshot.holder else ''}"]
    lines.append(f"followers  {', '.join(follower.id for follower in snapshot.followers) or 'none'}")
    lines += ["", "terms, newest first"] if past else []
    return [*lines, *(_term_line(snapshot.now_ms, term) for term in past)]


def _term_line(now_ms: int, term: PastTerm) -> str:
    began = f"began {duration(max(0, now_ms - term.began_ms))} ago" if term.began_ms else "began earlier"
    if not term.end:
        end = "continues"
    elif term.end == UNTOLD:
        end = "ended without a record: the leader was killed, paused or disconnected"
    else:
        lasted = f" after {duration(max(0, term.ended_ms - term.began_ms))}" if term.began_ms else ""
        end = f"{term.end}{lasted}"
    return f"  {term.token:>6}  {term.replica}  {began}  {end}"


@leader.command(
    "step-down",
    epilog=help_end(
        "reaper leader step-down",
        "reaper leader step-down --cooldown 2m",
        ok="another replica leads",
        no="no other replica leads yet, or there is no leader or no follower",
    ),
)
@click.option(
    "--cooldown",
    type=DurationType(least=0.001, most=86_400),
    default=COOLDOWN_S,
    help="How long the same replica does not become leader again. Default: 30s.",
)
@click.option("--timeout", type=DurationType(), help="How long to wait for the next leader. Default: twice lease_ttl.")
@click.option("--alone", is_flag=True, help="Step down even if there is no follower.")
@json_option
@operator_options
@click.pass_context
async def step_down(
    context: click.Context,
    /,
    cooldown: float,
    timeout: float | None,
    alone: bool,
    machine: bool,
    settings: ReaperSettings,
) -> None:
    """Ask the leader to step down, and wait for the next one.

    The leader stops its work and releases its lease at its next renewal. No job is lost or recovered twice, because
    its writes are fenced.
    """
    patience = timeout if timeout is not None else settings.lease_ttl.total_seconds() * 2
    async with connected(settings) as (client, _):
        keys = settings.namespace_keys
        holder = await ask_to_step_down(client, keys, cooldown_ms=round(cooldown * 1000), alone=alone)
        successor, token = await await_successor(client, keys, holder, patience)
    if machine:
        show_json({"stepped_down": replica_of(holder), "leader": replica_of(successor), "token": token})
    elif successor:
        show(f"{replica_of(holder)} stepped down. {replica_of(successor)} leads in term {token}.")
    else:
        show(f"{replica_of(holder)} was asked to step down. No other replica leads after {patience:g} s.", err=True)
    context.exit(0 if successor else NEGATIVE_EXIT)
