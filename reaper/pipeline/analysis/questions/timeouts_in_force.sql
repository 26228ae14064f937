-- Which visibility timeout of each group was last in force, as far as an event says so?
select stream, grp as `group`, max_by(visibility_ms, at_ms) as visibility_ms, max(at_ms) as last_ms
from rare
where visibility_ms between 0 and 34560000000 and grp is not null
group by stream, grp
