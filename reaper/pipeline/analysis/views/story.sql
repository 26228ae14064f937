-- All events of the few jobs that did not simply go well.
-- A job that went well leaves one `acked` event and no other: its weight is 1. If two jobs have the same hash, one job
-- too many is here, which does no harm.
with troubled as (
  select job_hash
  from (
    select xxhash64(stream, grp, job) as job_hash,
      sum(if(event = 'acked', 1L, 4294967296L)) as weight
    from event
    where is_of_job
    group by xxhash64(stream, grp, job)
  )
  where weight <> 1
)
select /*+ BROADCAST(troubled), REPARTITION(stream, grp, job) */
  stream, grp, job, event, at_ms, seq, entry, new_entry, generation, mode, reason, verb, delivered_ms, begun_ms,
  run_ms, idle_ms, visibility_ms, due_ms, is_stall, is_settlement,
  -- The count of the delivery. A quarantined job that crashed in company, or that may never have begun, is journaled with the
  -- count of the delivery before.
  delivery + if(event = 'quarantined' and reason in ('not_released', 'never_arrived'), 1, 0) as number
from event left semi join troubled on xxhash64(stream, grp, job) = job_hash
where is_of_job
