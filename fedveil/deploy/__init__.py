"""The same defences on real machines, with Flower as the engine.

A node and the server compute with the functions of `fedveil.simulation`. This package adds what only real machines need:
what a node allows (`limits`), the account on its own disk (`account`), messages that are checked before use (`wire`), and
the thin layer over Flower's apps and commands. Only `client_app`, `server_app` and `credentials` need the extra `[flower]`.
"""
