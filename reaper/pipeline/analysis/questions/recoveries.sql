-- How long did stalled deliveries lie beyond their visibility timeout, and how long did they then wait to start again?
-- One row for each measure of a group and a way of recovery, and one for all of the group (`is_sum`).
-- Recoveries whose times cannot be, because a clock was set, are counted as `skewed`.
with recovery as (
  select /*+ SHUFFLE_HASH(delivery) */ story.stream, story.grp, story.mode, story.event as outcome, story.reason,
    if(idle_ms between 0 and 34560000000 and visibility_ms between 0 and 34560000000, idle_ms - visibility_ms, null)
      as overshoot_ms,
    coalesce(idle_ms > 34560000000, false) or coalesce(visibility_ms not between 0 and 34560000000, false) as is_skewed,
    if(next_started_ms is null, null, greatest(next_started_ms - at_ms, 0)) as wait_ms
  from story left join delivery using (job_hash, stream, grp, job, generation, entry, number)
  where is_stall and is_of_job
), ranked as (
  select stream, grp, mode, outcome, reason, grouping(mode) as is_sum,
    count(*) as recoveries, count_if(overshoot_ms < 0) as early, count_if(is_skewed) as skewed,
    count(overshoot_ms) as overshoots, percentile_disc(:shares) within group (order by overshoot_ms) as overshoot,
    max(overshoot_ms) as max_overshoot,
    count(wait_ms) as waits, percentile_disc(:shares) within group (order by wait_ms) as wait, max(wait_ms) as max_wait
  from recovery
  group by grouping sets ((stream, grp, mode, outcome, reason), (stream, grp))
)
select stream, grp as `group`, mode, outcome, reason, is_sum = 1 as is_sum, recoveries, early, measure, n, quantiles, max
from ranked lateral view stack(3,
  'overshoot', overshoots, overshoot, max_overshoot, 'wait', waits, wait, max_wait, 'skewed', skewed, null, null)
  as measure, n, quantiles, max
