"""Clusters: which tasks there are and where they listen, how a program learns which of them it is, and how the tasks
of several machines find each other and learn how the run ended. It imports `problems` and what is below.
"""
