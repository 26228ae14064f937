"""Work for a whole group, by the holder of its lease or by embedded workers.

The caller repeats it with its own authority, and decides about declined calls and errors. The scripts act once, with
any number of callers. No module here depends on the loop of a worker or the term of a holder.
"""
