"""How far a limit allows to go: found by walking there, since Redis cannot look entries up by their number."""

from dataclasses import dataclass

from reaper.pipeline.redis_stream.kept import Keeper
from reaper.pipeline.redis_stream.link import Link, key_of, look_at
from reaper.pipeline.redis_stream.positions import (
    Id,
    Position,
    State,
    added_at_cut,
    find_loss,
    parse_id,
    show_id,
)
from reaper.pipeline.redis_stream.ranges import PageSize, StreamRange


@dataclass(frozen=True)
class Backlog:
    """What of one stream could be read now."""

    stream: str
    start: Position
    state: State
    target: Position

    @property
    def at_most(self) -> int:
        """How many entries it can be at most."""
        if self.start.added is not None and self.target.added is not None:
            return max(0, min(self.target.added - self.start.added, self.state.length))
        return self.state.length


@dataclass(frozen=True)
class Walk:
    """How far a limit allows to go, found by walking there."""

    end: Position
    entries: int
    steps: tuple[tuple[int, Position], ...]
    """After how many entries the pages of the walk ended, and where: real entries, with their number known if that of
    the start is."""
    places: tuple[int, ...]
    """Where its first pages were kept: where each begins, and where the last one ends."""


def walk_to(link: Link, backlog: Backlog, limit: int, page_size: int, keeper: Keeper) -> Walk:
    """Find the ``limit``-th entry after the backlog's start, or its target if that is nearer; keep what is read."""
    key, start, until = key_of(backlog.stream), backlog.start, show_id(backlog.target.id)
    at, walked = start, 0
    steps: list[tuple[int, Position]] = []
    places = [keeper.end]
    first: Id | None = None
    page = PageSize(page_size)
    while walked < limit:
        size = min(page.entries, limit - walked)
        entries = link.ask_one("XRANGE", key, f"({show_id(at.id)}", until, "COUNT", size)
        walked += len(entries)
        if entries:
            first = first or parse_id(entries[0][0].decode())
            if keeper.keep(entries):
                places.append(keeper.end)
        if len(entries) < size:
            end = backlog.target
            break
        page.learn(entries)
        at = Position(parse_id(entries[-1][0].decode()), added_at_cut(start, backlog.state, walked))
        steps.append((walked, at))
    else:
        end = at
        steps.pop()
    whole = first is not None and len(places) > 1 and _is_whole(link, backlog.stream, start, first)
    return Walk(end, walked, tuple(steps), tuple(places if whole else ()))


def _is_whole(link: Link, stream: str, start: Position, first: Id) -> bool:
    """Tell by what a stream is like after a walk that nothing was trimmed before the walk could read it.

    Redis trims from the head. Where it has come as far as the first entry of the walk, or where the entry that was read
    last is missing among older ones (another stream has its name), tasks read and judge.
    """
    anchor = show_id(start.id)
    is_there = not start.is_anchor or bool(link.ask_one("XRANGE", key_of(stream), anchor, anchor))
    state = look_at(link, [stream])[stream]
    if state is None or state.first is None or state.first > first:
        return False
    return (is_there or state.first > start.id) and find_loss(start, state) is None


def cut_walk(stream: str, lower: Position, walk: Walk, parts: int, keeper: Keeper) -> list[StreamRange]:
    """Cut what was walked into parts of about equal numbers of entries, with the pages that were kept of each."""
    steps = walk.steps
    wanted = [walk.entries * part / parts for part in range(1, parts)] if steps else []
    cuts = sorted({min(range(len(steps)), key=lambda at: abs(steps[at][0] - entries)) for entries in wanted})
    edges = [lower, *(steps[cut][1] for cut in cuts), walk.end]
    kept = len(walk.places) - 1
    pages = [min(page, kept) for page in (0, *(cut + 1 for cut in cuts), kept)]
    return [
        StreamRange(
            stream,
            begin.id,
            end.id,
            begin.added,
            begin.initial,
            kept=keeper.pages(walk.places[first], walk.places[last]) if kept > 0 else None,
        )
        for begin, end, first, last in zip(edges[:-1], edges[1:], pages[:-1], pages[1:], strict=True)
    ]
