-- How old were deliveries when a leader's scan saw that they had gone? Workers that journal nothing leave only this.
-- An age lies from `at_least_ms` to `below_ms`; no upper bound is known if that is null.
select stream, grp as `group`, age[0] as at_least_ms, try_element_at(age, 2) as below_ms, sum(try_element_at(age, 3)) as n
from (
  select stream, grp, explode(from_json(get_json_object(extra, '$.gone_ages'), 'array<array<bigint>>')) as age
  from rare
  where event = 'scanned' and grp is not null
)
where try_element_at(age, 1) >= 0 and try_element_at(age, 3) > 0
group by stream, grp, age[0], try_element_at(age, 2)
