"""What every test shares: hypothesis profiles and the meaning of the `gpu` mark."""

import hypothesis
import pytest
import torch

hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None, print_blob=True)
hypothesis.settings.register_profile("random", derandomize=False, deadline=None, print_blob=True)


def pytest_configure(config: pytest.Config) -> None:
    # `make test` must give the same answer twice; `make test-slow`, which takes the slow tests in, looks for news.
    hypothesis.settings.load_profile("fixed" if "not slow" in config.option.markexpr else "random")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _short_attacks_in_audits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Audits of tests attack their radii only briefly; what a longer attack finds is tested where it is its own."""
    monkeypatch.setattr("normscope.diagnosis.auditing.RADII_SECONDS", 0.2)
