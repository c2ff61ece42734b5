"""The repository's addresses in the package's metadata, from the workflow that builds it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PAPER = {"Paper": "https://arxiv.org/abs/2502.11517"}


class RepositoryLinks(MetadataHookInterface):
    """Adds the repository's addresses, and makes the links of the README absolute for an index."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Fill in ``urls`` and ``readme``; both are dynamic in pyproject.toml."""
        text = Path(self.root, "README.md").read_text("utf-8")
        metadata["urls"] = PAPER
        if repository := os.environ.get("GITHUB_REPOSITORY"):
            home = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{repository}"
            owner, _, name = repository.partition("/")
            metadata["urls"] = {
                "Source": home,
                "Documentation": f"https://{owner.lower()}.github.io/{name}/",
                "Changelog": f"{home}/blob/HEAD/CHANGELOG.md",
                "Issues": f"{home}/issues",
                **PAPER,
            }
            text = text.replace(" URL is the address of this page.", "")
            text = text.replace("--depth 1 URL ", f"--depth 1 {home} ")
            text = re.sub(r"(?<=\]\()(?=[\w./-]+\.(?:png|svg)\))", f"{home}/raw/HEAD/", text)
            text = re.sub(r"(?<=\]\()(?!https?:|#)", f"{home}/blob/HEAD/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
