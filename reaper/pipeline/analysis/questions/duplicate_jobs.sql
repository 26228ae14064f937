-- Which jobs did their work more than once, and why? The first ones of each group and cause, with how many there are.
-- Work is complete when it was acknowledged, each time, and when that was rejected because it came too late. The cause
-- is that of the job's last second start.
with twice as (
  select job_hash, stream, grp, job, generation, sum(if(completed, greatest(acks, 1), 0)) as times,
    max(if(cause is null, null, struct(start, cause))).cause as cause
  from delivery
  group by job_hash, stream, grp, job, generation
), ranked as (
  select stream, grp, job, generation, times, coalesce(cause, 'unexplained') as cause,
    count(*) over (partition by stream, grp, coalesce(cause, 'unexplained')) as n,
    row_number() over (partition by stream, grp, coalesce(cause, 'unexplained') order by job, generation) as place
  from twice
  where times > 1
)
select stream, grp as `group`, job, generation, times, cause, n from ranked where place <= 10000
