-- How long did workers hold executions, and how many executions outlasted the visibility timeout?
-- One row for each group, job type, kind of fact and bin of durations. A bin is 4.4 % wide; `ms` is its longest
-- duration, `n` counts. `strangers` counts the facts about consumers that are no workers of stream-reaper.
--   execution  a delivery that its worker settled, from delivery to settlement
--   late       one of them was settled after its recovery, so its worker was alive
--   stall      a delivery outlasted the timeout
--   twice      the second delivery of a job did, so the job is slow or poison
--   in_force   an event names this visibility timeout; `last_ms` is when it did so last
with execution as (
  select stream, grp, type, at_ms, is_stranger, greatest(at_ms - delivered_ms, run_ms) as ms
  from event
  where is_settlement and event <> 'handed_back' and grp is not null
), timed as (
  select *, is_stall and idle_ms between 0 and 34560000000 and visibility_ms between 0 and 34560000000 as outlasted
  from story
  where grp is not null and event <> 'acked'
), other as (
  select stream, grp, at_ms, is_stranger, inline(array(
        if(is_settlement and event = 'refused', struct('late' as kind, 0L as ms), null),
        if(outlasted, struct('stall' as kind, 0L as ms), null),
        if(outlasted and delivery = 2, struct('twice' as kind, 0L as ms), null),
        if(visibility_ms > 0, struct('in_force' as kind, visibility_ms as ms), null)))
  from timed
)
select stream, grp as `group`, type, 'execution' as kind, floor(log2(greatest(ms, 1)) * 16) as bin, max(ms) as ms,
  count(*) as n, count_if(is_stranger) as strangers, max(at_ms) as last_ms
from execution
where ms between 0 and 34560000000
group by stream, grp, type, floor(log2(greatest(ms, 1)) * 16)
union all
select stream, grp, '', kind, if(kind = 'in_force', ms, 0), max(ms), count(*),
  count_if(is_stranger), max(at_ms)
from other
where ms between 0 and 34560000000
group by stream, grp, kind, if(kind = 'in_force', ms, 0)
