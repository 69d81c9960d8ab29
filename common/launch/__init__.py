"""Launching: the tasks of a run as processes or threads, supervised until all have ended, also after failures.

`run` starts a run; `launcher` and `threads` start its tasks; `run_state` decides what each event means for the run. The
work of a task is in `tasks`. The folder imports `tasks` and lower modules.
"""
