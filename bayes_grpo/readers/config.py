"""The configuration of a training: names, values, and where each was found."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bayes_grpo.settings import Provenance, Setting

# Beyond these it is no configuration, or a hostile one.
_DEEPEST = 40
_MOST = 20_000


@dataclass(frozen=True)
class Found:
    """A configured value.

    Parameters
    ----------
    value
        As configured.
    name
        The name it was found under.
    source
        Where, in a phrase such as ``"args.json"`` or ``"the command line in the log"``.
    """

    value: Any
    name: str
    source: str

    def __str__(self) -> str:
        return f"{self.name} = {self.value} ({self.source})"


@dataclass(frozen=True)
class Config:
    """Configured values by their full name, nested names joined by dots.

    Parameters
    ----------
    values
        Name, as `_spelled` returns it -> `Found`.
    """

    values: Mapping[str, Found] = field(default_factory=dict)

    @classmethod
    def of(cls, nested: Mapping[str, Any], source: str) -> "Config":
        """Make one of a nested dictionary.

        Parameters
        ----------
        nested
            Keys are names; Weights & Biases' ``{"value": ...}`` wrappers are taken off.
        source
            Where it comes from, in a phrase.

        Returns
        -------
        Config
        """
        flat: dict[str, Found] = {}
        _flatten(nested, "", source, flat, 0)
        return cls(flat)

    def over(self, other: "Config") -> "Config":
        """Return both, this one winning."""
        return Config({**other.values, **self.values})

    def find(self, *names: str) -> Found | None:
        """Return the first of several names that has a value other than None.

        Parameters
        ----------
        *names
            Full names, such as ``"actor_rollout_ref.rollout.n"``.

        Returns
        -------
        Found or None
        """
        for name in names:
            found = self.values.get(_spelled(name))
            if found is not None and found.value not in (None, "", "None", "null", "~"):
                return found
        return None

    def number(self, *names: str) -> float | None:
        """Return a configured number.

        Parameters
        ----------
        *names
            As in `find`.

        Returns
        -------
        float or None
            None if there is none, or it is no number.
        """
        found = self.find(*names)
        return None if found is None else as_number(found.value)

    def setting(self, *names: str, provenance: Provenance = "read") -> Setting | None:
        """Return a configured number as a setting that says where it comes from.

        Parameters
        ----------
        *names
            As in `find`.
        provenance
            Of the setting.

        Returns
        -------
        Setting or None
        """
        found = self.find(*names)
        number = None if found is None else as_number(found.value)
        return None if number is None else Setting(number, provenance, str(found))

    def count(self, *names: str) -> Setting | None:
        """Return a configured count as a setting that says where it comes from.

        Parameters
        ----------
        *names
            As in `find`.

        Returns
        -------
        Setting or None
            None unless it is a whole number of at least 1.
        """
        return whole(self.number(*names), str(self.find(*names)))

    def flag(self, *names: str) -> bool | None:
        """Return a configured switch.

        Parameters
        ----------
        *names
            As in `find`.

        Returns
        -------
        bool or None
            None if there is none.
        """
        found = self.find(*names)
        return None if found is None else str(found.value).lower() in ("true", "1", "yes", "on")

    def __bool__(self) -> bool:
        return bool(self.values)


def as_number(value: Any) -> float | None:
    """Return a configured value as a finite number, None if it is not one.

    Parameters
    ----------
    value
        A number, or a number as text; of a list or tuple, its first item.

    Returns
    -------
    float or None
    """
    if isinstance(value, list | tuple) and value:
        return as_number(value[0])
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return None
    if isinstance(value, str):
        value = value.strip().strip("\"'()[]").partition(",")[0].split(" ")[0]
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if abs(number) < float("inf") else None


def whole(value: float | None, why: str, provenance: Provenance = "read") -> Setting | None:
    """Return a count as a setting.

    Parameters
    ----------
    value
        The count.
    why, provenance
        Of the setting.

    Returns
    -------
    Setting or None
        None unless it is a whole number of at least 1: what is not configured is often -1 or null.
    """
    if value is None or not math.isfinite(value) or value < 1 or value != int(value):
        return None
    return Setting(int(value), provenance, why)


def positive(setting: Setting | None) -> Setting | None:
    """Return a setting if its number is above 0, else None."""
    return setting if setting is not None and setting.value > 0 else None


def _flatten(value: Any, name: str, source: str, flat: dict[str, Found], depth: int) -> None:
    if depth > _DEEPEST or len(flat) >= _MOST:
        return
    if isinstance(value, dict):
        if "value" in value and set(value) <= {"value", "desc"}:  # Weights & Biases wraps values
            _flatten(value["value"], name, source, flat, depth + 1)
            return
        for key, inner in value.items():
            _flatten(inner, f"{name}.{key}" if name else str(key), source, flat, depth + 1)
    elif name:
        shown = name if len(name) < 80 else f"...{name[-70:]}"
        flat[_spelled(name)] = Found(value, shown, source)


def _spelled(name: str) -> str:
    return name.strip().lower().replace("-", "_").replace("/", ".")
