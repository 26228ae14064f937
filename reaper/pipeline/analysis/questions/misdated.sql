-- How many events are left out because they claim to be from before 2018 or from the future? Whatever the scope.
select stream, count(*) as events
from events
where date < to_date(:earliest) or (date >= to_date(:latest) and at >= :latest)
group by stream
