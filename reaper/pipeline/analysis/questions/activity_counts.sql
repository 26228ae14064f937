-- How often did each event happen, from when until when? One row for each group, event, and detail of it.
select stream, grp as `group`, event, done_in, verb, sum(n) as n,
  min(first_ms) as first_ms, max(last_ms) as last_ms
from activity
group by stream, grp, event, done_in, verb
