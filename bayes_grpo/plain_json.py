"""JSON for other programs: plain numbers, nothing that is not finite."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def to_json(value: Any) -> str:
    """JSON text of numbers, tables and paths; what is not finite becomes null."""
    return json.dumps(_plain(value), indent=2, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return str(value) if isinstance(value, Path) else value
