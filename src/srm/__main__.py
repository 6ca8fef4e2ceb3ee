"""`python -m srm`: the same as `srm`."""

from srm.cli import main

main()
