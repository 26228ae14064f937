"""Maintenance of a group, by a leader with its fence or by embedded workers.

It makes due jobs ready, releases quarantined jobs, and deletes silent consumers. Each is one step, which also waits
until the next step is due. The caller repeats the steps with its own authority, and decides about rejections and
errors. The scripts do each thing once, however many callers there are. No module here depends on the loop of a worker
or the term of a leader.
"""
