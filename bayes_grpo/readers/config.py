"""The configuration of a training: from dictionaries, command lines, printed objects and YAML.

Nothing is executed: literals only, with bounded size and depth.
"""

import ast
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from bayes_grpo.errors import InputError
from bayes_grpo.settings import Provenance, Setting

# Beyond these it is no configuration, or a hostile one.
_LARGEST = 2_000_000
_DEEPEST = 40
_MOST = 20_000

_OVERRIDE = re.compile(
    r"(?<![\w.\-/])\+{0,2}([A-Za-z_]\w*(?:\.\w+)+)=(\"[^\"]*\"|'[^']*'|[^\s\\,]+)"
)
_FLAG = re.compile(
    r"(?<!\S)--?([A-Za-z_][\w.\-]*)"
    r"(?:(?:=|\s+)((?:\"[^\"]*\"|'[^']*'|-?\.?\d\S*|[^\s\-\\]\S*)(?:\s+-?\.?\d[\w.]*)*))?"
)
_DOTTED = re.compile(r"^\s*([A-Za-z_]\w*) \.{3,} (\S.*?)\s*$", re.MULTILINE)
_ASSIGNED = re.compile(
    r"(?:^|[(,\s])([A-Za-z_]\w*)\s*=\s*(\"[^\"\n]*\"|'[^'\n]*'|\[[^\]\n]*\]|[^,()#\s]+)"
)
_OBJECT = re.compile(r"\b(\w*(?:Config|Arguments|Args|Namespace))\(")


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


def from_text(text: str, source: str) -> Config:
    """Find a configuration in the text of a log: what was printed, and command lines.

    Parameters
    ----------
    text
        Lines without colours and Ray's prefix. Only its first two million characters are looked at.
    source
        What to call the log.

    Returns
    -------
    Config
        Printed configurations win over command lines, which they contain.
    """
    text = text[:_LARGEST]
    printed = f"printed in {source}"
    found = _printed_dictionaries(text, printed)
    found = found.over(Config.of(_objects(text), printed))
    found = found.over(Config.of(dict(_DOTTED.findall(text)), printed))
    return found.over(from_command_line(text, f"command line in {source}"))


def from_command_line(text: str, source: str) -> Config:
    """Read ``--flags`` and Hydra's ``a.b=value`` overrides.

    Parameters
    ----------
    text
        Text with one or several command lines.
    source
        What to call it.

    Returns
    -------
    Config
    """
    values: dict[str, Any] = {}
    for line in text.splitlines():
        if len(line) > 20_000:
            continue
        if "--" in line:
            # A flag alone is a switch that is on.
            flags = _FLAG.findall(line)
            values |= {name: value.strip("\"'`") if value else True for name, value in flags}
        if "=" in line:
            values |= {name: value.strip("\"'`") for name, value in _OVERRIDE.findall(line)}
    return Config.of(values, source)


def from_source_code(text: str, source: str) -> Config:
    """Read the literal arguments of ``...Config(name=value)`` calls in Python code.

    Parameters
    ----------
    text
        Code, for example of a notebook's cell.
    source
        What to call it.

    Returns
    -------
    Config
    """
    return Config.of(_objects(text[:_LARGEST]), source)


def from_yaml(text: str, source: str) -> Config:
    """Read YAML, or JSON, which is a kind of it.

    Parameters
    ----------
    text
        The file.
    source
        Its name.

    Returns
    -------
    Config
        Empty if the text is no mapping.

    Raises
    ------
    InputError
        If it is too large, nested too deep, or broken.
    """
    if len(text) > _LARGEST:
        raise InputError(f"{source}: larger than {_LARGEST} characters: expected a configuration")
    try:
        data = json.loads(text) if text.lstrip()[:1] == "{" else yaml.load(text, _SafeLoader)
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise InputError(f"{source}: cannot be read ({reason}): correct or remove it") from error
    return Config.of(data, source) if isinstance(data, dict) else Config()


class _SafeLoader(yaml.SafeLoader):
    """Builds plain values only, and refuses the aliases with which a small file can grow huge."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            self.aliases = getattr(self, "aliases", 0) + 1
            if self.aliases > 100:
                raise yaml.YAMLError("more than 100 aliases")
        return super().compose_node(parent, index)


def literal(text: str) -> Any:
    """Evaluate a Python literal, bounded in size and depth.

    Parameters
    ----------
    text
        For example a printed dict. NumPy's scalars (``np.float64(0.5)``), nan and inf are allowed.

    Returns
    -------
    object
        The value; None if the text is no literal.
    """
    if len(text) > _LARGEST or _depth(text) > _DEEPEST:
        return None
    if "(" in text:
        text = re.sub(r"\b(?:np|numpy|torch)\.\w+\(([^()]*)\)", r"\1", text)
        text = re.sub(r"\btensor\(([^(),]*)[^()]*\)", r"\1", text)
    if "nan" in text or "NaN" in text:
        text = re.sub(r"(?<![\w'\"])(nan|NaN)(?![\w'\"])", "None", text)
    if "inf" in text:
        text = re.sub(r"(?<![\w'\"])inf(?![\w'\"])", "1e999", text)
    try:
        return ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return None


def _depth(text: str) -> int:
    depth = deepest = 0
    for bracket in re.findall(r"[\[{(\])}]", text):
        depth += 1 if bracket in "[{(" else -1
        deepest = max(deepest, depth)
    return deepest


def _printed_dictionaries(text: str, source: str) -> Config:
    """Read dictionaries printed over several lines (pprint), as verl and NeMo-RL do."""
    found = Config()
    for match in re.finditer(r"^[^\n{'\"]{0,200}(\{)['\"]", text, re.MULTILINE):
        end = _closing(text, match.start(1))
        block = text[match.start(1) : end] if end else ""
        if "\n" in block and isinstance(value := literal(block), dict):
            found = found.over(Config.of(value, source))
    return found


def _closing(text: str, start: int) -> int:
    """Return where the bracket that opens at a position is closed again; 0 if nowhere."""
    depth, quote, at = 0, "", start
    for token in re.finditer(r"\\.|['\"{}\[\]()]", text[start : start + _LARGEST // 4]):
        character = token.group()
        at = start + token.end()
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "{[(":
            depth += 1
        elif character in "}])":
            depth -= 1
            if depth == 0:
                return at
    return 0


def _objects(text: str) -> dict[str, Any]:
    """Read ``GRPOConfig(num_generations=8, ...)``, in code or as printed."""
    values: dict[str, Any] = {}
    for match in _OBJECT.finditer(text):
        end = _closing(text, match.end() - 1)
        body = text[match.end() : end - 1 if end else match.end()]
        body = re.sub(r"#[^\n]*", "", body)
        for name, value in _ASSIGNED.findall(body):
            plain = literal(value)
            values[name] = value if plain is None else plain
    return values


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
