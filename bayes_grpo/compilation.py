"""Compiled programs kept on disk, so that the next process need not compile them again.

Only a process of our own may switch this on: in a user's session the cache is the user's business.
"""

import os
from pathlib import Path

MIN_COMPILE_SECONDS = 0.0
"""Small programs are kept too: there are dozens, and tracing them anew takes most of a second."""


def keep_compiled() -> Path | None:
    """Switch on JAX's persistent compilation cache.

    Returns
    -------
    pathlib.Path or None
        Its folder: ``JAX_COMPILATION_CACHE_DIR`` if set, else below ``XDG_CACHE_HOME`` or
        ``~/.cache``; None where that cannot be written, and nothing is kept.
    """
    import jax

    chosen = os.environ.get("JAX_COMPILATION_CACHE_DIR")
    try:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = Path(chosen) if chosen else base / "bayes-grpo" / "jax"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no home, or a read-only one
        return None
    if not os.access(folder, os.W_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    if "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS" not in os.environ:
        jax.config.update("jax_persistent_cache_min_compile_time_secs", MIN_COMPILE_SECONDS)
    return folder
