-- How long did workers hold executions, and how many executions outlasted the visibility timeout?
-- One row for each group, job type, kind of fact and bin of durations. A bin is 4.4 % wide; `ms` is its longest
-- duration, `n` counts. `strangers` counts the facts about consumers that are no workers of stream-reaper.
--   execution  a delivery that its worker settled, from delivery to settlement
--   late       one of them was settled after its recovery, so its worker was alive
--   stall      a delivery outlasted the timeout
--   twice      the second delivery of a job did, so the job is slow or poison
--   scanned    a leader's scan saw that a delivery had gone; `ms` is the upper bound of its age
--   overdue    the same, without an upper bound
--   in_force   an event names this visibility timeout; `last_ms` is when it did so last
with event as (
  select *, unix_millis(at) as at_ms,
    run_ms is not null and event in ('acked', 'nacked', 'dead_lettered', 'refused') as is_execution,
    event in ('recovered', 'suspected', 'dead_lettered') and idle_ms between 0 and 34560000000
      and visibility_ms between 0 and 34560000000 and coalesce(mode, '') <> 'adopt' as is_stall
  from {events}
  -- A wrong clock dates events to before Redis had streams, or to the future.
  where `group` is not null and date >= date'2018-01-01' and at < current_timestamp() + interval 1 day
), fact as (
  select stream, `group`, at_ms, is_execution, type, not consumer rlike '[.][0-9a-f]{{12}}$' as is_stranger,
    inline(concat(
      array(
        if(is_execution, struct('execution' as kind, greatest(at_ms - delivered_ms, run_ms) as ms, 1L as n), null),
        if(is_execution and event = 'refused', struct('late' as kind, 0L as ms, 1L as n), null),
        if(is_stall, struct('stall' as kind, 0L as ms, 1L as n), null),
        if(is_stall and delivery = 2, struct('twice' as kind, 0L as ms, 1L as n), null),
        if(visibility_ms > 0, struct('in_force' as kind, visibility_ms as ms, 1L as n), null)),
      if(event = 'scanned', transform(
        coalesce(from_json(get_json_object(extra, '$.gone_ages'), 'array<array<bigint>>'), array()),
        age -> struct(if(get(age, 1) is null, 'overdue', 'scanned') as kind,
          if(get(age, 0) >= 0, coalesce(get(age, 1), 0L), null) as ms, get(age, 2) as n)), array())))
  from event
)
select stream, `group`, if(kind = 'execution', coalesce(type, ''), '') as type, kind,
  if(kind = 'in_force', ms, floor(log2(greatest(ms, 1)) * 16)) as bin,
  max(ms) as ms, sum(n) as n, sum(if(is_stranger, n, 0)) as strangers, max(at_ms) as last_ms
from fact
where ms between 0 and 34560000000 and n > 0
group by 1, 2, 3, 4, 5
