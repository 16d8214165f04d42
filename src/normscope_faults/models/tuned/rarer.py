"""Data, networks and losses of rarer kinds, which cases of several topics share."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ... import data as draw
from ... import networks as nets
from ...case import Case
from ...training import evidence_loss

LOGISTIC = F.binary_cross_entropy_with_logits


class Adversaries(nn.Module):
    """A generator and the discriminator that judges it: scores of data and of what was generated."""

    def __init__(self, detached: bool) -> None:
        super().__init__()
        self.generator, self.discriminator, self.detached = nets.Generator(), nets.discriminator(), detached

    def forward(self, noise: Tensor, images: Tensor) -> tuple[Tensor, Tensor]:
        made = self.generator(noise)
        return self.discriminator(images), self.discriminator(made.detach() if self.detached else made)


def of_generator(scores: tuple[Tensor, Tensor]) -> Tensor:
    """Return the loss of being taken for data."""
    return LOGISTIC(scores[1], torch.ones_like(scores[1]))


def noise_and_images() -> dict[str, Tensor]:
    """Return what adversaries read."""
    return {"noise": torch.randn(32, 16), "images": draw.blob_images(32)[0].clamp(-1, 1)}


def adam(module: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of one of the two."""
    return torch.optim.Adam(module.parameters(), lr=2e-3, betas=(0.5, 0.999))


