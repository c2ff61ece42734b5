"""Fixtures of the product's tests that the laboratory's use too."""

from __future__ import annotations

from tests.conftest import shared_data as shared_data
