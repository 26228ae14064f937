-- What do dead letters have in common? Clusters by reason, masked error text and innermost frame, the largest first,
-- each with its newest dead letter. `redriven`: how many of them an operator has redriven since.
with letter as (
  select source_stream, `group`, reason, unix_millis(at) as at_ms, seq, id, job, error, traceback, consumers, deliveries,
    trim(substring(
      regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(regexp_replace(
      regexp_replace(regexp_replace(coalesce(error, ''),
        :uuid, '<uuid>'), :quoted, '<text>'), :double_quoted, '<text>'), :url, '<url>'), :path, '<path>'), :hex, '<hex>'),
        :digest, '<hex>'), :number, '<n>'), :blanks, ' '), 1, :pattern_length)) as pattern,
    if(regexp_extract(coalesce(traceback, ''), :frame, 2) = '', '', concat(
      regexp_extract(traceback, :frame, 1), ':', regexp_extract(traceback, :frame, 2))) as frame
  from dead_letters
  where source_stream is not null and `group` is not null
    and date >= to_date(:earliest) and date <= to_date(:latest) and at < :latest
    and (:since is null or (date >= to_date(:since) and at >= :since))
    and (:until is null or (date <= to_date(:until) and at < :until))
    and (:groups = '[]' or array_contains(from_json(:groups, 'array<string>'), `group`)
      or array_contains(from_json(:groups, 'array<string>'), concat(source_stream, '/', `group`)))
), signed as (
  select letter.*, redriven.id is not null as given_back,
    substring(sha2(concat_ws('\n', coalesce(reason, ''), pattern, frame), 256), 1, :signature_length) as signature
  from letter left join (select distinct grp as `group`, entry as id from rare where event = 'redriven') redriven
    using (`group`, id)
), ranked as (
  select *,
    row_number() over (partition by source_stream, `group`, signature order by at_ms desc, seq desc) as place,
    count(*) over (partition by source_stream, `group`, signature) as n,
    count_if(given_back) over (partition by source_stream, `group`, signature) as redriven,
    min(at_ms) over (partition by source_stream, `group`, signature) as first_ms,
    max(at_ms) over (partition by source_stream, `group`, signature) as last_ms
  from signed
)
select source_stream, `group`, signature, reason, pattern, frame, n, redriven, first_ms, last_ms, id, job, error,
  traceback, consumers, deliveries
from ranked
where place = 1
order by n desc, source_stream, `group`, signature
limit 200
