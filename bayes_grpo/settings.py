"""The settings of a training run, each with where its value comes from."""

import difflib
import html
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import pandas as pd

from bayes_grpo.errors import InputError

Provenance = Literal["given", "read", "inferred", "default"]


@dataclass(frozen=True)
class Setting:
    """One setting of a run.

    Parameters
    ----------
    value
        The value.
    provenance
        ``"given"`` by hand, ``"read"`` from the log, ``"inferred"`` from its numbers, or the
        ``"default"``.
    why
        One phrase on how the value came about.
    """

    value: Any
    provenance: Provenance
    why: str = ""

    def __post_init__(self) -> None:
        if self.provenance not in get_args(Provenance):
            expected = _listed(get_args(Provenance))
            raise InputError(f"provenance is {self.provenance!r}: expected one of {expected}")


class Settings:
    """The settings of one training run: values by attribute, whole settings by item.

    ``settings.group_size`` is the value 8; ``settings["group_size"]`` is the `Setting` with its
    provenance and reason. Instances do not change: `replace` makes a new one.

    Parameters
    ----------
    given
        Values set by hand, by name; they win over everything.
    read
        Settings that a reader found in the log or inferred from it, by name.

    Attributes
    ----------
    group_size : int
        G, completions sampled for one prompt.
    prompts_per_step : int
        Prompts in one rollout batch.
    momentum : float
        mu, the first-moment decay of the optimizer (beta1 of Adam), 0 <= mu < 1.
    momentum_convention : {"ema", "heavy_ball"}
        Whether the gradient enters the momentum with weight 1 - mu (Adam) or 1 (SGD).
    learning_rate : float
        Its peak; the unit in which curvature is expressed.
    refresh_interval : int
        Optimizer updates between two refreshes of the sampling policy.
    lag_pattern : {"hold", "constant"}
        ``"hold"``: the lag runs through 0 ... refresh_interval - 1, as the same rollouts are used
        again. ``"constant"``: an asynchronous sampler is always `lag` updates behind.
    lag : int
        Updates by which a ``"constant"`` sampler lags.
    updates_per_step : int
        Optimizer updates in one unit of the logged step.
    row_average : {"window", "single"}
        Whether a row is the mean of everything since the previous row, or one rollout batch.
    max_steps : int or None
        Planned last step.
    reward_bounds : tuple of (float, float) or None
        Lowest and highest reward that can occur, infinite where there is no bound. Inferred: a
        reward that keeps hitting exactly 0 from above, or exactly 1 from below, is bounded there.
    kl_weight : float or None
        Weight of the penalty on the divergence from the reference policy.
    trainer : str or None
        Who wrote the log.
    reward_std_kind : {"within_group", "pooled"} or None
        What ``reward_std`` is: the mean of the groups' standard deviations, or the standard
        deviation of all rewards of the batch.
    reward_filtered : bool
        Whether prompts without contrast were taken out before the reward was averaged. Such a mean
        is pulled to the middle, and its plateau means nothing.
    eval_size : int or None
        Samples behind one ``eval_reward``.

    Raises
    ------
    InputError
        If a name is unknown or a value has the wrong type or lies out of range.
    """

    group_size: int
    prompts_per_step: int
    momentum: float
    momentum_convention: Literal["ema", "heavy_ball"]
    learning_rate: float
    refresh_interval: int
    lag_pattern: Literal["hold", "constant"]
    lag: int
    updates_per_step: int
    row_average: Literal["window", "single"]
    max_steps: int | None
    reward_bounds: tuple[float, float] | None
    kl_weight: float | None
    trainer: str | None
    reward_std_kind: Literal["within_group", "pooled"] | None
    reward_filtered: bool
    eval_size: int | None

    def __init__(
        self,
        given: Mapping[str, Any] | None = None,
        read: Mapping[str, Setting] | None = None,
    ) -> None:
        given, read = dict(given or {}), dict(read or {})
        for name in (*given, *read):
            if name not in _SPECS:
                raise InputError(_unknown(name))
        items: dict[str, Setting] = {}
        for name, spec in _SPECS.items():
            if name in given:
                items[name] = Setting(spec.check(name, given[name]), "given", "set by hand")
            elif name in read:
                found = read[name]
                items[name] = Setting(spec.check(name, found.value), found.provenance, found.why)
            else:
                items[name] = Setting(spec.default, "default", spec.why)
        if items["lag"].value > 0 and items["lag_pattern"].provenance == "default":
            # A lag means nothing under the default pattern; whoever sets one means a constant lag.
            items["lag_pattern"] = Setting("constant", "inferred", "a lag was set")
        object.__setattr__(self, "_items", items)

    @staticmethod
    def names() -> tuple[str, ...]:
        """Return the names of all settings.

        Returns
        -------
        tuple of str
            In the order in which they are printed.
        """
        return tuple(_SPECS)

    def replace(self, **given: Any) -> "Settings":
        """Return a copy with some values set by hand.

        Parameters
        ----------
        **given
            New values by name.

        Returns
        -------
        Settings
            The others keep their value and provenance.

        Raises
        ------
        InputError
            If a name is unknown or a value invalid.
        """
        return Settings(given, self._stored)

    def to_frame(self) -> pd.DataFrame:
        """Return the settings as a table.

        Returns
        -------
        pandas.DataFrame
            Indexed by name, with columns value, provenance, why.
        """
        columns = ["value", "provenance", "why"]
        rows = [[getattr(item, column) for column in columns] for item in self._stored.values()]
        index = pd.Index(self._stored, name="setting")
        return pd.DataFrame(rows, index=index, columns=columns, dtype=object)

    def to_json(self) -> str:
        """Return the settings as JSON text, for storing beside a fit.

        Returns
        -------
        str
            An object of name -> {value, provenance, why}.
        """
        return json.dumps({name: vars(item) for name, item in self._stored.items()})

    @classmethod
    def from_json(cls, text: str) -> "Settings":
        """Rebuild settings from `to_json`.

        Parameters
        ----------
        text
            What `to_json` returned. Settings that it lacks take their default.

        Returns
        -------
        Settings
            Equal to those that were written.

        Raises
        ------
        InputError
            If the text is not such JSON, or holds an unknown name or an invalid value.
        """
        try:
            items = {name: Setting(**item) for name, item in json.loads(text).items()}
        except (ValueError, TypeError, AttributeError) as error:
            raise InputError(f"stored settings cannot be read: {error}") from error
        return cls(read=items)

    @property
    def _stored(self) -> dict[str, Setting]:
        return self.__dict__["_items"]

    def __getattr__(self, name: str) -> Any:
        items = self.__dict__.get("_items", {})
        if name in items:
            return items[name].value
        raise AttributeError(_unknown(name))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"settings do not change: use settings.replace({name}={value!r})")

    def __getitem__(self, name: str) -> Setting:
        if name not in self._stored:
            raise KeyError(_unknown(name))
        return self._stored[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Settings) and self._stored == other._stored

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._stored})

    def __repr__(self) -> str:
        rows = [(name, str(s.value), s.provenance, s.why) for name, s in self._stored.items()]
        widths = [max(len(row[k]) for row in rows) for k in range(3)]
        lines = (
            "  ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[3]])
            for row in rows
        )
        return "\n".join(line.rstrip() for line in lines)

    def _repr_html_(self) -> str:
        body = "".join(
            f"<tr><th>{name}</th><td>{html.escape(str(s.value))}</td><td>{s.provenance}</td>"
            f"<td>{html.escape(s.why)}</td></tr>"
            for name, s in self._stored.items()
        )
        head = "<tr><th>setting</th><th>value</th><th>provenance</th><th>why</th></tr>"
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


