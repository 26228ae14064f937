"""The drill of the project's own tests: more faults than users play, more servers, and chaos drawn by seed.

``python -m tests.soak --help`` plays one; ``make soak`` plays chaos seed after seed.
"""
