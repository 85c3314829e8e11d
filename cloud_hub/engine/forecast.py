"""How long forwards will take, from those that were seen: seconds = fixed + tokens × each; pure."""

from dataclasses import dataclass

_MEMORY = 0.97  # weight that an observation keeps when the next one comes: about 30 count
_PRIOR = 0.02  # weight of the guess that half of a mean forward is fixed cost


@dataclass(slots=True)
class Forecast:
    """A least-squares line through recent forwards, the older the lighter.

    Forwards of one size only would leave the line's slope open; the prior closes it.
    """

    _n: float = 0.0
    _x: float = 0.0
    _y: float = 0.0
    _xx: float = 0.0
    _xy: float = 0.0

    @property
    def is_known(self) -> bool:
        """Whether a forward was seen yet."""
        return self._n > 0

    def observe(self, tokens: int, seconds: float) -> None:
        """A forward of so many tokens took so long."""
        self._n = _MEMORY * self._n + 1.0
        self._x = _MEMORY * self._x + tokens
        self._y = _MEMORY * self._y + seconds
        self._xx = _MEMORY * self._xx + tokens * tokens
        self._xy = _MEMORY * self._xy + tokens * seconds

    def seconds(self, forwards: int, tokens: float) -> float:
        """How long so many forwards with so many tokens in all will take; 0 before any was seen."""
        fixed, each = self._line()
        return forwards * fixed + tokens * each

    @property
    def mean_s(self) -> float:
        """How long a forward took on average."""
        return self._y / self._n if self._n else 0.0

    def _line(self) -> tuple[float, float]:
        if not self.is_known:
            return 0.0, 0.0
        # The prior is one more observation, at no tokens.
        weight = _PRIOR * self._n
        n, x, y = self._n + weight, self._x, self._y + weight * self.mean_s / 2
        spread = self._xx - x * x / n
        if spread <= 0:  # only forwards of no tokens
            return self.mean_s, 0.0
        each = max((self._xy - x * y / n) / spread, 0.0)
        return max(y / n - each * x / n, 0.0), each
