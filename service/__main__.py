"""`python -m service` is the same as `omniaid`."""

from service.cli import main

main()
