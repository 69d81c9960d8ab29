"""The timeline of a run: when workers computed, waited, pushed and pulled.

* its rounds, read from the record: `lanes`;
* a trace for Perfetto and chrome://tracing: `trace_export`;
* a picture: `picture`.

It imports `record` and what is below.
"""
