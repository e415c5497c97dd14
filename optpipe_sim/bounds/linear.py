"""Small linear programs whose bounds are proven in integers, whatever the solver rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil

import numpy as np

ONE = 1 << 160  # rounded prices are in 1 / ONE; many bits, as rows may count byte-ns


@dataclass
class Linear:
    """Minimise variable 0 (the time) over variables >= 0 and rows ``sum >= right``, all integers."""

    limits: list[int | None] = field(default_factory=lambda: [None])
    rows: list[tuple[dict[int, int], int]] = field(default_factory=list)
    unit: int = 1

    def variable(self, limit: int | None = None) -> int:
        self.limits.append(limit)
        return len(self.limits) - 1

    def at_least(self, terms: Iterable[tuple[int, int]], right: int) -> None:
        row: dict[int, int] = {}
        for variable, factor in terms:
            row[variable] = row.get(variable, 0) + factor
        self.rows.append((row, right))

    def dual(self, unit: int = ONE) -> tuple[list[int], float]:
        """Return dual prices of the rows (at least 0, in 1/unit) and the value of the LP, both rounded."""
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix

        count = len(self.limits)
        # times are scaled by the longest of them, so that no small coefficient is lost
        most = self.unit
        sizes = [most if limit is None else 1 for limit in self.limits]
        scale = [
            max(1, abs(right), *(abs(factor) * sizes[k] for k, factor in row.items()))
            for row, right in self.rows
        ]
        data = [
            (at, k, factor * sizes[k] / size)
            for at, ((row, _), size) in enumerate(zip(self.rows, scale, strict=True))
            for k, factor in row.items()
        ]
        lines, columns, factors = zip(*data, strict=True)
        matrix = csr_matrix((factors, (lines, columns)), (len(self.rows), count))
        right = np.array([row[1] / size for row, size in zip(self.rows, scale, strict=True)])
        solved = linprog(
            np.eye(1, count)[0],
            A_ub=-matrix,  # type: ignore[call-overload]
            b_ub=-right,
            bounds=[(0, limit) for limit in self.limits],
            method="highs",
        )
        if solved.status != 0:
            return [0] * len(self.rows), 0.0
        prices = [
            max(0, int(Fraction(-float(price)) * most * unit / size))
            for price, size in zip(solved.ineqlin.marginals, scale, strict=True)
        ]
        return prices, float(solved.fun or 0) * most

    def proven(self) -> int:
        """Return a bound on variable 0 that rounded prices prove.

        For prices y >= 0, ``sum y right <= sum_k x_k (sum y a_k)`` for whatever satisfies the rows;
        what a column has above its cost counts with the largest value that x_k can have. Every
        time is at most the makespan: either that is above `most`, or `most` is such a value.
        """
        prices, value = self.dual()
        most = 2 * ceil(value) + 1
        excess = [-ONE if k == 0 else 0 for k in range(len(self.limits))]
        total = 0
        for price, (row, right) in zip(prices, self.rows, strict=True):
            total += price * right
            for k, factor in row.items():
                excess[k] += price * factor
        for over, limit in zip(excess, self.limits, strict=True):
            total -= max(0, over) * (most if limit is None else limit)
        return max(0, min(most, -(-total // ONE)))
