-- Which workers do deliveries stall in? A worker is a consumer without the nonce of its process.
with process as (
  select stream, grp, consumer,
    sum(if(is_stall or event in ('acked', 'nacked', 'handed_back', 'dead_lettered'), n, 0)) as deliveries,
    sum(if(is_stall, n, 0)) as stalls
  from activity
  where consumer is not null and grp is not null
  group by stream, grp, consumer
), worker as (
  select stream, grp, regexp_replace(consumer, '~[0-9a-f]{12}$', '') as worker, count(*) as processes,
    sum(deliveries) as deliveries, sum(stalls) as stalls
  from process
  group by stream, grp, regexp_replace(consumer, '~[0-9a-f]{12}$', '')
)
select stream, grp as `group`, worker, processes, deliveries, stalls,
  round(stalls * 1000 / deliveries, 3) as permille
from worker
where deliveries > 0
order by stalls desc, stream, grp, worker
limit 10000