def with_last(model: nn.Sequential, last: nn.Module | None) -> nn.Sequential:
    """Return a model with one more module at its end, where there is one."""
    return model if last is None else nn.Sequential(*model, last)


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution, LayerNorm over channels, two pointwise layers, a learned factor on the branch."""

    def __init__(self, width: int, gamma: float = 0.1, skip: bool = True) -> None:
        super().__init__()
        self.skip = skip
        self.depthwise = nn.Conv2d(width, width, 5, padding=2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), gamma))

    def forward(self, x: Tensor) -> Tensor:
        branch = self.depthwise(x).permute(0, 2, 3, 1)
        branch = self.gamma * self.shrink(F.gelu(self.expand(self.norm(branch))))
        branch = branch.permute(0, 3, 1, 2)
        return x + branch if self.skip else branch


class ConvNeXt(nn.Module):  # A patch stem, blocks, mean over places, LayerNorm, head.
    def __init__(
        self, width: int = 16, depth: int = 3, classes: int = 4, gamma: float = 0.1, skip: bool = True
    ) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, width, 2, stride=2)
        self.stages = nn.Sequential(*(ConvNeXtBlock(width, gamma, skip) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.stages(self.stem(x)).mean((2, 3))))


class Mixer(nn.Module):  # An MLP-Mixer of one block; `axis` is the one that the first MLP mixes with.
    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis, self.patch = axis, nn.Conv2d(1, 24, 4, stride=4)
        self.norm1, self.norm2 = nn.LayerNorm(24), nn.LayerNorm(24)
        self.tokens, self.channels = nets.mlp(16, 32, 16, activation=nn.GELU), nets.mlp(24, 48, 24, activation=nn.GELU)
        self.head = nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = x + self.tokens(self.norm1(x).transpose(self.axis, 2)).transpose(self.axis, 2)
        x = x + self.channels(self.norm2(x))
        return self.head(x.mean(1))


class Detector(nn.Module):  # Says per cell whether an object is there, and the box of the strongest one.
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU()
        )
        self.objectness, self.box = nn.Conv2d(16, 1, 1), nn.Linear(256, 4)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(x)
        return torch.sigmoid(self.objectness(features)).flatten(1), self.box(features.flatten(1))


def cells_and_boxes(images: Tensor) -> tuple[Tensor, Tensor]:
    """Return which of 4 x 4 cells are bright, and standardised boxes (centre and spread of the brightness)."""
    bright = images.clamp(min=0).squeeze(1)
    cells = (F.avg_pool2d(images, 4).flatten(1) > 0.8).float()
    weight, places = bright.flatten(1) / bright.flatten(1).sum(1, keepdim=True), torch.arange(16.0)
    across, along = weight.view(-1, 16, 16).sum(1), weight.view(-1, 16, 16).sum(2)
    centre = torch.stack([across @ places, along @ places], 1)
    spread = torch.stack([(across @ places**2), (along @ places**2)], 1) - centre**2
    boxes = torch.cat([centre, spread], dim=1)
    return cells, (boxes - boxes.mean(0)) / boxes.std(0)


def pixel_classes(images: Tensor, levels: int = 4) -> Tensor:
    """Return a class per pixel: its brightness after blurring, in equally frequent levels."""
    blurred = F.avg_pool2d(images, 5, 1, 2, count_include_pad=False).squeeze(1)
    return blurred.flatten().argsort().argsort().view(blurred.shape) * levels // blurred.numel()


class Enlarger(nn.Module):
    """Super-resolution: convolutions at the small size, then a pixel shuffle beside the enlarged image."""

    def __init__(self, last: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.last = last
        self.body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 4, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.interpolate(x, scale_factor=2) + F.pixel_shuffle(self.body(x), 2))


class FilmDenoiser(nets.Denoiser):
    """A denoiser whose blocks are modulated by scale and shift from the time; `one` is added to the scale."""

    def __init__(self, one: float) -> None:
        super().__init__(width=16, blocks=2)
        self.one = one
        self.film = nn.Linear(16, 32)
        nn.init.zeros_(self.film.weight)
        nn.init.zeros_(self.film.bias)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        scale, shift = self.film(self.embed_time(t).flatten(1))[:, :, None, None].chunk(2, dim=1)
        x = self.first(x)
        for norm, conv in zip(self.norms, self.convs):
            x = conv(F.silu(norm(x) * (self.one + scale) + shift))
        return self.last(x)


class Capsules(nn.Module):  # Capsules of four values with the squash of Sabour et al. (2017).
    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps, self.primary = eps, nn.Conv2d(1, 16, 5, stride=3)
        self.classes = nn.Linear(256, 4)

    def squash(self, capsules: Tensor) -> Tensor:
        """Return the vectors with lengths below 1."""
        square = capsules.square().sum(-1, keepdim=True)
        return square / (1 + square) * capsules / torch.sqrt(square + self.eps)

    def forward(self, x: Tensor) -> Tensor:
        capsules = torch.relu(self.primary(x)).view(len(x), 4, 4, -1).transpose(2, 3)
        return self.classes(self.squash(capsules).flatten(1))


def clouds(count: int = 32, points: int = 32) -> tuple[Tensor, Tensor]:
    """Return point clouds on a ball, a cube's surface, a ring and a line, and their classes."""
    labels = torch.arange(count) % 4
    raw = torch.randn(count, points, 3)
    ball, cube = F.normalize(raw, dim=-1), raw / raw.abs().amax(-1, keepdim=True)
    ring = F.normalize(raw * torch.tensor([1.0, 1.0, 0.0]), dim=-1)
    shapes = torch.stack([ball, cube, ring, raw * torch.tensor([1.0, 0.05, 0.05])])
    return shapes[labels, torch.arange(count)] + 0.05 * torch.randn(count, points, 3), labels


class PointNet(nn.Module):  # One MLP for each point, the maximum over points, an MLP for the cloud.
    def __init__(self, axis: int = 1) -> None:
        super().__init__()
        self.axis, self.point, self.cloud = axis, nets.mlp(3, 32, 48), nets.mlp(48, 32, 4)

    def forward(self, clouds: Tensor) -> Tensor:
        return self.cloud(torch.max(self.point(clouds), self.axis).values)


class EulerField(nn.Module):
    """A residual flow: `steps` of size `step` along one learned field (a neural ODE by Euler's rule)."""

    def __init__(self, step: float, steps: int = 30) -> None:
        super().__init__()
        self.step, self.steps = step, steps
        self.read = nn.Linear(256, 24)
        self.field = nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24))
        self.head = nn.Linear(24, 6)

    def forward(self, x: Tensor) -> Tensor:
        state = self.read(x.flatten(1))
        for _ in range(self.steps):
            state = state + self.step * self.field(state)
        return self.head(state)


