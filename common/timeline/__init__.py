"""The timeline of a run: when workers computed, waited, pushed and pulled.

* `lanes`: the rounds of a run, read from its record;
* `trace_export`: a trace for Perfetto and chrome://tracing;
* `picture`: a picture.

It imports `record` and the packages below.
"""
