"""Clusters: which tasks there are, where they listen, and which of them a program is.

And how the tasks of several machines find each other, and learn how the run ended. It imports `problems` and what is
below.
"""
