"""The best one-to-one assignment of rows to columns (Kuhn-Munkres), for CEAF."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


def assign(weights: npt.NDArray[np.float64]) -> float:
    """Return the greatest sum of weights, one at most of each row and column, of (N, M).

    >>> assign(np.array([[3.0, 2.0], [3.0, 0.0]]))
    5.0

    Rows are added one at a time, each by the shortest augmenting path under reduced costs
    (potentials of rows and columns): N^2 steps, each over a row of M.
    """
    if not weights.size:
        return 0.0
    if weights.shape[0] > weights.shape[1]:
        weights = weights.T
    cost = -weights  # (N, M), N <= M
    rows, columns = cost.shape
    u, v = np.zeros(rows), np.zeros(columns + 1)
    # Column `columns` is where each new row starts from.
    owner = np.full(columns + 1, -1)
    for row in range(rows):
        owner[columns] = row
        here = columns
        distance = np.full(columns, np.inf)
        before = np.full(columns, columns)
        seen = np.zeros(columns + 1, dtype=bool)
        while owner[here] >= 0:
            seen[here] = True
            reduced = cost[owner[here]] - u[owner[here]] - v[:columns]
            free = ~seen[:columns]
            closer = free & (reduced < distance)
            distance[closer] = reduced[closer]
            before[closer] = here
            reach = np.where(free, distance, np.inf)
            there = int(reach.argmin())
            step = reach[there]
            u[owner[seen]] += step
            v[seen] -= step
            distance[free] -= step
            here = there
        while here != columns:
            owner[here] = owner[before[here]]
            here = int(before[here])
    taken = np.flatnonzero(owner[:columns] >= 0)
    return float(weights[owner[taken], taken].sum())
