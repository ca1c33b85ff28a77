"""python -m ssl_vision: the same as ssl-vision."""

import sys

from ssl_vision.main import main

sys.exit(main())
