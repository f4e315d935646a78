"""Builds the optional C core, proto/_speedups.c. Everything else about the package is in pyproject.toml.

Without a compiler, or if the compiler fails, the package is installed without the core. `POCKETMQ_PURE=1` leaves it out
and makes a wheel for every platform. `POCKETMQ_CORE=1` makes the build fail instead, for wheels that must have it.
"""

import os
import sysconfig

from setuptools import Extension, setup
from setuptools.command.build_py import build_py


def extensions() -> list[Extension]:
    """Return the C core, for a Python that has the stable ABI: a free-threaded one has none."""
    if os.environ.get("POCKETMQ_PURE") or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return []
    return [
        Extension(
            "pocketmq.proto._speedups",
            ["proto/_speedups.c"],
            py_limited_api=True,
            optional=not os.environ.get("POCKETMQ_CORE"),
        )
    ]


class PackageModules(build_py):
    """Leaves this file out of the package, whose folder it is in."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        found = super().find_package_modules(package, package_dir)
        return [module for module in found if module[1] != "setup"]


setup(
    cmdclass={"build_py": PackageModules},
    ext_modules=extensions(),
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
