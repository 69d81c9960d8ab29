"""Clusters: the tasks of a run, their addresses, and the task that a program is.

On several machines, `membership` (with `arrival` and `departure`) lets the tasks find each other, decides
which of them may be lost, and tells all of them how the run ended. The machines of a simulation are described in
`platform`, with the `distributions` of their step times. The folder imports `data` and lower modules.
"""
