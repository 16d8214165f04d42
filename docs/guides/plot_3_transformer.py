"""
Is my transformer healthy?
==========================

``ns.check`` takes a few forward passes and one backward pass over a batch of tokens and looks at what the blocks hand
on. Here is a small causal transformer, built as people build them:
"""

import matplotlib.pyplot as plt
import torch
from torch import nn

import normscope as ns


class Transformer(nn.Module):
    """A small causal transformer with normalizers before or behind each branch."""

    def __init__(self, blocks: int, norm_first: bool, scale: float = 1.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.position = nn.Parameter(0.02 * torch.randn(16, 32))
        layers = (
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=norm_first)
            for _ in range(blocks)
        )
        self.blocks = nn.ModuleList(layers)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 50)
        with torch.no_grad():
            for block in self.blocks:
                block.self_attn.in_proj_weight.mul_(scale)

    def forward(self, tokens):
        """Return the scores of the next token at every place."""
        x = self.embedding(tokens) + self.position[: tokens.shape[1]]
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        for block in self.blocks:
            x = block(x, src_mask=mask)
        return self.head(self.norm(x))


def loss(scores, targets):
    """Return the loss of the next token."""
    return nn.functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


torch.manual_seed(0)
tokens = torch.randint(50, (8, 17))
batch = tokens[:, :-1], tokens[:, 1:]
healthy = ns.check(Transformer(6, norm_first=True), batch, loss=loss)
print(healthy.verdict)

# %%
# The same with projections of queries, keys and values that begin ten times too large: every token looks at one other
# alone.

loud = ns.check(Transformer(6, norm_first=True, scale=10.0), batch, loss=loss)
print(loud.verdict)
for advice in dict.fromkeys(finding.advice for finding in loud.findings):
    print("-", advice)

# %%
# Values and gradients along the depth, for both:

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 5), sharey=True, layout="constrained")
healthy.plot(left).set_title("healthy")
loud.plot(right).set_title("projections too large")

# %%
# A model of Hugging Face is checked the same way, with what its tokenizer returned, or on the command line by its
# folder or id: ``normscope check google/vit-base-patch16-224 --html check.html``. The page of the healthy one:

healthy  # noqa: B018
