-- All events except the acknowledgments of jobs that simply went well: a few per cent, which most questions are about.
-- A job that went well leaves one `acked` event and no other: its weight is 1. If two jobs have the same hash, one job
-- too many is here, which does no harm. Hardly any hash occurs twice, so they are added up after a shuffle only.
with hashed as (
  select *, xxhash64(stream, grp, job) as job_hash from event where is_of_job or event <> 'acked'
), troubled as (
  select job_hash
  from (select /*+ REPARTITION(job_hash) */ job_hash, if(event = 'acked', 1L, 4294967296L) as weight from hashed)
  group by job_hash
  having sum(weight) <> 1
)
select /*+ BROADCAST(troubled), REPARTITION(stream, grp, job) */
  job_hash, stream, grp, job, event, at_ms, seq, entry, new_entry, consumer, delivery, generation, mode, reason, verb,
  token, holder, delivered_ms, begun_ms, run_ms, idle_ms, visibility_ms, due_ms, is_stall, is_settlement, is_of_job,
  -- The count of the delivery. A quarantined job that was not released, or that may never have begun, is journaled with
  -- the count of the delivery before.
  delivery + if(event = 'quarantined' and reason in ('not_released', 'never_arrived'), 1, 0) as number
from hashed left semi join troubled using (job_hash)
