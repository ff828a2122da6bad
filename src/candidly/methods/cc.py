"""CC: provably consistent partial-label learning (Feng et al., NeurIPS 2020)."""

from torch import Tensor, nn

from candidly.losses import cc
from candidly.methods.base import Batch, Method, forward_views


class CC(Method):
    """Minus the log of the probability mass on the candidates; without state."""

    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        return cc(forward_views(model, batch), batch.candidates).mean(0)
