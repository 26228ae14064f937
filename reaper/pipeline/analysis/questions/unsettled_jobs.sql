-- Which jobs does the journal leave open? The first ones of each group and last event, with how many there are.
-- `last_entry` is where the job was last known to lie; null for a quarantined job or a scheduled retry, which lies in no
-- stream. A rejected settlement says where the job had been, so it is the last word only if there is no other.
with open as (
  select job_hash, stream, grp, job
  from story
  where is_of_job
  group by job_hash, stream, grp, job
  having max(if(event in ('acked', 'dead_lettered', 'lost_payload'), at_ms, null)) is null
    or max(if(event in ('acked', 'dead_lettered', 'lost_payload'), at_ms, null))
      < max(if(event in ('recovered', 'quarantined', 'nacked', 'handed_back', 'redriven', 'requeued'), at_ms, null))
), last as (
  select story.*, row_number() over (
    partition by job_hash, stream, grp, job order by event = 'rejected', at_ms desc, seq desc) as age
  from story left semi join open using (job_hash, stream, grp, job)
  where is_of_job
), ranked as (
  select stream, grp, job, event, at_ms,
    if(event in ('quarantined', 'rejected') or due_ms is not null, null, coalesce(new_entry, entry)) as last_entry,
    count(*) over (partition by stream, grp, event) as n,
    row_number() over (partition by stream, grp, event order by at_ms, job) as place
  from last
  where age = 1
)
select stream, grp as `group`, job, event, at_ms, last_entry, n from ranked where place <= 10000
