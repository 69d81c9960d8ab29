"""The run as its tasks see it. It imports `record` and the folders below that.

* the run: `options`, and `job` with its `plan` (the rounds of each worker); the graph of a task in `graph`, the
  `requests` to the ps, and the calls of each role in `calls` (evaluator), `state_calls` and `worker_calls`;
* a worker: its rounds in `worker_loop`, its position in `progress`, its waits at a barrier and what it does after a
  failure in `worker_recovery`, copies of its local state in `local_state`;
* the chief: the global state in `state_manager`, checkpoints in `checkpointing`, the pause for them in `standstill`;
* the evaluator: `evaluator`, with `recorder`, `observer`, `round_record`, `results` and `ending`; `follow` reads
  checkpoints.
"""
