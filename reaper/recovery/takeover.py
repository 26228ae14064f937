"""Takes a group over at the beginning of a term: installs the fence, and writes the settings of the group."""

import logging

from reaper.election.elector import EndOfTerm
from reaper.layout import layout_refusal, server_refusal
from reaper.recovery.context import TermContext
from reaper.recovery.notes import GroupNotes
from reaper.recovery.writer import GroupWriter, TakeOverCode
from reaper.settings import WatchedGroup
from workers.protocol.log_fields import fields
from workers.protocol.messages import RecoveryMode
from workers.runtime.settings import to_ms

logger = logging.getLogger(__name__)


class Takeover:
    """One group, one term."""

    def __init__(self, context: TermContext, group: WatchedGroup, writer: GroupWriter, notes: GroupNotes) -> None:
        self._context = context
        self._group = group
        self._writer = writer
        self._notes = notes

    async def attempt(self) -> bool:
        """Install the fence; return whether the group is ours to serve. Raises what redis-py raises.

        If the server does not support the policy, the former group settings stay in force.
        """
        unable = await server_refusal(self._context.client, self._group.keys, self._group.redelivery)
        if self._context.settings.observe:
            layout = await layout_refusal(self._context.client, self._group.keys.stream, self._group.redelivery)
            self._notes.layout(unable or layout)
            return True
        if unable:
            self._notes.layout(unable)
            return False
        answer = await self._writer.take_over(recreate=self._context.settings.recreate_groups)
        if answer.code is TakeOverCode.TOKEN_BEHIND:
            await self._raise_token(int(answer.detail))
            return False
        if answer.code is TakeOverCode.FOREIGN_NAMESPACE:
            self._notes.refused(
                "foreign_namespace",
                f"namespace {answer.detail!r} serves this group, so {self._context.settings.namespace!r} writes "
                f"nothing here. Stop its reapers, or run `reaper groups forget {self._group.keys.word}` with their "
                "settings",
            )
            return False
        if answer.created_at:
            logger.error(
                "group was destroyed and is created again: %s",
                fields(group=self._group.keys.pair, start=answer.created_at),
            )
        self._log_change(answer.before)
        self._notes.layout(answer.detail)
        return True

    async def _raise_token(self, found: int) -> None:
        logger.warning(
            "token counter was reset, starting a new term: %s",
            fields(group=self._group.keys.pair, token=self._context.term.token, fence_token=found),
        )
        raised = await self._context.elector.raise_token(self._context.term, found)
        self._context.end(EndOfTerm.TOKEN_BEHIND if raised else EndOfTerm.NOT_OURS)

    def _log_change(self, before: tuple[str, ...]) -> None:
        group = self._group
        visibility_ms = str(to_ms(group.visibility_timeout))
        now = (group.redelivery.value, visibility_ms, str(group.max_deliveries), RecoveryMode.REAPER.value)
        names = ("redelivery", "visibility_ms", "max_deliveries", "recovery")
        for name, old, new in zip(names, before, now, strict=False):
            if old and old != new:
                logger.warning(
                    "group setting changed, workers apply it at their next refresh: %s",
                    fields(group=self._group.keys.pair, setting=name, before=old, after=new),
                )
