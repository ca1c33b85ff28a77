"""Entry point of ``python -m ssl_vision``, which is equivalent to ``ssl-vision``."""

import sys
from pathlib import Path

if sys.argv[0] == __file__ and not sys.flags.safe_path:
    # -m puts the current folder first, where its files would take the place of installed modules
    current, home = sys.path.pop(0), str(Path(__file__).parent.parent)
    if current == home:  # a clone that is not installed
        sys.path.append(home)

from ssl_vision.main import main

sys.exit(main())
