"""The tag of the wheel: it has machine code, and no code of one version of Python."""

import os

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Tag(BuildHookInterface):
    """Gives the wheel the tag that wheel.sh found out."""

    def initialize(self, version, build_data):
        build_data["pure_python"] = False
        build_data["tag"] = os.environ["WEIR_WHEEL_TAG"]
