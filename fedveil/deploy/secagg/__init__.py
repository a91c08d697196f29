"""Secure aggregation: the server learns the sum of the nodes' integer vectors and nothing else about them.

Double masking (Bonawitz et al. 2017) on a sparse graph that the nodes choose themselves (Bell et al. 2020, malicious
server).
`member` is a node's side, `aggregator` the server's. Both only turn messages into messages: no sockets, no files, no JAX.
"""
