"""The optional dependencies of the package, read from its metadata."""

from __future__ import annotations

import re
from functools import cache
from importlib import metadata

MODULES = {"scikit-learn": "sklearn"}
"""Module names that differ from the package name."""
REQUIREMENT = re.compile(r"""^([\w.-]+).*extra == ['"](\w+)['"]""")


@cache
def packages_by_extra() -> dict[str, list[str]]:
    """Return the packages of each extra, the smallest extra first."""
    packages: dict[str, list[str]] = {}
    try:
        requirements = metadata.requires("pasta-lm") or []
    except metadata.PackageNotFoundError:  # run from a folder, not installed
        return packages
    for requirement in requirements:
        match = REQUIREMENT.match(requirement)
        if match and match[1] != "pasta-lm" and match[2] != "dev":
            packages.setdefault(match[2], []).append(match[1])
    return dict(sorted(packages.items(), key=lambda extra: len(extra[1])))


def extra_of(module: str) -> str | None:
    """Return the smallest extra that installs a module."""
    for extra, packages in packages_by_extra().items():
        if module in (MODULES.get(name, name.replace("-", "_")) for name in packages):
            return extra
    return None


def installed_version(package: str) -> str | None:
    """Return the version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
