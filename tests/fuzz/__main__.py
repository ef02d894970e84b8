"""Run libFuzzer, guided by the coverage of the codec and the dataplane; see `make fuzz`.

Arguments are libFuzzer's: a folder for the inputs that it keeps, further folders to start from, flags; or files of
inputs to check again. It ends with the number of inputs, and with status 0 if nothing was found.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["softmaxd_proto", "softmaxd_server", "fuzz"]):
    from fuzz.checks import check
    from fuzz.seeds import seeds


def main() -> None:
    """Write the seeds into the first folder among the arguments, then check inputs without end, or till a flag's."""
    for corpus in [Path(argument) for argument in sys.argv[1:] if Path(argument).is_dir()][:1]:
        for seed in seeds():
            (corpus / hashlib.sha1(seed).hexdigest()).write_bytes(seed)
    atheris.Setup(sys.argv, check)
    atheris.Fuzz()


main()
