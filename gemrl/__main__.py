"""`python -m gemrl` is the `gemrl` command."""

import sys

from gemrl.cli import main

sys.exit(main())
