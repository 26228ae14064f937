-- All events except those that every job leaves: a few per cent, about which many questions are asked.
-- They are in one part, so these questions need no shuffle of them.
select /*+ REPARTITION(1) */ stream, grp, event, at_ms, seq, entry, consumer, delivery, mode, token, holder, reason, idle_ms, visibility_ms,
  extra, is_stall, is_settlement
from event
where event <> 'acked'
