"""A test of the tests: small changes that each break one thing, and the tests that find them.

A mutant is data (the ``.toml`` files here, one a subject): what it breaks, in words; which exact text of which file;
and what stands there instead. `test_mutants` sees in ``make test`` that each text still occurs exactly once, and that
what stands there instead can be loaded. ``make mutants`` runs the tests on each mutant, from cheap to dear, until one
of them fails, and writes the result to docs/internals/mutants.md. A mutant that survives: a test is missing, or it
breaks nothing after all.
"""
