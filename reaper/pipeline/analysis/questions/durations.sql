-- How long do jobs wait and run, and how long does a worker hold them? Exact quantiles, by nearest rank.
-- `wait` and `run` are of acknowledged deliveries, `held` of all except those that were handed back.
-- A duration that is negative or longer than 400 days is none, because a clock was set while it was measured. The
-- deliveries that have one are counted as `skewed`.
with measured as (
  select stream, grp, type, if(event = 'acked', wait_ms, null) as wait_ms, if(event = 'acked', run_ms, null) as run_ms,
    if(event <> 'handed_back', greatest(at_ms - delivered_ms, run_ms), null) as held_ms
  from event
  where is_settlement and grp is not null
), valid as (
  select stream, grp, type,
    if(wait_ms between 0 and 34560000000, wait_ms, null) as wait_ms,
    if(run_ms between 0 and 34560000000, run_ms, null) as run_ms,
    if(held_ms between 0 and 34560000000, held_ms, null) as held_ms,
    coalesce(wait_ms not between 0 and 34560000000, false) or coalesce(run_ms not between 0 and 34560000000, false)
      or coalesce(held_ms not between 0 and 34560000000, false) as is_skewed
  from measured
), ranked as (
  select stream, grp, type, count_if(is_skewed) as skewed,
    count(wait_ms) as waits, percentile_disc(:shares) within group (order by wait_ms) as wait, max(wait_ms) as max_wait,
    count(run_ms) as runs, percentile_disc(:shares) within group (order by run_ms) as run, max(run_ms) as max_run,
    count(held_ms) as helds, percentile_disc(:shares) within group (order by held_ms) as held, max(held_ms) as max_held
  from valid
  group by stream, grp, type
)
select stream, grp as `group`, type, measure, n, quantiles, max
from ranked lateral view stack(4,
  'wait', waits, wait, max_wait, 'run', runs, run, max_run, 'held', helds, held, max_held, 'skewed', skewed, null, null)
  as measure, n, quantiles, max
where n > 0
