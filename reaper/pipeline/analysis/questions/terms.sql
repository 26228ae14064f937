-- Which replica held the lease of each group when, how did each term end, and for how long did no replica hold it after?
-- `end` is the reason that the holder gave. `expired`: it gave none, as a killed replica does, and another term began.
-- `holds`: the newest term. Of an expired term nobody knows the end: `gap_at_most_ms` bounds the gap by the last write of
-- the holder. A term without a begin began before the group had a journal.
with term as (
  select stream, grp, holder,
    coalesce(min(if(event = 'lease_taken', token, null)), min(token)) as token,
    min(if(event = 'lease_taken', at_ms, null)) as began_ms,
    min(if(event = 'lease_left', at_ms, null)) as ended_ms,
    min_by(reason, if(event = 'lease_left', struct(at_ms, seq), null)) as reason
  from story
  where event in ('lease_taken', 'lease_left') and grp is not null and token is not null and holder is not null
  group by stream, grp, holder
), followed as (
  select *, lead(began_ms) over (partition by stream, grp order by coalesce(began_ms, ended_ms), token) as next_ms from term
), seen as (
  select followed.stream, followed.grp, followed.holder, max(write.at_ms) as seen_ms
  from followed join story write on write.stream = followed.stream and write.grp = followed.grp
    and write.token = followed.token and write.at_ms between followed.began_ms and followed.next_ms
  where write.event in ('recovered', 'quarantined', 'dead_lettered')
  group by followed.stream, followed.grp, followed.holder
)
select stream, grp as `group`, token, holder, began_ms, ended_ms,
  coalesce(reason, case when ended_ms is not null then 'left' when next_ms is null then 'holds' else 'expired' end) as end,
  next_ms - ended_ms as gap_ms,
  if(ended_ms is null, next_ms - coalesce(seen_ms, began_ms), null) as gap_at_most_ms
from followed left join seen using (stream, grp, holder)
