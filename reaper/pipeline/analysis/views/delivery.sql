-- One row for each delivery of a job that has a story: when it started, how it ended, and why it was not the first.
-- `start` counts the starts of the job, from 1. `cause` says why the job started again: it is what became of the start
-- before. `again_ms` is the time from the last sign of life of a crashed worker until its job started again.
with found as (
  select job_hash, stream, grp, job, generation, entry, number,
    min(coalesce(delivered_ms, if(is_stall, at_ms - greatest(idle_ms, 0), at_ms))) as seen_ms,
    min(begun_ms) as begun_ms,
    bool_or(is_settlement and begun_ms is null) as waited,
    max(if(run_ms >= 0, run_ms, null)) as run_ms,
    bool_or(event = 'acked' or (event = 'rejected' and verb <=> 'ack')) as completed,
    count_if(event = 'acked') as acks,
    max(if(is_settlement, at_ms, null)) as settled_ms,
    min(if(is_stall, at_ms, null)) as stalled_ms,
    max(if(is_stall, idle_ms, null)) as idle_ms,
    max(if(is_stall, visibility_ms, null)) as visibility_ms,
    bool_or(event = 'nacked' and not verb <=> 'retry') as failed,
    bool_or(event = 'nacked' and verb <=> 'retry') as retried,
    bool_or(event = 'handed_back' or reason <=> 'given_back') as handed_back
  from story
  where is_of_job and entry is not null and event not in ('redriven', 'requeued', 'lost_payload', 'lost_delivery')
    and not (event = 'recovered' and reason <=> 'released')
  group by job_hash, stream, grp, job, generation, entry, number
), started as (
  -- A delivery that was settled without a start waited in its worker. A stalled one counts as started: most were, and
  -- the journal does not tell.
  select *, coalesce(begun_ms, if(waited, null, seen_ms)) as started_ms from found
), ordered as (
  -- By count and not by time: a settlement may come after those of later deliveries.
  select *,
    min(started_ms) over (partition by job_hash, stream, grp, job order by generation, number, seen_ms, started_ms, entry
      rows between 1 following and unbounded following) as next_started_ms,
    count(started_ms) over (partition by job_hash, stream, grp, job order by generation, number, seen_ms, started_ms, entry
      rows between unbounded preceding and current row) as start,
    last_value(if(started_ms is null, null, struct(
        generation, settled_ms, run_ms, stalled_ms, idle_ms, visibility_ms, failed, retried, handed_back)), true)
      over (partition by job_hash, stream, grp, job order by generation, number, seen_ms, started_ms, entry
      rows between unbounded preceding and 1 preceding) as before
  from started
), explained as (
  select *,
    case
      when started_ms is null or before is null then null
      when before.generation < generation then 'redriven'
      when before.stalled_ms is null then case
        when before.failed then 'failed'
        when before.retried then 'retried'
        when before.handed_back then 'handed_back'
        else 'unexplained' end
      when before.idle_ms >= 0 and before.idle_ms < before.visibility_ms then 'early_recovery'
      when before.settled_ms is not null and before.run_ms >= before.visibility_ms then 'slow'
      when before.settled_ms is not null then 'late_settlement'
      else 'crash'
    end as cause
  from ordered
)
select job_hash, stream, grp, job, generation, entry, number, started_ms, next_started_ms, start, cause, completed, acks,
  if(cause = 'crash' and before.idle_ms between 0 and 34560000000,
    greatest(started_ms, before.stalled_ms) - (before.stalled_ms - before.idle_ms), null) as again_ms,
  if(cause = 'crash', before.visibility_ms, null) as crash_visibility_ms
from explained
