#!/bin/sh
# Starts a server and four nodes on this machine, as separate processes on loopback, with TLS and node keys. Needs no other network.
# Usage: sh examples/deploy/loopback.sh [FOLDER]   (needs pip install 'fedveil[flower]' and the MNIST files)
set -eu
here=$(dirname "$0")
folder=${1:-$(mktemp -d)/federation}

fedveil deploy init "$folder" --nodes 4 --shards "$here/mnist.toml"
started=""
trap 'kill $started 2>/dev/null; wait' EXIT INT TERM
fedveil deploy server "$folder" & started="$!"
for n in 0 1 2 3; do
    fedveil deploy node "$folder/node-$n" & started="$started $!"
done
# `run` needs the port of the server. The nodes may join later.
until fedveil deploy status "$folder" --json 2>/dev/null | grep -q '"up": true'; do sleep 1; done
fedveil deploy run "$here/mnist.toml" --federation "$folder" --out "$folder/run"
for n in 0 1 2 3; do fedveil deploy status "$folder/node-$n"; done
