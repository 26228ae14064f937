-- All events except those that every job leaves: a few per cent, about which many questions are asked.
select stream, grp, event, at_ms, seq, entry, token, holder, reason, visibility_ms, extra
from event
where event not in ('acked', 'delivered', 'started', 'extended')
