"""Launching: the tasks of a run as processes or threads, watched until all have ended, whatever happens.

It knows how a task is started, connected and ended (`backends`), what each event means for the run (`judge`), and
leaves what a task does to `run`. It imports `tasks` and what is below.
"""
