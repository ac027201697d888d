"""Configurations in text: printed objects, command lines, code, YAML.

Nothing is executed: literals only, with bounded size and depth.
"""

import ast
import json
import re
from typing import Any

import yaml

from bayes_grpo.errors import InputError
from bayes_grpo.readers.config import Config

# Beyond these it is no configuration, or a hostile one.
_LARGEST = 2_000_000
_DEEPEST = 40

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