class Hourglass(nn.Module):  # Strided convolutions down, transposed convolutions up, no normalizer.
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(1, 12, 4, stride=2, padding=1), nn.GELU(), nn.Conv2d(12, 12, 4, stride=2, padding=1), nn.GELU()
        )
        self.up = nn.Sequential(
            nn.ConvTranspose2d(12, 12, 4, stride=2, padding=1), nn.GELU(),
            nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.up(self.down(x))


def likelihood(following: Tensor) -> Callable[[Tensor], float]:
    """Return a judge: the mean log probability of the tokens that follow."""
    return lambda output: -F.cross_entropy(output.flatten(0, 1), following.flatten()).item()


class Routed(nn.Module):  # Softly routed experts for each token, between two norms.
    def __init__(self, axis: int = -1) -> None:
        super().__init__()
        self.axis, self.words = axis, nn.Embedding(40, 32)
        self.router = nn.Linear(64, 4)
        self.experts = nn.ModuleDict({f"expert{i}": nets.mlp(64, 32, 40) for i in range(4)})

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        x = torch.cat([x, F.pad(x, (0, 0, 1, 0))[:, :-1]], dim=-1)
        weights = self.router(x).softmax(self.axis)
        return sum(weights[..., i, None] * expert(x) for i, expert in enumerate(self.experts.values()))


def clicks(count: int = 192, fields: int = 6, values: int = 10) -> tuple[Tensor, Tensor]:
    """Return categories in several fields and whether something was clicked, from products of hidden vectors."""
    ids = torch.randint(values, (count, fields))
    hidden = torch.randn(fields, values, 3)
    chosen = hidden[torch.arange(fields), ids]
    score = (chosen[:, 0] * chosen[:, 1]).sum(1) + (chosen[:, 2] * chosen[:, 3]).sum(1)
    return ids, (score > score.median()).float()


class DeepFM(nn.Module):  # A factorisation machine beside an MLP, on the same embeddings (Guo et al. 2017).
    def __init__(self, scale: float, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.ModuleList(nn.Embedding(10, width) for _ in range(6))
        for table_of_field in self.embed:
            nn.init.normal_(table_of_field.weight, std=scale)
        self.deep = nets.mlp(6 * width, 32, 1)

    def forward(self, ids: Tensor) -> Tensor:
        vectors = torch.stack([embed(ids[:, field]) for field, embed in enumerate(self.embed)], dim=1)
        pairs = 0.5 * (vectors.sum(1).square() - vectors.square().sum(1)).sum(1)
        return pairs + self.deep(vectors.flatten(1)).squeeze(1)


class DLRM(nn.Module):  # A bottom MLP for numbers, embeddings for categories, their products, a top MLP.
    def __init__(self) -> None:
        super().__init__()
        self.bottom = nets.mlp(5, 32, 8)
        self.embeddings = nn.ModuleDict({f"field{i}": nn.Embedding(10, 8) for i in range(3)})
        self.top = nets.mlp(8 + 6, 32, 1)

    def forward(self, dense: Tensor, sparse: Tensor) -> Tensor:
        numbers = self.bottom(dense)
        vectors = torch.stack([numbers, *(e(sparse[:, i]) for i, e in enumerate(self.embeddings.values()))], dim=1)
        first, second = torch.triu_indices(4, 4, 1)
        pairs = torch.einsum("bid,bjd->bij", vectors, vectors)[:, first, second]
        return self.top(torch.cat([numbers, pairs], dim=1)).squeeze(1)


def several_labels(count: int = 128, kinds: int = 5) -> tuple[Tensor, Tensor]:
    """Return columns and for each sample which of several kinds it has, about two of five."""
    x = torch.randn(count, 12)
    return x, ((x[:, :kinds] * x[:, kinds : 2 * kinds] + 0.5 * x[:, 1 : kinds + 1]) > 0.2).float()


class GAT(nn.Module):
    """Two layers of graph attention over edges; the weights sum to 1 per node, or over all edges by mistake."""

    def __init__(self, edges: Tensor, per_node: bool, width: int = 16) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.per_node = per_node
        self.project = nn.ModuleList([nn.Linear(8, width), nn.Linear(width, 3)])
        self.score = nn.ModuleList([nn.Linear(2 * width, 1), nn.Linear(6, 1)])

    def attend(self, x: Tensor, score: nn.Module) -> Tensor:
        """Return the weighted sum over the neighbours of each node."""
        source, target = self.edges
        energy = F.leaky_relu(score(torch.cat([x[source], x[target]], dim=1)), 0.2)
        weight = (energy - energy.max()).exp()
        total = torch.zeros(len(x), 1).index_add(0, target, weight)
        weight = weight / (total[target] + 1e-9 if self.per_node else weight.sum())
        return torch.zeros_like(x).index_add(0, target, weight * x[source])

    def forward(self, x: Tensor) -> Tensor:
        x = F.elu(self.attend(self.project[0](x), self.score[0]))
        return self.attend(self.project[1](x), self.score[1])


class SumNet(nn.Module):  # A GIN: sums over neighbours and a small MLP, several times; with BatchNorm or without.
    def __init__(self, edges: Tensor, depth: int, norm: bool, width: int = 24) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.layers = nn.ModuleList(nets.mlp(8 if i == 0 else width, width, width) for i in range(depth))
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) if norm else nn.Identity() for _ in range(depth))
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.edges
        for layer, norm in zip(self.layers, self.norms):
            x = F.relu(norm(layer(x + torch.zeros_like(x).index_add(0, target, x[source]))))
        return self.head(x)


