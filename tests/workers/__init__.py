"""Tests of workers on real servers.

The names of the tests of a rule of docs/protocol.md begin with its number, so ``pytest -k test_w3_`` runs those of W3:

W1  test_timeouts, test_leaving, test_heartbeat: no ack after a handler was told to stop
W2  test_settlement: one settlement call at a time, sent again with its number
W3  test_isolation: a quarantined job runs alone
W4  test_isolation: a heartbeat reports the state of the handler
W5  test_delivered_anew: an entry that comes again
W6  test_vanished: when a delivery is held again
W7  test_claiming, and tests/faults/test_in_place.py on servers with CLAIM: the count of a read with CLAIM
W8  test_isolation: the first heartbeat of a quarantined job
"""
