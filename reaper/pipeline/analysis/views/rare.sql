-- All events except those that every job leaves: a few per cent, about which many questions are asked.
select stream, grp, event, at_ms, seq, entry, consumer, delivery, mode, token, holder, reason, idle_ms, visibility_ms,
  extra, is_stall, is_settlement
from event
where event <> 'acked'
