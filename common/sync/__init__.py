"""The synchronization rules of the algorithms: asynchronous, bounded staleness, barrier, all-reduce, one worker.

A rule builds the exchange of a message for a reply, out of the operations that the parameter server offers (`store`).
The folder imports only the lowest modules: `arguments`, `errors`, `files`, `reports`, `spec`, `waiting`.
"""
