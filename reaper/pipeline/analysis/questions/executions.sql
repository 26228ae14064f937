-- How long did workers hold executions, and how many executions outlasted the visibility timeout?
-- One row for each group, job type, kind of fact and bin of durations. A bin is 4.4 % wide; `ms` is its longest
-- duration, `n` counts. `strangers` counts the facts about consumers that are no workers of stream-reaper.
--   execution  a delivery that its worker settled, from delivery to settlement
--   late       one of them was settled after its recovery, so its worker was alive
--   stall      a delivery outlasted the timeout
--   twice      the second delivery of a job did, so the job is slow or poison
--   in_force   an event names this visibility timeout; `last_ms` is when it did so last
with execution as (
  select stream, grp, type, 'execution' as kind, greatest(at_ms - delivered_ms, run_ms) as ms, 1L as n, at_ms, consumer
  from event
  where is_settlement and event <> 'handed_back' and grp is not null
), timed as (
  select *, is_stall and idle_ms between 0 and 34560000000 and visibility_ms between 0 and 34560000000 as outlasted
  from rare
  where grp is not null
), other as (
  select stream, grp, '' as type, inline(array(
        if(is_settlement and event = 'refused', struct('late' as kind, 0L as ms, 1L as n), null),
        if(outlasted, struct('stall' as kind, 0L as ms, 1L as n), null),
        if(outlasted and delivery = 2, struct('twice' as kind, 0L as ms, 1L as n), null),
        if(visibility_ms > 0, struct('in_force' as kind, visibility_ms as ms, 1L as n), null))),
    at_ms, consumer
  from timed
)
select stream, grp as `group`, type, kind, bin, max(ms) as ms, sum(n) as n,
  sum(if(not consumer rlike '\\.[0-9a-f]{12}$', n, 0)) as strangers, max(last_ms) as last_ms
from (
  -- A consumer has many facts, and one name.
  select stream, grp, type, kind, consumer, if(kind = 'in_force', ms, floor(log2(greatest(ms, 1)) * 16)) as bin,
    max(ms) as ms, sum(n) as n, max(at_ms) as last_ms
  from (select * from execution union all select * from other)
  where ms between 0 and 34560000000 and n > 0
  group by stream, grp, type, kind, consumer, if(kind = 'in_force', ms, floor(log2(greatest(ms, 1)) * 16))
)
group by stream, grp, type, kind, bin
