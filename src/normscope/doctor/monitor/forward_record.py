"""`ForwardRecord`: what the hooks saw of one forward of a watched model, small tensors on the model's device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ...listening.calls import LayerGeometry, NormalizerSeen, Site
from .running_variances import Moved


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedWeight:
    """What is kept of a weight layer's call until the optimizer's step: which weight it applied, and how.

    Attributes:
        parameters: the names of its weight and bias, as far as they are parameters.
        axis: the dimension of the weight that counts output channels.
        channels: the dimension of its output that counts them.
        geometry: how it was called.
        made: its weight, if that is no parameter but was made of some.
    """

    parameters: tuple[str, ...]
    axis: int
    channels: int
    geometry: LayerGeometry
    made: Tensor | None = None


@dataclass(slots=True)
class ForwardRecord:
    """One forward: the layers in the order they ran, blocks with their gains, units that never fired.

    Attributes:
        normalizers: what each normalizer showed, by site.
        weights: which weight each weight layer applied, by site.
        batch_norms: sites whose running variances were read instead, and what the forward did to them.
        activations: the gain of every block.
        gradients: the sizes of the gradients of a block's output and input, as they come.
        dead: the share of units behind a ReLU that fired for no sample.
        readers: who read the output of a weight layer as it came, if that was asked for; a site for a normalizer.
        moved: weight layers whose output was reshaped or transposed on its way.
        lost: sites that could not be measured.
        batch: what tells the batch from others, as `measure_batch` has it.
    """

    normalizers: dict[Site, NormalizerSeen] = field(default_factory=dict)
    weights: dict[Site, AppliedWeight] = field(default_factory=dict)
    batch_norms: tuple[Sequence[Site], Moved] | None = None
    activations: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, list[Tensor | None]] = field(default_factory=dict)
    dead: dict[Site, Tensor] = field(default_factory=dict)
    readers: dict[Site, list[Site | None]] = field(default_factory=dict)
    moved: set[Site] = field(default_factory=set)
    lost: set[Site] = field(default_factory=set)
    batch: Tensor | None = None

    def normalizer(self, site: Site) -> NormalizerSeen | None:
        """Return what a normalizer showed, on the device; None if it was not seen."""
        if site in self.normalizers:
            return self.normalizers[site]
        sites, moved = self.batch_norms or ((), None)
        return None if moved is None or site not in sites else moved.norms.seen(moved, sites.index(site))
