-- Why did jobs start again, how often, and how many jobs?
select stream, grp as `group`, cause, count(*) as starts, count(distinct job) as jobs
from delivery
where cause is not null
group by stream, grp, cause
