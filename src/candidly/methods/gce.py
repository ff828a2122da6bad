"""GCE: generalised cross-entropy of the mass on the candidates, a control without state or rate."""

from torch import Tensor, nn

from candidly.checks import number
from candidly.losses import gce
from candidly.methods.base import Batch, Method, forward_views


class GCE(Method):
    """(1 - m^r) / r of the mass m on the candidates: like CC, but bounded; without state.

    Parameters
    ----------
    exponent : float
        r of the formula: CC as it goes to 0, 1 - m at 1.
    """

    def __init__(self, *, exponent: float = 0.7) -> None:
        super().__init__()
        self.exponent = number(exponent, "exponent", 1e-3, 1)

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return gce(forward_views(model, batch), batch.candidates, self.exponent).mean(0)
