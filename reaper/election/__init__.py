"""Who leads: one replica of a namespace, for as long as its lease is renewed.

A replica follows (waits for the lease to be free, and attempts) or leads (works while it renews). The change from one
to the other is a term, with a token that only grows.

What holds here. Leadership ends by itself: the work runs inside a cancel scope whose deadline is the trust window,
counted from before the last renewal that succeeded. Renewed, not ours and no answer are three outcomes; what is not
ours is never released. An attempt whose reply was lost may have won, so its value counts as ours.

Not promised: that at most one replica believes it leads at any instant. That is why every write is fenced.
"""
