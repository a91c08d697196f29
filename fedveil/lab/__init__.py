"""The lab: a local web page for experiments. Every action on it is a config that can be scripted.

| module | what it does |
|---|---|
| `server` | a running lab: options, worker pools, web server |
| `app`, `guard` | pages and JSON API; who may use them |
| `requests`, `script` | requests and their forms; a request as a TOML file and as a command line |
| `pool`, `worker`, `tasks` | jobs and worker processes; what workers compute |
| `leak`, `account`, `pictures` | the live attack; ε for every adversary; uploads |
| `runs`, `measured` | run folders, and the measurements that come with the lab |

The web server never imports JAX. Everything that computes runs in worker processes, so the pages respond while a worker
compiles, trains or dies.
"""
