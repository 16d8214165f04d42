"""
Audit: what each layer does, and what is wrong
==============================================

``ns.audit`` turns a model, a batch and a loader into one object: a row per weight layer and normalizer, the ladder of
bounds, and findings that name a layer, a cause and what to do.
"""

import tempfile
from pathlib import Path

import torch
from torch import nn

import normscope as ns

torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1),
    nn.BatchNorm2d(16),
    nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1),
    nn.GroupNorm(16, 16, eps=1.0),  # an eps far above any variance it will see
    nn.GELU(),
    nn.Flatten(),
    nn.Linear(16 * 64, 10),
)
loader = [torch.randn(32, 3, 8, 8) for _ in range(8)]
audit = ns.audit(model, loader[0], loader=loader)
print(audit)

# %%
# The findings come most serious first:

for finding in audit.findings:
    print(f"{finding.severity.value:8} {finding.code:22} {finding.where}: {finding.advice}")

# %%
# The rows are plain data. The folded gain is that of a normalizer together with the layer before it, at the variance
# of the data: rescaling the weights does not move it.

for row in audit.layers:
    print(f"{row.path:3} {row.operator:12} variance {row.variance and round(row.variance.log10_median, 2)}", end=" ")
    print(f"folded {row.log10_folded and round(row.log10_folded, 2)}")

# %%
# An audit saves, loads and renders itself:

with tempfile.TemporaryDirectory() as folder:
    audit.to_json(Path(folder) / "a.json")
    audit.to_html(Path(folder) / "report.html")
    assert ns.Audit.from_json(Path(folder) / "a.json") == audit
print(audit.to_pandas()[["path", "kind", "log10_norm_upper", "log10_exact", "log10_folded"]])

# %%
# The first chart of its page, drawn with matplotlib:

audit.plot()