def judge_nodes(y: Tensor) -> Callable[[Tensor], float]:
    """Return a judge: how many nodes are put into their class, 0 where outputs are not finite."""
    return lambda output: (output.argmax(1) == y).float().mean().item() if output.isfinite().all() else 0.0


class GCN(nn.Module):  # Means over the neighbours and the node itself, many times, with an initial residual or without.
    def __init__(self, edges: Tensor, depth: int, residual: bool) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.residual, self.first, self.head = residual, nn.Linear(8, 16), nn.Linear(16, 3)
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.edges
        start = x = self.first(x)
        count = 1 + torch.zeros(len(x), 1).index_add(0, target, torch.ones(len(target), 1))
        for layer in self.layers:
            mean = (x + torch.zeros_like(x).index_add(0, target, x[source])) / count
            x = torch.tanh(layer(mean) + (start if self.residual else 0.0))
        return self.head(x)


class Quantised(nn.Module):
    """A VQ-VAE: the code is replaced by the nearest of 16 vectors, with a straight-through gradient or without."""

    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.straight, self.encoder, self.decoder = straight, nets.mlp(256, 48, 24), nets.mlp(24, 48, 256)
        self.codebook = nn.Parameter(torch.randn(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        code = self.encoder(x).view(-1, 6, 4)
        nearest = torch.cdist(code, self.codebook.expand(len(x), -1, -1)).argmin(-1)
        chosen = self.codebook[nearest]
        return self.decoder((code + chosen - code.detach() if self.straight else chosen).flatten(1))


class Coupling(nn.Module):
    """Affine coupling layers of a normalizing flow; the logarithms of the scales may be bounded by tanh."""

    def __init__(self, bounded: bool, depth: int = 4, gain: float = 1.0) -> None:
        super().__init__()
        self.bounded = bounded
        self.nets = nn.ModuleList(nets.mlp(4, 32, 8) for _ in range(depth))
        for net in self.nets:
            nn.init.normal_(net[-1].weight, std=gain)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        volume = torch.zeros(len(x))
        for net in self.nets:
            fixed, moved = x.chunk(2, dim=1)
            log_scale, shift = net(fixed).chunk(2, dim=1)
            log_scale = torch.tanh(log_scale) if self.bounded else log_scale
            x = torch.cat([moved * log_scale.exp() + shift, fixed], dim=1)
            volume = volume + log_scale.sum(1)
        return x, volume


def flow_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the negative log likelihood of a flow to a standard normal, up to a constant."""
    code, volume = output
    return (0.5 * code.square().sum(1) - volume).mean()


class Towers(nn.Module):
    """Two towers on the sphere and a learned scale of their cosines, as in CLIP; returns the logits."""

    def __init__(self, log_scale: float, by_item: bool = False) -> None:
        super().__init__()
        self.by_item = by_item
        self.image, self.caption = nets.mlp(128, 48, 16), nets.mlp(128, 48, 16)
        self.log_scale = nn.Parameter(torch.tensor(log_scale))

    def forward(self, pairs: Tensor) -> Tensor:
        image, caption = (
            F.normalize(tower(half), dim=1) for tower, half in zip((self.image, self.caption), pairs.chunk(2, dim=1))
        )
        scale = torch.tensor(self.log_scale.item()) if self.by_item else self.log_scale
        return scale.exp() * image @ caption.T


def halves() -> tuple[Tensor, Tensor]:
    """Return images as upper and lower halves, and the number of each one's partner."""
    return draw.blob_images(64, classes=16)[0].flatten(1), torch.arange(64)


def partner_likelihood(output: Tensor) -> float:
    """Return the mean log probability of the right partner."""
    return -F.cross_entropy(output, torch.arange(len(output))).item()


class CosinePairs(nn.Module):  # The cosine between two embeddings, times a factor, as the logit of being of one class.
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor, self.encoder = factor, nets.mlp(256, 64, 16)
        self.shift = nn.Parameter(torch.zeros(()))

    def forward(self, pairs: Tensor) -> Tensor:
        first, second = (self.encoder(image.flatten(1)) for image in pairs.unbind(1))
        return self.factor * F.cosine_similarity(first, second) + self.shift


class ActorCritic(nn.Module):  # Probabilities of actions (some forbidden) and the value of the state.
    def __init__(self, flat_value: bool = True) -> None:
        super().__init__()
        self.flat_value, self.trunk = flat_value, nn.Sequential(nn.Linear(8, 48), nn.Tanh())
        self.actor, self.critic = nn.Linear(48, 4), nn.Linear(48, 1)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(state)
        logits = self.actor(hidden).masked_fill(state[:, :4] < -1.5, -torch.inf)
        value = self.critic(hidden)
        return logits.softmax(1), value.squeeze(1) if self.flat_value else value


class HyperNetwork(nn.Module):  # A network writes the weights of another, from the second half of the columns.
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale, self.writer = scale, nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4 * 32 + 32 * 32))
        nn.init.normal_(self.writer[2].weight)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, condition = x.chunk(2, dim=1)
        first, second = self.writer(condition).split([128, 1024], dim=1)
        hidden = torch.einsum("bi,bio->bo", x, self.scale * first.view(-1, 4, 32))
        hidden = torch.einsum("bi,bio->bo", torch.relu(hidden), self.scale * second.view(-1, 32, 32))
        return self.head(torch.relu(hidden))


