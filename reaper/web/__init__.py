"""A replica over HTTP: probes, the status page, and its actions. Needs the extra ``web``; nothing else imports it."""
