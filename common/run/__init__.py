"""The run as its tasks see it.

What is trained and how (`job`), the graph of a task, the rounds of a worker, the evaluator, and what repairs the state
after a fault. It imports `record` and what is below.
"""
