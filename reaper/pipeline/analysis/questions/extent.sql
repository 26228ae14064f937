-- From when until when did something happen, and how much?
select min(at_ms) as first_ms, max(at_ms) as last_ms, count(*) as events from event
