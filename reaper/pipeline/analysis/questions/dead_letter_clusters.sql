-- What do dead letters have in common? Clusters by reason, masked error text and innermost frame, the largest first,
-- each with its newest dead letter. `redriven`: how many of them an operator has redriven since.
with letter as (
  select source_stream, `group`, reason, unix_millis(at) as at_ms, seq, id, job, error, traceback, consumers, deliveries,
    trim(substring(
      regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(coalesce(error, ''),
        r"(?<![0-9A-Za-z_])'[^'\n]*'(?![0-9A-Za-z_])", '<text>'),
        r'"[^"\n]*"', '<text>'),
        r'[a-z][a-z0-9+]*://[^ \t\n]+|(?<![0-9A-Za-z_])(?:[A-Za-z]:[\\]|[.]{0,2}/)[^ \t\n:,;)\]]+', '<path>'),
        r'[0-9A-Za-z_-]*[0-9](?:[.:,-]?[0-9A-Za-z_])*', '<n>'),
        r'[ \t\r\n]+', ' '), 1, 400)) as pattern,
    regexp_replace(regexp_extract(coalesce(traceback, ''),
      r'(?s).*File "(?:[^"\n]*[/\\])?([^"/\\\n]*", line [0-9]+, in [^\n]+)', 1), '", line [0-9]+, in ', ':') as frame
  from dead_letters
  where source_stream is not null and `group` is not null
    and date >= to_date(:earliest) and date <= to_date(:latest) and at < :latest
    and (:since is null or (date >= to_date(:since) and at >= :since))
    and (:until is null or (date <= to_date(:until) and at < :until))
    and (:groups = '[]' or array_contains(from_json(:groups, 'array<string>'), `group`)
      or array_contains(from_json(:groups, 'array<string>'), concat(source_stream, '/', `group`)))
), cluster as (
  select source_stream, `group`, reason, pattern, frame, count(*) as n, count(redriven.id) as redriven,
    min(at_ms) as first_ms, max(at_ms) as last_ms,
    max_by(struct(id, job, error, traceback, consumers, deliveries), struct(at_ms, seq)) as newest
  from letter left join (select distinct grp as `group`, entry as id from story where event = 'redriven') redriven
    using (`group`, id)
  group by source_stream, `group`, reason, pattern, frame
)
select source_stream, `group`, reason, pattern, frame, n, redriven, first_ms, last_ms, newest.*
from cluster
order by n desc, source_stream, `group`, reason, pattern, frame
limit 200
