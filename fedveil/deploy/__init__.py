"""Deployment on real machines, with Flower as the transport.

Nodes and server call the same functions of `fedveil.simulation` as the simulator. This package adds what only real machines
need. Neither nodes nor the server execute code that arrives.

| module | what it does |
|---|---|
| `coordinator` | the server's side of a run: cohort, requests, replies, model update, checkpoint |
| `node` | a node's side of one round |
| `worker`, `link`, `wire` | the two processes of a node, and the messages between them |
| `limits`, `account`, `refusals` | what the owner of a node allows; the node's privacy ledger; what was refused |
| `messages` | the messages between server and nodes, checked before use |
| `secagg` | secure aggregation: the protocol by which a server learns the sum of the nodes' integers and nothing else |
| `gate` | the only process of a server that listens to the outside |
| `executor`, `serverapp`, `flower` | the processes of runs on the server; the transport over Flower's grid |
| `bundle`, `records`, `control` | the fixed app bundle, our messages as Flower's records, calls of Flower's control API |
| `files`, `credentials` | the folder of a federation, its keys and certificates |
| `commands`, `processes` | the commands of all processes, and what keeps them running |
| `follow`, `status` | submitting a run and following it; the state of a federation or of one node |

Only `control`, `executor`, `flower`, `gate`, `link`, `records`, `serverapp`,
`credentials` and `secagg` need the extra `[flower]`.
"""
