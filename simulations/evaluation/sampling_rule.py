"""How logits become a law."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SamplingRule:
    """Guidance, temperature and top-k, in that order of application."""

    temperature: float = 1.0
    top_k: int = 0  # 0: no cut
    guidance: float = 1.0  # 1: conditional branch only

    def __str__(self) -> str:
        cut = f"k {self.top_k}" if self.top_k else "no cut"
        return f"T {self.temperature:g}, {cut}, guidance {self.guidance:g}"
