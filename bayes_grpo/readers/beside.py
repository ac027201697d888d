"""Configuration files that trainers leave beside their logs."""

from pathlib import Path

from bayes_grpo.errors import InputError
from bayes_grpo.readers.config import Config
from bayes_grpo.readers.config_text import from_command_line, from_yaml

# Where trainers and loggers put their configuration, seen from the folder of the log.
# training_args.bin, a pickle, is never opened.
_NAMES = (
    "args.json",  # ms-swift
    "training_args.json",
    "config.yaml",  # Weights & Biases, prime-rl, own loops
    "config.yml",
    "config.json",
    "config.toml",
    ".hydra/config.yaml",  # verl, SkyRL
    ".hydra/overrides.yaml",
    "hparams.yaml",
    "files/config.yaml",
    "wandb-metadata.json",  # the command line
    *(  # prime-rl
        f"{folder}{name}.toml"
        for folder in ("", "configs/", "control/")
        for name in ("orchestrator", "orch", "trainer", "rl")
    ),
)
CONFIG_FILES = frozenset(
    [*(name.rpartition("/")[2] for name in _NAMES), "wandb-summary.json", "requirements.txt"]
)
"""Names of files in a folder of logs that are configurations and the like, not logs."""

_UP = 2
_INNER = ("checkpoint-", "files", "runs", "run_", "orchestrator", "trainer", "v")
_LARGEST = 2_000_000


def configs_beside(path: Path) -> tuple[Config, tuple[str, ...]]:
    """Read the configuration files in the folder of a log and in the two above it.

    Parameters
    ----------
    path
        The log.

    Returns
    -------
    config : Config
        The nearer file wins.
    notes : tuple of str
        Files that could not be read, which is no reason to refuse the log.
    """
    found, notes = Config(), []
    folder = path.resolve().parent
    # Only the folders of one training: the parents of checkpoint-100 and of files/.
    ups = 1 + (_UP if folder.name.startswith(_INNER) else 0)
    for place in [folder, *folder.parents][:ups]:
        for name in _NAMES:
            file = place / name
            if file == path or not file.is_file() or file.stat().st_size > _LARGEST:
                continue
            try:
                found = found.over(_read(file, name))
            except (InputError, OSError, UnicodeDecodeError) as error:
                notes.append(f"the configuration beside the log was not used: {error}")
    return found, tuple(notes)


def _read(file: Path, name: str) -> Config:
    text = file.read_text(encoding="utf-8")
    if name == "wandb-metadata.json":
        arguments = from_yaml(text, name).find("args")
        words = arguments.value if arguments and isinstance(arguments.value, list) else []
        return from_command_line(" ".join(map(str, words)), f"command line in {name}")
    if file.suffix == ".toml":
        import tomllib

        try:
            return Config.of(tomllib.loads(text), name)
        except (tomllib.TOMLDecodeError, RecursionError) as error:
            raise InputError(f"{name}: cannot be read ({error})") from error
    return from_yaml(text, name)
