"""How many neighbours a node chooses: all others in a small cohort, O(log n) in a large one.

A node chooses k neighbours at random; they and the node itself hold the shares of its secrets, and t > 2/3 of these k + 1
open a secret. With a share `CORRUPT` of all nodes on the server's side and a share `LOST` that drop out, k is the smallest
number for which three things hold, each by a union bound over all nodes:

1. No node has more than 2t − (k + 1) − 1 corrupt neighbours. Then the server cannot collect t shares of both secrets of a
   node, because an honest holder gives out only one of them.
2. Enough neighbours of each node survive to open its secret.
3. No set of honest nodes can be cut off from the other honest nodes, even if the server hides from each node as many
   neighbours as the thresholds allow. Otherwise the server could learn the sum of that set alone.

Fixed by the protocol: a server cannot choose another degree.
"""

from __future__ import annotations

import functools
import math

CORRUPT = 0.1  # share of the cohort on the server's side for which the degree is computed
LOST = 0.1  # share of the cohort that may drop out of a round
SECURITY = -40.0  # log2 of the probability that 1 or 3 fails in a round
COMPLETION = -10.0  # log2 of the probability that a round fails because of 2
COMPLETE = 128  # in cohorts of at most this size every node is everybody's neighbour
AUDITED = 128  # signatures of nodes drawn at random that a node checks in a sparse graph


def threshold(degree: int) -> int:
    """Shares that open a secret, of a node with this many neighbours: more than two thirds of the degree + 1 holders."""
    return 2 * (degree + 1) // 3 + 1


@functools.lru_cache
def degree(nodes: int) -> int:
    """The number of neighbours that each node of a cohort chooses."""
    if nodes <= COMPLETE:
        return nodes - 1
    for k in range(16, nodes - 1, 4):
        if _holds(nodes, k):
            return k
    return nodes - 1


def _holds(nodes: int, k: int) -> bool:
    t, corrupt, lost = threshold(k), math.ceil(CORRUPT * nodes), math.ceil(LOST * nodes)
    spread = math.log2(nodes)
    if spread + _tail(nodes - 1, corrupt, k, 2 * t - k - 1) > SECURITY:
        return False
    if spread + _tail(nodes - 1, lost, k, k - t + 1) > COMPLETION:
        return False
    return _connected(nodes, corrupt, k, t)


def _connected(nodes: int, corrupt: int, k: int, t: int) -> bool:
    """Whether 3 holds: in each division of the honest nodes some node has more than k + 1 − t neighbours on the other side.

    The neighbours of different nodes are independent, so the probability is a product for each division.
    """
    honest = nodes - corrupt
    for size in range(1, honest // 2 + 1):
        sets = _log2_comb(honest, size) + math.log2(honest)
        one = size * _chernoff(k, (t - 1) / k, (nodes - 1 - honest + size) / (nodes - 1))
        other = (honest - size) * _chernoff(k, (t - 1) / k, (nodes - 1 - size) / (nodes - 1))
        if sets + one + other > SECURITY:
            return False
    return True


def _chernoff(drawn: int, share: float, expected: float) -> float:
    """A bound on log2 of the probability that a draw without replacement has more than the expected share marked."""
    if share <= expected:
        return 0.0
    rest = (1 - share) * math.log2((1 - share) / (1 - expected)) if share < 1 else 0.0
    return -drawn * (share * math.log2(share / expected) + rest)


def _tail(population: int, marked: int, drawn: int, at_least: int) -> float:
    """log2 of the probability that a draw without replacement has `at_least` marked elements."""
    top = min(marked, drawn)
    if at_least <= max(0, drawn - (population - marked)):
        return 0.0
    if at_least > top:
        return -math.inf
    whole = _log2_comb(population, drawn)
    terms = [
        _log2_comb(marked, m) + _log2_comb(population - marked, drawn - m) - whole for m in range(at_least, top + 1)
    ]
    largest = max(terms)
    return min(0.0, largest + math.log2(sum(2.0 ** (term - largest) for term in terms)))


def _log2_comb(n: int, k: int) -> float:
    if not 0 <= k <= n:
        return -math.inf
    return (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2.0)
