-- When was it bad? Throughput, the longest queue wait, recoveries and stall rate of each period.
select stream, grp as `group`, period, deliveries, stalls, acked, longest_wait_ms,
  round(stalls * 1000 / deliveries, 3) as permille
from (
  select stream, grp, period,
    sum(if(is_stall or event in ('acked', 'nacked', 'handed_back', 'dead_lettered'), n, 0)) as deliveries,
    sum(if(is_stall, n, 0)) as stalls,
    sum(if(event = 'acked', n, 0)) as acked,
    max(longest_wait_ms) as longest_wait_ms
  from activity
  where grp is not null and period is not null
  group by stream, grp, period
)
where deliveries > 0
