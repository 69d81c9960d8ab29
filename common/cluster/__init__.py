"""Clusters: which tasks there are, where they listen, and which of them a program is.

And how the tasks of several machines find each other, who of them may be lost, and how all learn how the run ended:
`membership` is put together from `arrival`, `heartbeat` and `departure`. It imports `data` and what is below.
"""
