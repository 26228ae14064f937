-- How long do acknowledged deliveries wait and run? Exact quantiles, by nearest rank.
-- A duration that is negative or longer than 400 days is none, because a clock was set while it was measured. The
-- settled deliveries that have one are counted as `skewed`.
with measured as (
  select stream, grp, type, if(event = 'acked', wait_ms, null) as wait_ms, if(event = 'acked', run_ms, null) as run_ms,
    if(event <> 'handed_back', greatest(at_ms - delivered_ms, run_ms), null) as held_ms
  from event
  where is_settlement and grp is not null
), valid as (
  select stream, grp, type,
    if(wait_ms between 0 and 34560000000, wait_ms, null) as wait_ms,
    if(run_ms between 0 and 34560000000, run_ms, null) as run_ms,
    coalesce(wait_ms not between 0 and 34560000000, false) or coalesce(run_ms not between 0 and 34560000000, false)
      or coalesce(held_ms not between 0 and 34560000000, false) as is_skewed
  from measured
), ranked as (
  select stream, grp, type, count_if(is_skewed) as skewed,
    count(wait_ms) as waits, percentile_disc(:shares) within group (order by wait_ms) as wait, max(wait_ms) as max_wait,
    count(run_ms) as runs, percentile_disc(:shares) within group (order by run_ms) as run, max(run_ms) as max_run
  from valid
  group by stream, grp, type
)
select stream, grp as `group`, type, measure, n, quantiles, max
from ranked lateral view stack(3,
  'wait', waits, wait, max_wait, 'run', runs, run, max_run, 'skewed', skewed, null, null) as measure, n, quantiles, max
where n > 0
