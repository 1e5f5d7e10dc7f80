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


class DecayedLine:
    """Weighted least squares of relative errors, p and q not negative.

    minimise Σ wᵢ ((p·uᵢ + q·vᵢ)/yᵢ − 1)² + pull · ((p/(c·p₀) − 1)² + (q/(c·q₀) − 1)²)

    where c is the one factor by which the assumed line (p₀, q₀) fits best: measurements of one kind alone scale that line. Relative, since times
    of very different lengths are to count alike. A measurement that is much too long counts little (something stood in its
    way) unless the one before was too; one that is much too short shows what is possible and counts at once, and both then make
    what was known before count little.
    """

    def __init__(self, p: float, q: float, *, half_life_s: float) -> None:
        """`p`, `q`: the line that is assumed at first, both above 0. `half_life_s`: of a measurement's weight."""
        self._assumed = p, q
        self._half_life_s = half_life_s
        self._at_s = -math.inf
        self._was_late = False
        self._weight = self._uu = self._uv = self._vv = self._u = self._v = 0.0
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
        has_changed = False
        left = self._left(now_s) * _KEPT
        self._at_s = max(self._at_s, now_s)
        counts = 1.0
        if self._weight > 0.0:
            ratio = y / self.of(u, v)
            is_late = ratio > _SURPRISE
            if is_late and not self._was_late:
                counts = _LEFT_BY_SURPRISE
            elif is_late or ratio < 1.0 / _SURPRISE:
                left *= _LEFT_BY_SURPRISE
                has_changed = True
            self._was_late = is_late
        u, v = u / y, v / y
        self._weight = self._weight * left + counts
        self._uu = self._uu * left + counts * u * u
        self._uv = self._uv * left + counts * u * v
        self._vv = self._vv * left + counts * v * v
        self._u = self._u * left + counts * u
        self._v = self._v * left + counts * v
        self._fit()
        return has_changed

    def _left(self, now_s: float) -> float:
        age_s = now_s - self._at_s
        return 1.0 if age_s <= 0.0 else 0.5 ** (age_s / self._half_life_s)

    def _fit(self) -> None:
        p0, q0 = self._assumed
        # The assumed line, scaled: d/dc Σ w (c·m/y − 1)² = 0 with m = p0·u + q0·v.
        squares = p0 * p0 * self._uu + 2.0 * p0 * q0 * self._uv + q0 * q0 * self._vv
        scale = (p0 * self._u + q0 * self._v) / squares
        p1, q1 = scale * p0, scale * q0
        # In units of (p1, q1), so that both unknowns are about 1.
        a = p1 * p1 * self._uu + _PULL
        b = p1 * q1 * self._uv
        d = q1 * q1 * self._vv + _PULL
        e, f = p1 * self._u + _PULL, q1 * self._v + _PULL
        determinant = a * d - b * b
        x, y = (e * d - b * f) / determinant, (a * f - b * e) / determinant
        if x <= 0.0:
            x, y = 0.0, f / d
        elif y <= 0.0:
            x, y = e / a, 0.0
        self.p, self.q = x * p1, y * q1
