"""The record of a run, and who is told of it.

Its folder, the trace of events, metrics, checkpoints, display, plot, callbacks. It imports `cluster` and what is
below.
"""
