"""Put `src/normscope_lab`, which stands outside of this folder, into the wheel; an editable install points to it."""

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class LabSource(BuildHookInterface):
    """The source of the lab: hatchling itself takes no package from outside of the folder of its pyproject.toml."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files of a wheel."""
        if version != "editable":
            build_data["force_include"] |= {
                "../src/normscope_lab": "normscope_lab",
                "../LICENSE": "normscope_lab/LICENSE",
            }
