"""The synchronization rules of the algorithms: asynchronous, bounded staleness, barrier, all-reduce, one worker.

A rule builds the exchange of a message for a reply, out of the operations that the parameter server offers (`store`).
The folder imports only the modules below all folders, such as `arguments`, `errors`, `files`, `lazy`, `record_format`.
"""
