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
from reaper.operations.words import duration
from reaper.settings import ReaperSettings
from workers.runtime.options import Amount, examples
from workers.runtime.printing import show, show_json

NO_LEADER_EXIT = 1


@click.group(epilog=examples("reaper leader show", "reaper leader step-down"))
def leader() -> None:
    """Show who leads, or ask the leader to step down."""


@leader.command("show", epilog=examples("reaper leader show", "reaper leader show --terms 50 --json"))
@click.option("--terms", type=click.IntRange(1, 200), default=10, show_default=True, help="How many terms to show.")
@json_option
@operator_options
@click.pass_context
async def show_(context: click.Context, /, terms: int, machine: bool, settings: ReaperSettings) -> None:
    """Show the leader, its followers, and the last terms. Exit code 0 there is a leader, 1 none, 3 unreachable."""
    async with connected(settings) as (client, server):
        snapshot = await look_at_namespace(client, settings.namespace_keys, server)
        past = await read_terms(client, settings.namespace_keys, terms)
    if machine:
        show_json(_as_json(snapshot, past))
    else:
        show(*_lines(snapshot, past))
    context.exit(0 if snapshot.leader else NO_LEADER_EXIT)


def _as_json(snapshot: Snapshot, past: tuple[PastTerm, ...]) -> dict[str, Any]:
    found = snapshot.leader
    return {
        "namespace": snapshot.namespace,
        "leader": asdict(found) if found else None,
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
    lines += ["", "terms, the latest first"] if past else []
    return [*lines, *(_term_line(snapshot.now_ms, term) for term in past)]


def _term_line(now_ms: int, term: PastTerm) -> str:
    began = f"began {duration(max(0, now_ms - term.began_ms))} ago" if term.began_ms else "began long ago"
    if not term.end:
        end = "goes on"
    elif term.end == UNTOLD:
        end = "ended without a word: killed, paused or cut off"
    else:
        lasted = f" after {duration(max(0, term.ended_ms - term.began_ms))}" if term.began_ms else ""
        end = f"{term.end}{lasted}"
    return f"  {term.token:>6}  {term.replica}  {began}  {end}"


@leader.command("step-down", epilog=examples("reaper leader step-down", "reaper leader step-down --cooldown 120"))
@click.option(
    "--cooldown",
    type=Amount(min=0.001, max=86_400),
    default=COOLDOWN_S,
    show_default=True,
    metavar="SECONDS",
    help="For how long the same replica leaves the lease to the others.",
)
@click.option("--timeout", type=Amount(min=0), metavar="SECONDS", help="How long to wait for a successor.")
@click.option("--alone", is_flag=True, help="Also where no follower is there to take over.")
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
    """Ask the leader to release its lease, and wait for the next one.

    It stops its work, releases at its next renewal, and is not elected again before the cooldown is over. Nothing is
    lost or done twice: its writes are fenced. Exit code 0 somebody else leads, 1 nobody does yet, 2 not possible.
    """
    patience = timeout if timeout is not None else settings.lease_ttl.total_seconds() * 2
    async with connected(settings) as (client, _):
        keys = settings.namespace_keys
        holder = await ask_to_step_down(client, keys, cooldown_ms=round(cooldown * 1000), alone=alone)
        successor, token = await await_successor(client, keys, holder, patience)
    if machine:
        show_json({"stepped_down": replica_of(holder), "leader": replica_of(successor), "token": token})
    elif successor:
        show(f"{replica_of(holder)} stepped down; {replica_of(successor)} leads (term {token})")
    else:
        show(f"{replica_of(holder)} was asked to step down; nobody else leads after {patience:g} s", err=True)
    context.exit(0 if successor else NO_LEADER_EXIT)
