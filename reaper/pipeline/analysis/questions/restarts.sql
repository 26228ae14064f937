-- How long did the jobs of a crashed worker take until they ran again, from its last sign of life?
-- That is the visibility timeout, the overshoot, and the wait for a worker, as one figure.
select stream, grp as `group`, max(crash_visibility_ms) as visibility_ms, count(again_ms) as n,
  percentile_disc(:shares) within group (order by again_ms) as quantiles, max(again_ms) as max
from delivery
where again_ms is not null
group by stream, grp
