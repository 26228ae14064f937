-- How long did the jobs of a crashed worker take until they ran again, from its last sign of life?
-- And for how long did workers show no sign of life that settled too late?
select stream, grp as `group`, measure, n, quantiles, max, visibility_ms
from (
  select stream, grp, max(crash_visibility_ms) as visibility_ms,
    count(again_ms) as crashes, percentile_disc(:shares) within group (order by again_ms) as again, max(again_ms) as max_again,
    count(silent_ms) as late, percentile_disc(:shares) within group (order by silent_ms) as silent,
    max(silent_ms) as max_silent
  from delivery
  where again_ms is not null or silent_ms is not null
  group by stream, grp
)
lateral view stack(2, 'again', crashes, again, max_again, 'silent', late, silent, max_silent)
  as measure, n, quantiles, max
where n > 0
