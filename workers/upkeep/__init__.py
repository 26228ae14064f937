"""What is done for a whole group, by whoever may: a leader with its fence, or embedded workers by agreement.

Jobs that are due become ready, quarantined jobs are released, the house is kept. Each is one step, which also waits
until it is time for the next one. Whoever looks after the group repeats the steps, with its own authority in the calls:
it decides what becomes of a refusal or an error, and whom it tells. Each thing happens once, however many look after a
group: the scripts see to that. Nothing here knows the loop of a worker, or the term of a leader.
"""
