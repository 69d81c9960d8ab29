"""How a vector travels: its slices, codecs, shared memory, sockets, and channels between workers.

It imports `sync` and the modules below all folders.
"""
