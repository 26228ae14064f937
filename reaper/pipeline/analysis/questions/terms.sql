-- Which replica held the lease of each group when, how did each term end, and for how long did no replica hold it after?
-- `end` is the reason that the holder gave. `expired`: it gave none, as a killed replica does, and another term began.
-- `holds`: the newest term. Of an expired term nobody knows the end: `gap_at_most_ms` bounds the gap by the last write of
-- the holder. A term without a begin began before the group had a journal.
-- A write names the token of its holder. It counts if this term is the newest one at that time.
with fact as (
  select stream, grp, token, holder, event, reason, at_ms, seq,
    last_value(if(event = 'lease_taken' and holder is not null, struct(token, holder), null), true)
      over (partition by stream, grp order by at_ms, seq) as newest
  from story
  where event in ('lease_taken', 'lease_left', 'recovered', 'quarantined', 'dead_lettered')
    and grp is not null and token is not null
), term as (
  select stream, grp, coalesce(holder, newest.holder) as holder,
    coalesce(min(if(event = 'lease_taken', token, null)), min(token)) as token,
    min(if(event = 'lease_taken', at_ms, null)) as began_ms,
    min(if(event = 'lease_left', at_ms, null)) as ended_ms,
    min_by(reason, if(event = 'lease_left', struct(at_ms, seq), null)) as reason,
    max(if(event not in ('lease_taken', 'lease_left'), at_ms, null)) as seen_ms
  from fact
  where holder is not null or token = newest.token
  group by stream, grp, coalesce(holder, newest.holder)
), followed as (
  select *, lead(began_ms) over (partition by stream, grp order by coalesce(began_ms, ended_ms), token) as next_ms from term
)
select stream, grp as `group`, token, holder, began_ms, ended_ms,
  coalesce(reason, case when ended_ms is not null then 'left' when next_ms is null then 'holds' else 'expired' end) as end,
  next_ms - ended_ms as gap_ms,
  if(ended_ms is null, next_ms - coalesce(seen_ms, began_ms), null) as gap_at_most_ms
from followed
