"""Gates: who waits for whom.

A gate builds the exchange of a message for a reply, out of what it may ask of the parameter server. It imports
nothing but the ground: `errors`, `files`, `reports`, `spec`, `waiting`.
"""
