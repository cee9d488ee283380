"""`python -m cutegen`."""

from cutegen.cli.main import main

raise SystemExit(main())
