"""The settings of Than's appendix E, and small ones that take seconds."""

from __future__ import annotations

from typing import Any

TRAINING: dict[str, Any] = {
    "decays": ("coupled", "none", "decoupled"),
    "batch_size": 128,
    "learning_rate": 1e-3,
    "weight_decay": 1e-4,
    "initialisation": "He normal",
    "inputs": "divided by the largest norm of a training image",
    "augmentation": "none",
    "watch_every": 1,
}
"""The settings of appendix E, with choices for what it leaves open: the kind of decay, and the scale of inputs."""
FULL: dict[str, Any] = TRAINING | {
    "data": "cifar10",
    "depth": 10,
    "width": 512,
    "base": 64,
    "efficientnet": {"width": 1.2, "depth": 1.4, "divisor": 8},
    "epochs": 100,
    "autocast": ("resnet18",),
    "search_every": 2,
    "reshape_every": 5,
    "keep_every": 4,
}
QUICK: dict[str, Any] = TRAINING | {
    "data": "digits",
    "images": 640,
    "depth": 10,
    "width": 32,
    "base": 4,
    "efficientnet": {"width": 0.2, "depth": 0.3, "divisor": 4},
    "epochs": 6,
    "autocast": (),
    "search_every": 3,
    "reshape_every": 2,
    "keep_every": 3,
}
CHAINS = ("relu", "relu_bn", "resnet18")
"""The networks of figures 1 and 2; `relu` is the paper's, `relu_bn` the same network with BatchNorm."""
ABOUT = (
    "Trained as in appendix E: Adam with learning rate 0.001, batches of 128, 100 epochs, weight decay 1e-4, He's "
    "normal initialisation, no augmentation, inputs divided by the largest norm of a training image. The paper does "
    "not say how the decay acts, so each network is trained with it in the gradient (torch's Adam), beside it (AdamW) "
    "and without. Watched with `ns.watch` and read back with `ns.Run`. The images of CIFAR-10 went through JPEG "
    "(quality 75) once. ResNet18 has the stem for small images, EfficientNet-B3 neither dropout nor dropped blocks; "
    "both train in bfloat16 where there is a GPU. Quick settings take small networks of the same kinds and digits."
)
SOURCE = "Than"
