"""Deployment on real machines, with Flower as the transport.

Nodes and server call the same functions of `fedveil.simulation` as the simulator. This package adds what only real machines
need:

| module | what it does |
|---|---|
| `coordinator` | the server's side of a run: cohort, requests, replies, model update, checkpoint |
| `node` | a node's side of one round |
| `limits`, `account` | what the owner of a node allows, and the node's own privacy ledger on disk |
| `messages` | the messages between server and nodes, checked before use |
| `flower` | the Flower apps and transport, the only module that imports Flower |
| `files`, `credentials` | the folder of a federation, its keys and certificates |
| `commands`, `processes` | Flower's commands, the app that it runs, and the processes that are kept running |
| `follow`, `status` | submitting a run and following it; the state of a federation or of one node |

Only `flower` and `credentials` need the extra `[flower]`.
"""