Check = Callable[[str, Any], Any]


@dataclass(frozen=True)
class _Spec:
    default: Any
    why: str
    check: Check


def _listed(names: Any) -> str:
    return ", ".join(str(name) for name in names)


def _unknown(name: str) -> str:
    near = difflib.get_close_matches(name, _SPECS, n=1)
    hint = f", did you mean '{near[0]}'?" if near else "."
    return f"there is no setting '{name}'{hint} Settings are: {_listed(_SPECS)}"


def _wrong(name: str, value: Any, expected: str) -> InputError:
    return InputError(f"setting {name} is {value!r}: expected {expected}")


def _as_number(name: str, value: Any, expected: str) -> float:
    # bool is a number to Python, but group_size=True is a slip.
    if isinstance(value, bool | str) or value is None:
        raise _wrong(name, value, expected)
    try:
        number = float(value)
    except (TypeError, ValueError) as error:
        raise _wrong(name, value, expected) from error
    if not math.isfinite(number):
        raise _wrong(name, value, expected)
    return number


def _whole(lowest: int) -> Check:
    def check(name: str, value: Any) -> int:
        expected = f"a whole number of at least {lowest}"
        number = _as_number(name, value, expected)
        if number != int(number) or number < lowest:
            raise _wrong(name, value, expected)
        return int(number)

    return check


