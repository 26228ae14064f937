-- How long did workers hold executions, and how many executions outlasted the visibility timeout?
-- One row for each group, job type, kind of fact and bin of durations. A bin is 4.4 % wide; `ms` is its longest
-- duration, `n` counts. `strangers` counts the facts about consumers that are no workers of stream-reaper.
--   execution  a delivery that its worker settled, from delivery to settlement
--   late       one of them was settled after its recovery, so its worker was alive
--   stall      a delivery outlasted the timeout
--   twice      the second delivery of a job did, so the job is slow or poison
--   in_force   an event names this visibility timeout; `last_ms` is when it did so last
with execution as (
  select stream, grp, type, at_ms, consumer, greatest(at_ms - delivered_ms, run_ms) as ms
  from event
  where is_settlement and event <> 'handed_back' and grp is not null
), timed as (
  select *, is_stall and idle_ms between 0 and 34560000000 and visibility_ms between 0 and 34560000000 as outlasted
  from story
  where grp is not null and event <> 'acked'
), other as (
  select stream, grp, at_ms, consumer, inline(array(
        if(is_settlement and event = 'rejected', struct('late' as kind, 0L as ms), null),
        if(outlasted, struct('stall' as kind, 0L as ms), null),
        if(outlasted and delivery = 2, struct('twice' as kind, 0L as ms), null),
        if(visibility_ms > 0, struct('in_force' as kind, visibility_ms as ms), null)))
  from timed
), counted as (
  select stream, grp, type, 'execution' as kind, floor(log2(greatest(ms, 1)) * 16) as bin, consumer, max(ms) as ms,
    count(*) as n, max(at_ms) as last_ms
  from execution
  where ms between 0 and 34560000000
  group by stream, grp, type, floor(log2(greatest(ms, 1)) * 16), consumer
  union all
  select stream, grp, '', kind, if(kind = 'in_force', ms, 0), consumer, max(ms), count(*), max(at_ms)
  from other
  where ms between 0 and 34560000000
  group by stream, grp, kind, if(kind = 'in_force', ms, 0), consumer
)
select stream, grp as `group`, type, kind, bin, max(ms) as ms, sum(n) as n,
  -- The name of a worker of stream-reaper ends with a tilde and the 12 hex digits of its process.
  sum(if(if(substr(consumer, -13, 1) = '~', unhex(substr(consumer, -12)) is null, consumer is not null), n, 0))
    as strangers,
  max(last_ms) as last_ms
from counted
group by stream, grp, type, kind, bin
