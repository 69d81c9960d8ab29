"""The center, the lock, the journal and the slots of workers, as TensorFlow graphs on the parameter server.

It imports `contract` and the folders below.
"""
