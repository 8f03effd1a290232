"""`python -m kvatlas.cli`, the same as the `kvatlas` command."""

import sys

from kvatlas.cli.main import main

sys.exit(main())
