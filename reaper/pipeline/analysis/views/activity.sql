-- How much happened, of which event, where and when: one pass over all events, from which counts follow.
-- Only an event that ends a delivery has a consumer and a period, which makes fewer groups.
select stream, grp, event, is_stall, consumer, period, done_in, verb,
  count(*) as n, min(at_ms) as first_ms, max(at_ms) as last_ms,
  max(wait_ms) as longest_wait_ms
from (
  select stream, grp, event, is_stall, at_ms,
    if(ends, consumer, null) as consumer,
    if(ends, at_ms - at_ms % :period_ms, null) as period,
    if(event = 'acked', delivery, null) as done_in,
    if(event in ('rejected', 'fenced'), verb, null) as verb,
    if(event = 'acked' and wait_ms between 0 and 34560000000, wait_ms, null) as wait_ms
  from (
    select *, is_stall or is_settlement or event in ('acked', 'nacked', 'handed_back', 'dead_lettered') as ends
    from event
  )
)
group by stream, grp, event, is_stall, consumer, period, done_in, verb
