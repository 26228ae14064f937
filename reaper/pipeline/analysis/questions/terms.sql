-- Who led when, how did each term end, and how long did nobody lead after it?
-- `released` and `lost` are what the leader said. `vanished`: it said nothing, as a killed leader does. `leading`: the
-- newest term. If the leader said its end too late or never, `gap_at_most_ms` bounds the gap by the moment at which it
-- was last seen to lead. A group's journal does not say whose token it holds, so nothing is seen of a term beside which
-- another namespace has one with the same token.
with began as (
  select stream, token, holder, min(at_ms) as began_ms
  from rare
  where event = 'lease_acquired' and token is not null and holder is not null
  group by stream, token, holder
), span as (
  select *, lead(began_ms) over (partition by stream order by began_ms, token) as next_ms from began
), ended as (
  select stream, token, min_by(event, order) as event, min_by(reason, order) as reason, min(at_ms) as told_ms
  from (select *, struct(at_ms, seq) as order from rare where event in ('lease_released', 'lease_lost'))
  group by stream, token
), mistakable as (
  select span.stream, span.token
  from span join span other on span.token = other.token and span.stream <> other.stream
    and span.began_ms <= coalesce(other.next_ms, span.began_ms) and other.began_ms <= coalesce(span.next_ms, other.began_ms)
), seen as (
  select span.stream, span.token, max(at_work.at_ms) as seen_ms
  from span left anti join mistakable on span.stream = mistakable.stream and span.token = mistakable.token
    join (select token, at_ms from rare
      where event in ('recovered', 'quarantined', 'dead_lettered') and token is not null) at_work
    on span.token = at_work.token and at_work.at_ms >= span.began_ms
      and at_work.at_ms <= coalesce(span.next_ms, at_work.at_ms)
  group by span.stream, span.token
), judged as (
  select span.*, event, reason, told_ms, seen_ms,
    told_ms is not null and (next_ms is null or told_ms <= next_ms) as in_time
  from span left join ended using (stream, token) left join seen using (stream, token)
)
select stream, token, holder, began_ms,
  if(in_time, told_ms, null) as ended_ms,
  case when in_time and event = 'lease_released' then 'released' when event is not null then 'lost'
    when next_ms is null then 'leading' else 'vanished' end as end,
  reason,
  if(in_time, next_ms - told_ms, null) as gap_ms,
  if(not in_time and next_ms is not null, next_ms - coalesce(seen_ms, began_ms), null) as gap_at_most_ms
from judged
