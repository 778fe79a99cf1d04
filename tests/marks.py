"""Marks that whole files of tests share; a file adds its own, and the longest time of a test."""

from __future__ import annotations

import pytest

SLOW_MARKS = (pytest.mark.integration, pytest.mark.slow)
LAB_MARKS = (*SLOW_MARKS, pytest.mark.lab)