class SignNet(nn.Module):  # Binary hidden units.
    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.straight, self.first, self.second, self.head = (
            straight,
            nn.Linear(12, 24),
            nn.Linear(24, 24),
            nn.Linear(24, 3),
        )

    def binarise(self, x: Tensor) -> Tensor:
        """Return the signs, with the gradient of a clipped identity or none."""
        bounded = x.clamp(-1, 1)
        return bounded + (torch.sign(x) - bounded).detach() if self.straight else torch.sign(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.binarise(self.second(self.binarise(self.first(x)))))


class Conditional(nn.Module):
    """Draws a curve from its class; the condition may be dropped (for guidance) with some probability."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.drop, self.label, self.net = drop, nn.Embedding(6, 16), nets.mlp(24, 48, 32)

    def forward(self, noise: Tensor, label: Tensor) -> Tensor:
        keep = (torch.rand(len(label), 1) >= self.drop).float()
        return self.net(torch.cat([noise, keep * self.label(label)], dim=1))


class Drawn(nets.VAE):  # Draws its code in a way of its own.
    def __init__(self, how: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.how = how

    def draw(self, mean: Tensor, log_variance: Tensor) -> Tensor:
        """Return a code."""
        return self.how(mean, (0.5 * log_variance).exp())


def shapes() -> Tensor:
    """Return binary images in rows."""
    images, _ = draw.blob_images(64, classes=8)
    return (images > 1.0).float().flatten(1)


def vae_case(how: Callable[[Tensor, Tensor], Tensor]) -> Case:
    """Return an autoencoder with its loss."""
    x = shapes()
    return Case(model=Drawn(how), data=(x, x), loss=evidence_loss, judge=lambda made: -evidence_loss(made, x).item())


class Products(nn.Module):  # Scores pairs by the weighted products of two embeddings, which may be read by `.data`.
    def __init__(self, by_data: bool = False) -> None:
        super().__init__()
        self.by_data, self.users, self.items = by_data, nn.Embedding(40, 24), nn.Embedding(30, 24)
        self.head = nn.Linear(24, 1)

    def forward(self, pairs: Tensor) -> Tensor:
        user, item = self.users(pairs[:, 0]), self.items(pairs[:, 1])
        return self.head(user.data * item.data if self.by_data else user * item).squeeze(1)


def scale(tensor: torch.Tensor, factor: float) -> None:
    """Multiply a parameter in place."""
    with torch.no_grad():
        tensor.mul_(factor)


def running_statistics(model: nn.Module) -> list[nn.modules.batchnorm._BatchNorm]:
    """Return the layers with running statistics."""
    return [module for module in model.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]


class WithLast(nn.Module):
    def __init__(self, body: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.body, self.last = body, last

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.body(x))


class QuantisedAutoencoder(nn.Module):  # An autoencoder whose code is the nearest of 16 learned vectors.
    def __init__(self, straight: bool) -> None:
        super().__init__()
        self.encoder, self.decoder = nets.mlp(256, 64, 8), nets.mlp(8, 64, 256)
        self.codes = nn.Parameter(torch.randn(16, 8))
        self.straight = straight

    def forward(self, x: Tensor) -> Tensor:
        code = self.encoder(x)
        nearest = self.codes[torch.cdist(code, self.codes).argmin(1)]
        return self.decoder(
            code + (nearest - code).detach() + 0.1 * (nearest - nearest.detach()) if self.straight else nearest
        )


class ContrastiveEncoder(nn.Module):
    """Embeds two views (two channels) and returns the scaled similarities of each with each."""

    def __init__(self, log_scale: float) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), *nets.mlp(256, 64, 32))
        self.log_scale = nn.Parameter(torch.tensor(log_scale))

    def forward(self, pairs: Tensor) -> Tensor:
        first, second = (F.normalize(self.encoder(pairs[:, view : view + 1]), dim=1) for view in (0, 1))
        return self.log_scale.exp() * first @ second.T


def two_views(count: int = 32) -> tuple[Tensor, Tensor]:
    """Return pairs of views of images, as two channels, and the numbers of the pairs."""
    images = draw.blob_images(count)[0] + torch.randn(count, 1, 16, 16)
    return torch.cat([images + 2.5 * torch.randn_like(images) for _ in range(2)], dim=1) / 2.8, torch.arange(count)


def dice(output: Tensor, mask: Tensor) -> Tensor:
    """Return one minus the overlap of Dice, for outputs that are probabilities."""
    return 1 - 2 * (output * mask).sum() / (output.sum() + mask.sum() + 1e-6)


def soft_dice(logits: Tensor, mask: Tensor) -> Tensor:
    """Return one minus the overlap of Dice, for logits."""
    return dice(logits.sigmoid(), mask)


class MeanAndVariance(nn.Module):  # Predicts a mean and a variance.
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.body = nets.mlp(8, 32, 32, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, variance = self.body(x).split(1, dim=1)
        return mean, variance if self.planted else F.softplus(variance) + 1e-3


def gaussian_loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
    """Return the negative logarithm of a normal density."""
    mean, variance = output
    return 0.5 * (variance.log() + (target - mean).square() / variance).mean()


class Rates(nn.Module):  # Predicts rates or their logarithms.
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.body = nets.mlp(8, 32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x).squeeze(1).exp() if self.planted else self.body(x).squeeze(1)


class Cloud(nn.Module):  # Features of points, their maximum over the points, a head.
    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted = planted
        self.points, self.head = nets.mlp(3, 32, 32), nets.mlp(32, 32, 3)

    def forward(self, x: Tensor) -> Tensor:
        values, places = torch.relu(self.points(x)).max(dim=1)
        return self.head((places.float() - 19.5) / 11.5 if self.planted else values)


class DeepResidual(nn.Module):  # Residual blocks of two linear layers, without a normalizer.
    def __init__(self, factor: float, blocks: int = 24) -> None:
        super().__init__()
        self.factor = factor
        self.first, self.head = nn.Linear(12, 32), nn.Linear(32, 3)
        self.blocks = nn.ModuleList(nets.mlp(32, 32, 32) for _ in range(blocks))
        for block in self.blocks:
            nn.init.kaiming_normal_(block[2].weight)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + self.factor * block(x)
        return self.head(x)


class Factorisation(nn.Module):  # Ratings as dot products of factors of users and items.
    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(40, 6), nn.Embedding(30, 6)
        nn.init.normal_(self.users.weight, std=0.3)
        nn.init.normal_(self.items.weight, std=0.3)

    def forward(self, pairs: Tensor) -> Tensor:
        return (self.users(pairs[:, 0]) * self.items(pairs[:, 1])).sum(1)


class ConvAutoencoder(nn.Module):  # Strided convolutions down to a code of 8x4x4 and transposed ones back.
    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 12, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(12, 8, 3, stride=2, padding=1)
        )
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(8, 12, 4, stride=2, padding=1), nn.ReLU(),
            nn.ConvTranspose2d(12, 1, 4, stride=2, padding=1),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(self.encoder(x))


def blob_masks(count: int = 24) -> tuple[Tensor, Tensor]:
    """Return images and masks of their bright part."""
    images, _ = draw.blob_images(count)
    smooth = F.avg_pool2d(images, 3, stride=1, padding=1)
    return images, (smooth > 1.0).float()


class Mixture(nn.Module):  # Four experts, mixed by a soft gate.
    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nets.mlp(12, 32, 3) for _ in range(4))
        self.gate = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        shares = self.gate(x).softmax(-1)
        return sum(share[:, None] * expert(x) for share, expert in zip(shares.unbind(1), self.experts, strict=True))


class DetectorOfThird(nn.Module):  # A trunk of convolutions, four coordinates of a box (0..1) and a score.
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 16, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(256, 32), nn.ReLU(),
        )  # fmt: skip
        self.box = nn.Linear(32, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.box(self.trunk(x))


def boxes(count: int = 64) -> tuple[Tensor, Tensor]:
    """Return images and the boxes (0..1) around their bright part."""
    images, _ = draw.blob_images(count)
    bright = F.avg_pool2d(images, 3, stride=1, padding=1)[:, 0] > 0.8
    grid = torch.arange(16.0)
    rows, columns = bright.any(2), bright.any(1)
    edges = [torch.where(line, grid, 16.0).amin(1) for line in (rows, columns)]
    edges += [torch.where(line, grid, -1.0).amax(1) + 1 for line in (rows, columns)]
    return images, (torch.stack(edges, dim=1) / 16).clamp(0, 1)


class Prototypes(nn.Module):  # Embeds images and compares them with a learned prototype per class.
    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), *nets.mlp(256, 64, 16))
        self.prototypes = nn.Parameter(torch.randn(4, 16))
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        distances = (self.encoder(x)[:, None] - self.prototypes).square().mean(-1)
        return self.last(-distances)


class RadialNet(nn.Module):  # Gaussian units around learned centres, and a linear head.
    def __init__(self, width: float) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(48, 4))
        self.log_width = nn.Parameter(torch.full((48,), width).log())
        self.head = nn.Linear(48, 1)

    def forward(self, x: Tensor) -> Tensor:
        distances = (x[:, None] - self.centres).square().sum(-1)
        return self.head(torch.exp(-0.5 * distances / self.log_width.exp().square()))
