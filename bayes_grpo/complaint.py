"""One line on standard error: how the terminal hears of bad input."""

import click


def complain(message: str) -> None:
    """Write one line to standard error, whatever line breaks the message has."""
    click.echo(f"bayes-grpo: {' '.join(message.split())}", err=True)
