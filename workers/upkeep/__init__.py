"""Maintenance of a group, by the holder of its lease or by embedded workers.

The caller repeats it with its own authority, and decides about rejections and errors. The script acts once, however
many callers there are. No module here depends on the loop of a worker or the term of a holder.
"""
