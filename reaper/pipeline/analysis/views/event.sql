-- The lifecycle events that a report is about, and the facts about one event that several questions need.
-- An event that claims to be from before 2018 (no Redis had streams then) or from the future is in `misdated`.
-- An event of no group, such as a fault of a drill, belongs to every scope.
with scoped as (
  select *, `group` as grp, unix_millis(at) as at_ms, delivered_ms - ready_ms as waited_ms
  from events
  where date >= to_date(:earliest)
    and date <= to_date(:latest) and at < :latest
    and (:since is null or (date >= to_date(:since) and at >= :since))
    and (:until is null or (date <= to_date(:until) and at < :until))
    and (:groups = '[]' or `group` is null or array_contains(from_json(:groups, 'array<string>'), `group`)
      or array_contains(from_json(:groups, 'array<string>'), concat(
        regexp_replace(regexp_replace(stream, ':journal$', ''), '^\\{([^}]+)\\}$', '$1'), '/', `group`)))
), measured as (
  select *,
    -- It ends a delivery that stalled. A worker that gives up its own delivery writes no idle time.
    idle_ms is not null and event in ('recovered', 'quarantined', 'dead_lettered') as is_stall,
    -- The worker that ran the job wrote it, at the end of the delivery.
    run_ms is not null and event in ('acked', 'nacked', 'handed_back', 'dead_lettered', 'rejected') as is_settlement,
    job is not null and grp is not null and event in (
      'acked', 'nacked', 'handed_back', 'scheduled', 'recovered', 'quarantined', 'dead_lettered', 'redriven', 'rejected',
      'lost_payload', 'lost_delivery', 'lost_consumer', 'requeued',
      'lease_taken', 'lease_left', 'fault_injected') as is_of_job
  from scoped
)
select stream, grp, event, at_ms, seq, job, entry, new_entry, consumer, coalesce(delivery, 0) as delivery,
  coalesce(generation, 0) as generation, mode, reason, verb, coalesce(type, '') as type, token, holder,
  delivered_ms, begun_ms, run_ms, idle_ms, visibility_ms, due_ms, is_stall, is_settlement, is_of_job,
  -- A worker follows the server's clock with a small error, so a small negative wait is no wait.
  if(waited_ms between -60000 and 0, 0, waited_ms) as wait_ms
from measured
