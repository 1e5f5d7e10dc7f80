"""DecayedLine: times that grow with two quantities, y = p·u + q·v, learnt from noisy measurements that age. Pure."""

from __future__ import annotations

import math

_KEPT = 0.9
"""What each measurement leaves of the weight of those before: some ten count."""
_PULL = 0.005
"""Weight of the shape that is assumed until measurements of different kinds tell p and q apart."""
_SURPRISE = 3.0
"""A factor between what was expected and measured that is no noise."""
_LEFT_BY_SURPRISE = 0.1
_RATIO_MOST = 1e4
"""What is further off counts as if it were so far off."""


class DecayedLine:
    """Weighted least squares of errors in relation to what was measured and expected, p and q not negative.

    minimise Σ wᵢ (p·uᵢ + q·vᵢ − yᵢ)² / (yᵢ·ŷᵢ) + pull · ((p/(c·p₀) − 1)² + (q/(c·q₀) − 1)²)

    where ŷᵢ was expected when yᵢ came, so that times of very different lengths, and too long ones as much as too short ones,
    count alike; and c is the one factor by which the assumed line (p₀, q₀) fits best: measurements of one kind alone scale that
    line. A measurement that is much too long counts little (something stood in its way) unless the one before was too, and then
    what was known is forgotten; one that is much too short shows what is possible, and makes what was known count little.
    """

    def __init__(self, p: float, q: float, *, half_life_s: float) -> None:
        """`p`, `q`: the line that is assumed at first, both above 0. `half_life_s`: of a measurement's weight."""
        self._assumed = p, q
        self._half_life_s = half_life_s
        self._at_s = -math.inf
        self._was_late = False
        self._weight = 0.0
        self._sums = [0.0] * 5
        self.p, self.q = p, q

    def of(self, u: float, v: float) -> float:
        """The expected y."""
        return self.p * u + self.q * v

    def weight(self, now_s: float) -> float:
        """How many measurements what is known now is worth: 0 for nothing, some ten at most."""
        return self._weight * self._left(now_s)

    def observe(self, u: float, v: float, y: float, *, now_s: float) -> bool:
        """Take in that `y` (above 0) was measured at `now_s`, a time of any one clock.

        Returns whether it is so different that what was known before counts little now.
        """
        left, counts, has_changed, expected = self._left(now_s) * _KEPT, 1.0, False, y
        self._at_s = max(self._at_s, now_s)
        if self._weight > 0.0:
            # What a line without p expects of v = 0 is no time at all.
            expected = min(max(self.of(u, v), y / _RATIO_MOST), y * _RATIO_MOST)
            ratio = y / expected
            is_late = ratio > _SURPRISE
            if is_late and not self._was_late:
                counts = _LEFT_BY_SURPRISE
            elif is_late or ratio < 1.0 / _SURPRISE:
                left, has_changed = 0.0 if is_late else left * _LEFT_BY_SURPRISE, True
            self._was_late = is_late
        self._weight = self._weight * left + counts
        scale = counts / expected / y
        new = (u * u * scale, u * v * scale, v * v * scale, u * counts / expected, v * counts / expected)
        self._sums = [old * left + one for old, one in zip(self._sums, new, strict=True)]
        self._fit()
        return has_changed

    def _left(self, now_s: float) -> float:
        age_s = now_s - self._at_s
        return 1.0 if age_s <= 0.0 else 0.5 ** (age_s / self._half_life_s)

    def _fit(self) -> None:
        (p0, q0), (uu, uv, vv, uy, vy) = self._assumed, self._sums
        # The assumed line, scaled: d/dc Σ w (c·m − y)² = 0 with m = p0·u + q0·v.
        scale = (p0 * uy + q0 * vy) / (p0 * p0 * uu + 2.0 * p0 * q0 * uv + q0 * q0 * vv)
        p1, q1 = scale * p0, scale * q0
        # In units of (p1, q1), so that both unknowns are about 1.
        pull = _PULL / self._weight
        a, b, d = p1 * p1 * uu + pull, p1 * q1 * uv, q1 * q1 * vv + pull
        e, f = p1 * uy + pull, q1 * vy + pull
        determinant = a * d - b * b
        x, y = (e * d - b * f) / determinant, (a * f - b * e) / determinant
        if x <= 0.0:
            x, y = 0.0, f / d
        elif y <= 0.0:
            x, y = e / a, 0.0
        self.p, self.q = x * p1, y * q1
