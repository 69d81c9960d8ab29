"""What is checked of every scheme before a run starts, whatever the scheme itself checks."""

from __future__ import annotations

from ..errors import UserError
from .codec import Codec
from .scheme import Scheme


def check_scheme(scheme: Scheme, workers: int) -> None:
    """Check gate, codecs and scalars of a scheme, then what the scheme itself checks (`Scheme.check`).

    Args:
        scheme: the algorithm.
        workers: W.

    Raises:
        UserError: the scheme cannot work with that number of workers, or its parts do not fit together.
    """
    name, gate, codecs = scheme.name, scheme.gate, (scheme.codec, scheme.reply_codec)
    gate.check(workers)
    if scheme.reply_codec.remembers:
        raise UserError(
            f"{name}: a codec of replies keeps no variables, for a reply has many readers. Received: "
            f"reply_codec={type(scheme.reply_codec).__name__}"
        )
    if scheme.scalars and (not gate.uses_ps or scheme.sparse):
        why = "without a ps" if not gate.uses_ps else "of a scheme with sparse = True"
        raise UserError(f"{name}: messages {why} are vectors alone. Received: scalars={scheme.scalars}")
    if not gate.uses_ps and {*map(type, codecs)} != {Codec}:
        raise UserError(
            f"{name}: without a ps vectors travel as they are: leave the codec out. Received: "
            f"codec={type(scheme.codec).__name__}, reply_codec={type(scheme.reply_codec).__name__}"
        )
    scheme.check(workers)
