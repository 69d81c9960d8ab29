"""Data and models, by name or the user's own: checks, shards and batches. It imports `worker` and lower packages."""

USUAL_BATCH = 32  # examples of a step, where neither the user nor the data say it
