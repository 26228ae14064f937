"""Judges a world by the invariants, and by rules for the time in between."""

from collections.abc import Iterable, Iterator, Sequence

from redis.asyncio import Redis

from reaper.drill.history import read_events, read_state
from reaper.drill.promises import History, check
from reaper.operations.judgement import judge as judge_status
from reaper.operations.snapshot import take_snapshot
from tests.simulation.places import GROUP, KEYS, NAMESPACE
from tests.simulation.plays import GROUP_LOST, LOST_DELIVERY, Ledger, Telling
from tests.simulation.server.keyspace import Keyspace
from tests.simulation.server.ranking import SortedSet
from tests.simulation.server.streams import Stream
from tests.simulation.world import World
from workers.protocol.calls.group_moves import QUARANTINE_SCORE
from workers.protocol.events import EventName, LifecycleEvent


def is_over(keys: Keyspace) -> bool:
    """Tell whether all work is done, and cleared away. Asked again and again, so it looks at the data themselves."""
    for key in (KEYS.stream, KEYS.retry):
        stream = keys.find(key.encode())
        group = stream.groups.get(GROUP.encode()) if isinstance(stream, Stream) else None
        if isinstance(stream, Stream) and group and (group.pending.ids or stream.last_valid_id() > group.last_id):
            return False
    retry = keys.find(KEYS.retry.encode())
    if isinstance(retry, Stream) and retry.length:
        return False
    return not any(keys.find(key.encode()) for key in (KEYS.schedule, KEYS.stream_schedule, KEYS.quarantine))


def only_waits(world: World) -> bool:
    """Tell whether all that is left waits for an instant of the server's clock."""
    keys, now_ms = world.server.keys, world.clock.now_us() / 1000
    for key in (KEYS.stream, KEYS.retry):
        stream = keys.find(key.encode())
        group = stream.groups.get(GROUP.encode()) if isinstance(stream, Stream) else None
        if isinstance(stream, Stream) and group and (stream.last_valid_id() > group.last_id or group.pending.ids):
            return False
    found = [keys.find(key.encode()) for key in (KEYS.schedule, KEYS.stream_schedule)]
    due = [score for schedule in found if isinstance(schedule, SortedSet) for score in schedule.scores.values()]
    return bool(due) and not world.producer.left and all(now_ms < score < QUARANTINE_SCORE for score in due)


async def history_of(world: World, client: Redis, *, finished: bool) -> History:
    """Gather all that is known."""
    state = await read_state(client, KEYS)
    events = [*await read_events(client, KEYS), *world.witness.untold]
    ledger = world.ledger
    enqueued = {job: payload for job, payload in ledger.enqueued.items() if job not in ledger.lost}
    for job, payload in ledger.payloads.items():
        if job not in ledger.lost:
            enqueued.setdefault(job, payload)  # their producer did not know
    heard = list(world.tellings)
    # The process that noticed may have died before it heard the reply. The count stays, and status shows it.
    if int(await client.hget(KEYS.settings, "groups_lost") or 0) > sum(one.error == GROUP_LOST for one in heard):
        heard.append(Telling(world.loop.now, GROUP_LOST))
    for job in lost_and_told(ledger, heard, events):
        enqueued.pop(job, None)
    for letter in state.dead:
        enqueued.setdefault(letter.job, ledger.enqueued.get(letter.job, list(letter.payload)))
    return History(
        enqueued=enqueued,
        state=state,
        events=events,
        starts=ledger.starts,
        completions=ledger.completions,
        endings=ledger.endings,
        visibility_ms=round(max(world.visibilities) * 1000),
        max_deliveries=max(world.limits),
        least_deliveries=min(world.limits),
        counts_kept=world.losses.counts_kept,
        ends_kept=not world.losses.of_ends,
        lost_deliveries=world.losses.of_deliveries,
        finished=finished,
    )


def lost_and_told(ledger: Ledger, tellings: Sequence[Telling], events: Iterable[LifecycleEvent]) -> Iterator[str]:
    """Yield the jobs whose delivery others have deleted, if that was reported, so that the loss is theirs.

    An unreported one stays a violation. A lost delivery is reported with its job, a lost consumer with its name, a lost
    group as a whole. If the journal is not writable, a lost consumer is still reported.
    """
    journal = list(events)
    named = {event.job for event in journal if event.event == EventName.LOST_DELIVERY}
    consumers = {event.data.get("consumer") for event in journal if event.event == EventName.LOST_CONSUMER}
    for job, dropped in ledger.dropped.items():
        reported = {(told.error, told.consumer) for told in tellings if told.at >= dropped.at}
        groups = any(error == GROUP_LOST for error, _ in reported)
        if job in named or dropped.consumer in consumers or groups or (LOST_DELIVERY, dropped.consumer) in reported:
            yield job


async def judgement(world: World, client: Redis, *, finished: bool) -> list[str]:
    """Return a sentence for each violation."""
    history = await history_of(world, client, finished=finished)
    for sentence in check(history):
        world.findings.add(sentence)
    sentences = list(world.findings.sentences)
    if not finished:
        state = history.state
        sentences.append(
            f"I6: the work does not end: ready {list(state.ready)}, pending {list(state.pending)}, "
            f"scheduled {list(state.scheduled)}"
        )
        problems = judge_status(await take_snapshot(client, NAMESPACE))
        if not problems:
            sentences.append("S: nothing moves, and status says healthy")
    return sentences
