"""The run as its tasks see it. It imports `record` and the folders below that.

* the run: `options`, `job`, with its parts `plan` (rounds of each worker), `coordination` (ps or collective),
  `stopping` and `task_files`; the graph of a task in `graph`, the `requests` to the ps, and the calls of each role in
  `calls` (evaluator), `state_calls` and `worker_calls`;
* a worker: its rounds in `worker_loop`, its position in `progress`, waits in `barrier_wait`, and after a failure
  `worker_recovery`;
* the chief: the global state in `state_manager`, checkpoints in `checkpointing`;
* the evaluator: `evaluator`, with `recorder`, `observer` and `ending`; `evaluation` on the test data; `follow`
  reads checkpoints.
"""
