"""Where the model files and the example runs lie: in the wheel, or in a checkout."""

from pathlib import Path

from bayes_grpo.errors import BayesGrpoError

_PACKAGE = Path(__file__).resolve().parent


def models_dir() -> Path:
    """Return the folder of the bundled model files.

    Returns
    -------
    pathlib.Path
        ``bayes_grpo/_models`` of an installed wheel, else ``models/`` of the checkout.

    Raises
    ------
    BayesGrpoError
        If neither is there: the installation is incomplete.
    """
    return _bundled("models")


def data_dir() -> Path:
    """Return the folder of the bundled example runs.

    Returns
    -------
    pathlib.Path
        ``bayes_grpo/_data`` of an installed wheel, else ``data/`` of the checkout.

    Raises
    ------
    BayesGrpoError
        If neither is there: the installation is incomplete.
    """
    return _bundled("data")


def _bundled(name: str) -> Path:
    # A wheel carries the folder beside the code; an editable install runs from the checkout, where
    # it lies at the top level.
    candidates = (_PACKAGE / f"_{name}", _PACKAGE.parent / name)
    for candidate in candidates:
        if candidate.is_dir():
            return candidate
    raise BayesGrpoError(
        f"the bundled folder '{name}' is in neither {candidates[0]} nor {candidates[1]}: "
        "the installation is incomplete, install bayes-grpo again"
    )
