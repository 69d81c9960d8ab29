"""Data and models, by name or the user's own: checks, shards and batches. It imports `worker` and lower packages."""