def _real(low: float, high: float, expected: str, low_is_valid: bool) -> Check:
    def check(name: str, value: Any) -> float:
        number = _as_number(name, value, expected)
        if number >= high or number < low or (number == low and not low_is_valid):
            raise _wrong(name, value, expected)
        return number

    return check


def _choice(*choices: str) -> Check:
    def check(name: str, value: Any) -> str:
        if value not in choices:
            raise _wrong(name, value, " or ".join(repr(choice) for choice in choices))
        return value

    return check


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise _wrong(name, value, "text")
    return value


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise _wrong(name, value, "True or False")
    return value


def _optional(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _bounds(name: str, value: Any) -> tuple[float, float]:
    expected = "a pair (lowest, highest) with lowest < highest; infinite where there is no bound"
    if isinstance(value, str):
        raise _wrong(name, value, expected)
    try:
        low, high = (
            float(bound)
            if isinstance(bound, float) and math.isinf(bound)
            else _as_number(name, bound, expected)
            for bound in value
        )
    except (TypeError, ValueError) as error:
        raise _wrong(name, value, expected) from error
    if low >= high:
        raise _wrong(name, value, expected)
    return low, high


_SPECS: dict[str, _Spec] = {
    "group_size": _Spec(8, "not in the log: TRL's default", _whole(1)),
    "prompts_per_step": _Spec(1, "not in the log: the smallest batch", _whole(1)),
    "momentum": _Spec(
        0.9, "not in the log: Adam's beta1", _real(0, 1, "a number with 0 <= mu < 1", True)
    ),
    "momentum_convention": _Spec("ema", "Adam's", _choice("ema", "heavy_ball")),
    "learning_rate": _Spec(
        1.0,
        "not in the log: curvature is then in units of 1/learning rate",
        _real(0, math.inf, "a positive number", False),
    ),
    "refresh_interval": _Spec(1, "not in the log: on-policy", _whole(1)),
    "lag_pattern": _Spec("hold", "rollouts are made, then used up", _choice("hold", "constant")),
    "lag": _Spec(0, "not in the log: the sampler is synchronous", _whole(0)),
    "updates_per_step": _Spec(1, "not in the log: a step is one update", _whole(1)),
    "row_average": _Spec("single", "a row is one rollout batch", _choice("window", "single")),
    "max_steps": _Spec(None, "not in the log", _optional(_whole(1))),
    "reward_bounds": _Spec(
        None, "not declared, and no bound is hit again and again", _optional(_bounds)
    ),
    "kl_weight": _Spec(
        None,
        "not in the log",
        _optional(_real(0, math.inf, "a number of at least 0", True)),
    ),
    "trainer": _Spec(None, "the log does not give it away", _optional(_text)),
    "reward_std_kind": _Spec(
        None, "the log does not tell", _optional(_choice("within_group", "pooled"))
    ),
    "reward_filtered": _Spec(False, "no sign of it in the log", _flag),
    "eval_size": _Spec(None, "not in the log", _optional(_whole(1))),
}
